"""ElectLeaders (43): elect the preferred leader (type 0) or any replica (1).

A null topic list asks for all partitions. Version 1 brings the type and a top-level error; 2 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ElectLeadersRequest",
    api_key=43,
    versions="0-2",
    flexible="2+",
    fields=[
        field("election_type", "int8", "1+"),
        field(
            "topic_partitions",
            "[]TopicPartitions",
            "0+",
            nullable="0+",
            fields=[
                field("topic", "string", "0+"),
                field("partitions", "[]int32", "0+"),
            ],
        ),
        field("timeout_ms", "int32", "0+", default=60000),
    ],
)

RESPONSE = message(
    "ElectLeadersResponse",
    api_key=43,
    versions="0-2",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "1+"),
        field(
            "replica_election_results",
            "[]ReplicaElectionResult",
            "0+",
            fields=[
                field("topic", "string", "0+"),
                field(
                    "partition_result",
                    "[]PartitionResult",
                    "0+",
                    fields=[
                        field("partition_id", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("error_message", "string", "0+", nullable="0+"),
                    ],
                ),
            ],
        ),
    ],
)
