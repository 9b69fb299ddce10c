"""StopReplica (5): the controller tells a broker to stop, and perhaps delete, replicas.

Only version 3 is implemented: grouped by topic, flexible. KIP-253: tag 10256 names the incarnation that is meant. Tag
10262 of the answer (ours) says where a deleted replica ended, -1 when the broker does not know: a partition that is
created again goes on there.
"""

from protocol.schema import field, message

REQUEST = message(
    "StopReplicaRequest",
    api_key=5,
    versions="3",
    flexible="3+",
    fields=[
        field("controller_id", "int32", "3+"),
        field("controller_epoch", "int32", "3+"),
        field("broker_epoch", "int64", "3+", default=-1, ignorable=True),
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
    versions="3",
    flexible="3+",
    fields=[
        field("error_code", "int16", "3+"),
        field(
            "partition_errors",
            "[]StopReplicaPartitionError",
            "3+",
            fields=[
                field("topic_name", "string", "3+"),
                field("partition_index", "int32", "3+"),
                field("error_code", "int16", "3+"),
                field("log_end_offset", "int64", "3+", default=-1, ignorable=True, tag=10262),
            ],
        ),
    ],
)
