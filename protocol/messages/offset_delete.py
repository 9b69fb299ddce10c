"""OffsetDelete (47): delete committed offsets of topics that no member of the group subscribes to. Never flexible."""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "OffsetDeleteRequest",
    api_key=47,
    versions="0",
    fields=[
        field("group_id", "string", "0+"),
        field(
            "topics",
            "[]OffsetDeleteRequestTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]OffsetDeleteRequestPartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "OffsetDeleteResponse",
    api_key=47,
    versions="0",
    fields=[
        field("error_code", "int16", "0+"),
        field("throttle_time_ms", "int32", "0+", ignorable=True),
        field(
            "topics",
            "[]OffsetDeleteResponseTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]OffsetDeleteResponsePartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                    ],
                ),
            ],
        ),
    ],
)
