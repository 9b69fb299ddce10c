"""IncrementalAlterConfigs (44): change single config keys.

Operations: 0 set, 1 delete, 2 append, 3 subtract. Version 1 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "IncrementalAlterConfigsRequest",
    api_key=44,
    versions="0-1",
    flexible="1+",
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
                        field("config_operation", "int8", "0+"),
                        field("value", "string", "0+", nullable="0+"),
                    ],
                ),
            ],
        ),
        field("validate_only", "bool", "0+"),
    ],
)

RESPONSE = message(
    "IncrementalAlterConfigsResponse",
    api_key=44,
    versions="0-1",
    flexible="1+",
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
