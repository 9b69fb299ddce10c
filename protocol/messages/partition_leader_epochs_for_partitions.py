"""PartitionLeaderEpochsForPartitions (25301): what the state znodes say of a split or a merge (KIP-253, Public
Interfaces 5).

Any broker answers. ``incarnation`` in a request is the one the client's metadata names; a broker that has read only an
older one answers LEADER_NOT_AVAILABLE (5), never "nothing to wait for". ``created_from`` is the ancestor that lost keys
to this partition and ``leader_epoch_after_creation`` that ancestor's last epoch under the old layout (-1: not known
yet); ``merged_into`` is the survivor of a partition marked for deletion, ``leader_epoch_before_deletion`` its last
epoch under the old layout, ``sealed_offset`` where the marked partition ends. -1 where there is none.
"""

from protocol.schema import field, message

REQUEST = message(
    "PartitionLeaderEpochsForPartitionsRequest",
    api_key=25301,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]PartitionLeaderEpochsForPartitionsRequestTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]PartitionLeaderEpochsForPartitionsRequestPartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("incarnation", "int64", "0+", default=-1),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "PartitionLeaderEpochsForPartitionsResponse",
    api_key=25301,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "topics",
            "[]PartitionLeaderEpochsForPartitionsResponseTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]PartitionLeaderEpochsForPartitionsResponsePartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("incarnation", "int64", "0+", default=-1),
                        field("created_from", "int32", "0+", default=-1),
                        field("leader_epoch_after_creation", "int32", "0+", default=-1),
                        field("merged_into", "int32", "0+", default=-1),
                        field("leader_epoch_before_deletion", "int32", "0+", default=-1),
                        field("sealed_offset", "int64", "0+", default=-1),
                    ],
                ),
            ],
        ),
    ],
)
