"""DeleteAcls (31): removes the entries of access control lists that match a filter.

Version 1 brings pattern types; 2 is flexible; 3 knows users as resources. Version 0 is left out, as in Kafka 4.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DeleteAclsRequest",
    api_key=31,
    versions="1-3",
    flexible="2+",
    fields=[
        field(
            "filters",
            "[]DeleteAclsFilter",
            "0+",
            fields=[
                field("resource_type_filter", "int8", "0+"),
                field("resource_name_filter", "string", "0+", nullable="0+"),
                field("pattern_type_filter", "int8", "1+", default=3),
                field("principal_filter", "string", "0+", nullable="0+"),
                field("host_filter", "string", "0+", nullable="0+"),
                field("operation", "int8", "0+"),
                field("permission_type", "int8", "0+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "DeleteAclsResponse",
    api_key=31,
    versions="1-3",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "filter_results",
            "[]DeleteAclsFilterResult",
            "0+",
            fields=[
                field("error_code", "int16", "0+"),
                field("error_message", "string", "0+", nullable="0+", default=None),
                field(
                    "matching_acls",
                    "[]DeleteAclsMatchingAcl",
                    "0+",
                    fields=[
                        field("error_code", "int16", "0+"),
                        field("error_message", "string", "0+", nullable="0+", default=None),
                        field("resource_type", "int8", "0+"),
                        field("resource_name", "string", "0+"),
                        field("pattern_type", "int8", "1+", default=3),
                        field("principal", "string", "0+"),
                        field("host", "string", "0+"),
                        field("operation", "int8", "0+"),
                        field("permission_type", "int8", "0+"),
                    ],
                ),
            ],
        ),
    ],
)
