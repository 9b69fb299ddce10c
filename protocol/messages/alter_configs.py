"""AlterConfigs (33): replace all dynamic configs of a resource.

Version 2 is flexible. IncrementalAlterConfigs changes single keys.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "AlterConfigsRequest",
    api_key=33,
    versions="0-2",
    flexible="2+",
    fields=[
        field(
            "resources",
            "[]AlterConfigsResource",
            "0+",
            fields=[
                field("resource_type", "int8", "0+"),
                field("resource_name", "string", "0+"),
                field(
                    "configs",
                    "[]AlterableConfig",
                    "0+",
                    fields=[
                        field("name", "string", "0+"),
                        field("value", "string", "0+", nullable="0+"),
                    ],
                ),
            ],
        ),
        field("validate_only", "bool", "0+"),
    ],
)

RESPONSE = message(
    "AlterConfigsResponse",
    api_key=33,
    versions="0-2",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "responses",
            "[]AlterConfigsResourceResponse",
            "0+",
            fields=[
                field("error_code", "int16", "0+"),
                field("error_message", "string", "0+", nullable="0+"),
                field("resource_type", "int8", "0+"),
                field("resource_name", "string", "0+"),
            ],
        ),
    ],
)
