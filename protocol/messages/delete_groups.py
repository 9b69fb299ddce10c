"""DeleteGroups (42): remove groups without members.

Version 2 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DeleteGroupsRequest",
    api_key=42,
    versions="0-2",
    flexible="2+",
    fields=[
        field("groups_names", "[]string", "0+"),
    ],
)

RESPONSE = message(
    "DeleteGroupsResponse",
    api_key=42,
    versions="0-2",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "results",
            "[]DeletableGroupResult",
            "0+",
            fields=[
                field("group_id", "string", "0+"),
                field("error_code", "int16", "0+"),
            ],
        ),
    ],
)
