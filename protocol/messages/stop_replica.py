"""StopReplica (5): the controller requests a broker to stop, and perhaps delete, replicas.

Version 1 brings the broker epoch and names partitions by topic; version 2 is flexible. Version 3 has a leader epoch and
a delete flag for each partition (KIP-570); in earlier versions one flag counts for all partitions. KIP-253: tag 10256
is the partition's incarnation. Tag 10262 of the response (Anabranch's) is the log end of a deleted replica, -1 when the
broker does not know the offset. A partition that is created again begins at that offset.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "StopReplicaRequest",
    api_key=5,
    versions="0-3",
    flexible="2+",
    fields=[
        field("controller_id", "int32", "0+"),
        field("controller_epoch", "int32", "0+"),
        field("broker_epoch", "int64", "1+", default=-1, ignorable=True),
        field("delete_partitions", "bool", "0-2"),
        field(
            "ungrouped_partitions",
            "[]StopReplicaPartitionV0",
            "0",
            fields=[
                field("topic_name", "string", "0"),
                field("partition_index", "int32", "0"),
            ],
        ),
        field(
            "topics",
            "[]StopReplicaTopicV1",
            "1-2",
            fields=[
                field("name", "string", "1-2"),
                field("partition_indexes", "[]int32", "1-2"),
            ],
        ),
        field(
            "topic_states",
            "[]StopReplicaTopicState",
            "3+",
            fields=[
                field("topic_name", "string", "3+"),
                field(
                    "partition_states",
                    "[]StopReplicaPartitionState",
                    "3+",
                    fields=[
                        field("partition_index", "int32", "3+"),
                        field("leader_epoch", "int32", "3+", default=-1),
                        field("delete_partition", "bool", "3+"),
                        field("incarnation", "int64", "3+", default=-1, ignorable=True, tag=10256),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "StopReplicaResponse",
    api_key=5,
    versions="0-3",
    flexible="2+",
    fields=[
        field("error_code", "int16", "0+"),
        field(
            "partition_errors",
            "[]StopReplicaPartitionError",
            "0+",
            fields=[
                field("topic_name", "string", "0+"),
                field("partition_index", "int32", "0+"),
                field("error_code", "int16", "0+"),
                field("log_end_offset", "int64", "3+", default=-1, ignorable=True, tag=10262),
            ],
        ),
    ],
)
