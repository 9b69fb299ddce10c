"""AlterPartitionReassignments (45): move partitions to other brokers, or cancel a move (null replicas)."""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "AlterPartitionReassignmentsRequest",
    api_key=45,
    versions="0",
    flexible="0+",
    fields=[
        field("timeout_ms", "int32", "0+", default=60000),
        field(
            "topics",
            "[]ReassignableTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]ReassignablePartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("replicas", "[]int32", "0+", nullable="0+", default=None),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "AlterPartitionReassignmentsResponse",
    api_key=45,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        field("error_message", "string", "0+", nullable="0+"),
        field(
            "responses",
            "[]ReassignableTopicResponse",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]ReassignablePartitionResponse",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("error_message", "string", "0+", nullable="0+"),
                    ],
                ),
            ],
        ),
    ],
)
