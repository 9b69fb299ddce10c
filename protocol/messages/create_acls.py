"""CreateAcls (30): new entries of access control lists.

Version 1 brings pattern types; 2 is flexible; 3 knows users as resources. Version 0 is left out, as in Kafka 4.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "CreateAclsRequest",
    api_key=30,
    versions="1-3",
    flexible="2+",
    fields=[
        field(
            "creations",
            "[]AclCreation",
            "0+",
            fields=[
                field("resource_type", "int8", "0+"),
                field("resource_name", "string", "0+"),
                field("resource_pattern_type", "int8", "1+", default=3),
                field("principal", "string", "0+"),
                field("host", "string", "0+"),
                field("operation", "int8", "0+"),
                field("permission_type", "int8", "0+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "CreateAclsResponse",
    api_key=30,
    versions="1-3",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "results",
            "[]AclCreationResult",
            "0+",
            fields=[
                field("error_code", "int16", "0+"),
                field("error_message", "string", "0+", nullable="0+", default=None),
            ],
        ),
    ],
)
