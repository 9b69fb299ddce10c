"""ListOffsets (2): the offset for a timestamp, or for one of the special timestamps.

Timestamp -1 is the end of the partition, -2 its start, -3 (from version 7) the offset of the largest timestamp. -4
(from version 8, KIP-405) is the start of the log on the broker's disks, which is the partition's start. -5 (from
version 9, KIP-1005) is the end of the log in tiered storage. There is none, so the offset is -1. Version 2 brings the
isolation level, 4 the leader epoch, 6 is flexible. With tag 10304 (Anabranch's) a follower says that it has no room for
records of these partitions.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ListOffsetsRequest",
    api_key=2,
    versions="1-9",
    flexible="6+",
    fields=[
        field("replica_id", "int32", "1+"),
        field("isolation_level", "int8", "2+"),
        field("has_no_room", "bool", "6+", ignorable=True, tag=10304),
        field(
            "topics",
            "[]ListOffsetsTopic",
            "1+",
            fields=[
                field("name", "string", "1+"),
                field(
                    "partitions",
                    "[]ListOffsetsPartition",
                    "1+",
                    fields=[
                        field("partition_index", "int32", "1+"),
                        field("current_leader_epoch", "int32", "4+", default=-1, ignorable=True),
                        field("timestamp", "int64", "1+"),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "ListOffsetsResponse",
    api_key=2,
    versions="1-9",
    flexible="6+",
    fields=[
        field("throttle_time_ms", "int32", "2+", ignorable=True),
        field(
            "topics",
            "[]ListOffsetsTopicResponse",
            "1+",
            fields=[
                field("name", "string", "1+"),
                field(
                    "partitions",
                    "[]ListOffsetsPartitionResponse",
                    "1+",
                    fields=[
                        field("partition_index", "int32", "1+"),
                        field("error_code", "int16", "1+"),
                        field("timestamp", "int64", "1+", default=-1),
                        field("offset", "int64", "1+", default=-1),
                        field("leader_epoch", "int32", "4+", default=-1),
                    ],
                ),
            ],
        ),
    ],
)
