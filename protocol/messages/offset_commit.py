"""OffsetCommit (8): store the offsets a group has consumed to.

Versions 2-4 carry a retention time, dropped in 5; 6 brings the leader epoch; 7 static members; 8 is flexible. KIP-253:
tag 10256 is the incarnation of the partition that the offset belongs to; without the tag, the coordinator uses the
incarnation that it knows. Tag 10260 of a request means that everything below the offset is processed. The commit then
also reports the position, as a ConsumerGroupPosition would. Tag 10281 of a response confirms that report.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "OffsetCommitRequest",
    api_key=8,
    versions="2-8",
    flexible="8+",
    fields=[
        field("group_id", "string", "2+"),
        field("generation_id", "int32", "2+", default=-1, ignorable=True),
        field("member_id", "string", "2+", ignorable=True),
        field("group_instance_id", "string", "7+", nullable="7+", default=None),
        field("retention_time_ms", "int64", "2-4", default=-1, ignorable=True),
        field(
            "topics",
            "[]OffsetCommitRequestTopic",
            "2+",
            fields=[
                field("name", "string", "2+", ignorable=True),
                field(
                    "partitions",
                    "[]OffsetCommitRequestPartition",
                    "2+",
                    fields=[
                        field("partition_index", "int32", "2+"),
                        field("committed_offset", "int64", "2+"),
                        field("committed_leader_epoch", "int32", "6+", default=-1, ignorable=True),
                        field("committed_metadata", "string", "2+", nullable="2+"),
                        field("incarnation", "int64", "8+", default=-1, ignorable=True, tag=10256),
                        field("is_processed", "bool", "8+", ignorable=True, tag=10260),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "OffsetCommitResponse",
    api_key=8,
    versions="2-8",
    flexible="8+",
    fields=[
        field("throttle_time_ms", "int32", "3+", ignorable=True),
        field(
            "topics",
            "[]OffsetCommitResponseTopic",
            "2+",
            fields=[
                field("name", "string", "2+", ignorable=True),
                field(
                    "partitions",
                    "[]OffsetCommitResponsePartition",
                    "2+",
                    fields=[
                        field("partition_index", "int32", "2+"),
                        field("error_code", "int16", "2+"),
                        field("is_reported", "bool", "8+", ignorable=True, tag=10281),
                    ],
                ),
            ],
        ),
    ],
)
