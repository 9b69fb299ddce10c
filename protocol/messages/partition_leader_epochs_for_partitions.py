"""PartitionLeaderEpochsForPartitions (25301): the lineage of partitions (KIP-253, Public Interfaces 5).

A lineage names the partitions that had a partition's keys before. Any broker responds, from one read of the znodes
after a ``sync``.

``as_of`` is the partition's leader epoch, -1 where the partition does not exist. ``over`` is the last leader epoch of
the last removed incarnation of the partition number, -1 without such an incarnation. Tag 10297 is the log end of that
incarnation; a reader compares its position with this log end. ``floor`` and ``lineage`` are the partition's. Entries
ascend by epoch; every entry up to ``as_of`` is in the response or below the floor. ``topic_incarnation`` distinguishes
a topic from a deleted one of the same name. In a request, this field has the incarnation in the client's metadata, -1
for any. A broker that has read an older state than the client asks for responds with LEADER_NOT_AVAILABLE (5), never
with an empty lineage. For a malformed znode the response is the same, and tag 10296 names the fault. Tag 10305 is the
time when the controller wrote an entry, in ms since 1970; -1 if it is not known.

There is no version 0.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "PartitionLeaderEpochsForPartitionsRequest",
    api_key=25301,
    versions="1",
    flexible="1+",
    fields=[
        field(
            "topics",
            "[]PartitionLeaderEpochsForPartitionsRequestTopic",
            "1+",
            fields=[
                field("name", "string", "1+"),
                field("topic_incarnation", "int64", "1+", default=-1),
                field(
                    "partitions",
                    "[]PartitionLeaderEpochsForPartitionsRequestPartition",
                    "1+",
                    fields=[
                        field("partition_index", "int32", "1+"),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "PartitionLeaderEpochsForPartitionsResponse",
    api_key=25301,
    versions="1",
    flexible="1+",
    fields=[
        field("throttle_time_ms", "int32", "1+"),
        field(
            "topics",
            "[]PartitionLeaderEpochsForPartitionsResponseTopic",
            "1+",
            fields=[
                field("name", "string", "1+"),
                field("topic_incarnation", "int64", "1+", default=-1),
                field(
                    "partitions",
                    "[]PartitionLeaderEpochsForPartitionsResponsePartition",
                    "1+",
                    fields=[
                        field("partition_index", "int32", "1+"),
                        field("error_code", "int16", "1+"),
                        field("error_message", "string", "1+", nullable="1+", default=None, ignorable=True, tag=10296),
                        field("as_of", "int32", "1+", default=-1),
                        field("over", "int32", "1+", default=-1),
                        field("floor", "int32", "1+", default=-1),
                        field("over_end_offset", "int64", "1+", default=-1, ignorable=True, tag=10297),
                        field(
                            "lineage",
                            "[]PartitionLeaderEpochsForPartitionsResponseEntry",
                            "1+",
                            fields=[
                                field("epoch", "int32", "1+"),
                                field("written_ms", "int64", "1+", default=-1, ignorable=True, tag=10305),
                                field(
                                    "losers",
                                    "[]PartitionLeaderEpochsForPartitionsResponseLoser",
                                    "1+",
                                    fields=[
                                        field("partition_index", "int32", "1+"),
                                        field("leader_epoch", "int32", "1+"),
                                    ],
                                ),
                            ],
                        ),
                    ],
                ),
            ],
        ),
    ],
)
