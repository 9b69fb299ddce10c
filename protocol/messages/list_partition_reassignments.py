"""ListPartitionReassignments (46): the reassignments in progress. A null topic list asks for all."""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ListPartitionReassignmentsRequest",
    api_key=46,
    versions="0",
    flexible="0+",
    fields=[
        field("timeout_ms", "int32", "0+", default=60000),
        field(
            "topics",
            "[]ListPartitionReassignmentsTopics",
            "0+",
            nullable="0+",
            default=None,
            fields=[
                field("name", "string", "0+"),
                field("partition_indexes", "[]int32", "0+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "ListPartitionReassignmentsResponse",
    api_key=46,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        field("error_message", "string", "0+", nullable="0+"),
        field(
            "topics",
            "[]OngoingTopicReassignment",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]OngoingPartitionReassignment",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("replicas", "[]int32", "0+"),
                        field("adding_replicas", "[]int32", "0+"),
                        field("removing_replicas", "[]int32", "0+"),
                    ],
                ),
            ],
        ),
    ],
)
