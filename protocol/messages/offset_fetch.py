"""OffsetFetch (9): the offsets a group has committed.

A null topic list (from version 2) asks for all. Version 2 brings the group's error code, 5 leader epochs, 6 is
flexible, 7 lets the client wait for stable offsets, 8 asks for several groups at once and moves everything under
``groups``. KIP-253: tag 10256 is the incarnation the offset was committed with.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "OffsetFetchRequest",
    api_key=9,
    versions="1-8",
    flexible="6+",
    fields=[
        field("group_id", "string", "1-7"),
        field(
            "topics",
            "[]OffsetFetchRequestTopic",
            "1-7",
            nullable="2-7",
            fields=[
                field("name", "string", "1-7"),
                field("partition_indexes", "[]int32", "1-7"),
            ],
        ),
        field(
            "groups",
            "[]OffsetFetchRequestGroup",
            "8+",
            fields=[
                field("group_id", "string", "8+"),
                field(
                    "topics",
                    "[]OffsetFetchRequestTopics",
                    "8+",
                    nullable="8+",
                    fields=[
                        field("name", "string", "8+", ignorable=True),
                        field("partition_indexes", "[]int32", "8+"),
                    ],
                ),
            ],
        ),
        field("require_stable", "bool", "7+"),
    ],
)

RESPONSE = message(
    "OffsetFetchResponse",
    api_key=9,
    versions="1-8",
    flexible="6+",
    fields=[
        field("throttle_time_ms", "int32", "3+", ignorable=True),
        field(
            "topics",
            "[]OffsetFetchResponseTopic",
            "1-7",
            fields=[
                field("name", "string", "1-7"),
                field(
                    "partitions",
                    "[]OffsetFetchResponsePartition",
                    "1-7",
                    fields=[
                        field("partition_index", "int32", "1-7"),
                        field("committed_offset", "int64", "1-7"),
                        field("committed_leader_epoch", "int32", "5-7", default=-1, ignorable=True),
                        field("metadata", "string", "1-7", nullable="1-7"),
                        field("error_code", "int16", "1-7"),
                        field("incarnation", "int64", "6-7", default=-1, ignorable=True, tag=10256),
                    ],
                ),
            ],
        ),
        field("error_code", "int16", "2-7", ignorable=True),
        field(
            "groups",
            "[]OffsetFetchResponseGroup",
            "8+",
            fields=[
                field("group_id", "string", "8+"),
                field(
                    "topics",
                    "[]OffsetFetchResponseTopics",
                    "8+",
                    fields=[
                        field("name", "string", "8+", ignorable=True),
                        field(
                            "partitions",
                            "[]OffsetFetchResponsePartitions",
                            "8+",
                            fields=[
                                field("partition_index", "int32", "8+"),
                                field("committed_offset", "int64", "8+"),
                                field("committed_leader_epoch", "int32", "8+", default=-1, ignorable=True),
                                field("metadata", "string", "8+", nullable="8+"),
                                field("error_code", "int16", "8+"),
                                field("incarnation", "int64", "8+", default=-1, ignorable=True, tag=10256),
                            ],
                        ),
                    ],
                ),
                field("error_code", "int16", "8+"),
            ],
        ),
    ],
)
