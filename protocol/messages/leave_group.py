"""LeaveGroup (13): remove members from a group.

Versions 0-2 name one member; 3 a list, with static members by their instance id; 4 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "LeaveGroupRequest",
    api_key=13,
    versions="0-4",
    flexible="4+",
    fields=[
        field("group_id", "string", "0+"),
        field("member_id", "string", "0-2"),
        field(
            "members",
            "[]MemberIdentity",
            "3+",
            fields=[
                field("member_id", "string", "3+"),
                field("group_instance_id", "string", "3+", nullable="3+", default=None),
            ],
        ),
    ],
)

RESPONSE = message(
    "LeaveGroupResponse",
    api_key=13,
    versions="0-4",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field("error_code", "int16", "0+"),
        field(
            "members",
            "[]MemberResponse",
            "3+",
            fields=[
                field("member_id", "string", "3+"),
                field("group_instance_id", "string", "3+", nullable="3+"),
                field("error_code", "int16", "3+"),
            ],
        ),
    ],
)
