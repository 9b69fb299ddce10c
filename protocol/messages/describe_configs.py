"""DescribeConfigs (32): configs of topics (resource type 2) and brokers (4).

Version 1 returns the source of a value (1 topic, 2 dynamic broker, 3 dynamic default broker, 4 static broker, 5
default) and synonyms; 3 types and documentation; 4 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeConfigsRequest",
    api_key=32,
    versions="1-4",
    flexible="4+",
    fields=[
        field(
            "resources",
            "[]DescribeConfigsResource",
            "1+",
            fields=[
                field("resource_type", "int8", "1+"),
                field("resource_name", "string", "1+"),
                field("configuration_keys", "[]string", "1+", nullable="1+"),
            ],
        ),
        field("include_synonyms", "bool", "1+"),
        field("include_documentation", "bool", "3+"),
    ],
)

RESPONSE = message(
    "DescribeConfigsResponse",
    api_key=32,
    versions="1-4",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "1+"),
        field(
            "results",
            "[]DescribeConfigsResult",
            "1+",
            fields=[
                field("error_code", "int16", "1+"),
                field("error_message", "string", "1+", nullable="1+"),
                field("resource_type", "int8", "1+"),
                field("resource_name", "string", "1+"),
                field(
                    "configs",
                    "[]DescribeConfigsResourceResult",
                    "1+",
                    fields=[
                        field("name", "string", "1+"),
                        field("value", "string", "1+", nullable="1+"),
                        field("read_only", "bool", "1+"),
                        field("config_source", "int8", "1+", default=-1, ignorable=True),
                        field("is_sensitive", "bool", "1+"),
                        field(
                            "synonyms",
                            "[]DescribeConfigsSynonym",
                            "1+",
                            ignorable=True,
                            fields=[
                                field("name", "string", "1+"),
                                field("value", "string", "1+", nullable="1+"),
                                field("source", "int8", "1+"),
                            ],
                        ),
                        field("config_type", "int8", "3+", ignorable=True),
                        field("documentation", "string", "3+", nullable="1+", ignorable=True),
                    ],
                ),
            ],
        ),
    ],
)
