"""ListGroups (16): the groups this broker coordinates.

Version 3 is flexible; 4 filters by state and returns it.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ListGroupsRequest",
    api_key=16,
    versions="0-4",
    flexible="3+",
    fields=[
        field("states_filter", "[]string", "4+"),
    ],
)

RESPONSE = message(
    "ListGroupsResponse",
    api_key=16,
    versions="0-4",
    flexible="3+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field("error_code", "int16", "0+"),
        field(
            "groups",
            "[]ListedGroup",
            "0+",
            fields=[
                field("group_id", "string", "0+"),
                field("protocol_type", "string", "0+"),
                field("group_state", "string", "4+", ignorable=True),
            ],
        ),
    ],
)
