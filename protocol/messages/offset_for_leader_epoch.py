"""OffsetForLeaderEpoch (23): the end offset of a leader epoch, which shows where two logs diverge.

Version 3 brings the replica id (-1 for a consumer); 4 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "OffsetForLeaderEpochRequest",
    api_key=23,
    versions="2-4",
    flexible="4+",
    fields=[
        field("replica_id", "int32", "3+", default=-2, ignorable=True),
        field(
            "topics",
            "[]OffsetForLeaderTopic",
            "2+",
            fields=[
                field("topic", "string", "2+"),
                field(
                    "partitions",
                    "[]OffsetForLeaderPartition",
                    "2+",
                    fields=[
                        field("partition", "int32", "2+"),
                        field("current_leader_epoch", "int32", "2+", default=-1, ignorable=True),
                        field("leader_epoch", "int32", "2+"),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "OffsetForLeaderEpochResponse",
    api_key=23,
    versions="2-4",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "2+", ignorable=True),
        field(
            "topics",
            "[]OffsetForLeaderTopicResult",
            "2+",
            fields=[
                field("topic", "string", "2+"),
                field(
                    "partitions",
                    "[]EpochEndOffset",
                    "2+",
                    fields=[
                        field("error_code", "int16", "2+"),
                        field("partition", "int32", "2+"),
                        field("leader_epoch", "int32", "2+", default=-1, ignorable=True),
                        field("end_offset", "int64", "2+", default=-1),
                    ],
                ),
            ],
        ),
    ],
)
