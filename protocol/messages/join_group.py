"""JoinGroup (11): become a member of a group, or take part in its rebalance.

Version 1 brings the rebalance timeout; in 4 a new member gets MEMBER_ID_REQUIRED and its id first; 5 brings static
members; 6 is flexible; 7 returns the protocol type.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "JoinGroupRequest",
    api_key=11,
    versions="0-7",
    flexible="6+",
    fields=[
        field("group_id", "string", "0+"),
        field("session_timeout_ms", "int32", "0+"),
        field("rebalance_timeout_ms", "int32", "1+", default=-1, ignorable=True),
        field("member_id", "string", "0+"),
        field("group_instance_id", "string", "5+", nullable="5+", default=None),
        field("protocol_type", "string", "0+"),
        field(
            "protocols",
            "[]JoinGroupRequestProtocol",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field("metadata", "bytes", "0+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "JoinGroupResponse",
    api_key=11,
    versions="0-7",
    flexible="6+",
    fields=[
        field("throttle_time_ms", "int32", "2+", ignorable=True),
        field("error_code", "int16", "0+"),
        field("generation_id", "int32", "0+", default=-1),
        field("protocol_type", "string", "7+", nullable="7+", default=None, ignorable=True),
        field("protocol_name", "string", "0+", nullable="7+"),
        field("leader", "string", "0+"),
        field("member_id", "string", "0+"),
        field(
            "members",
            "[]JoinGroupResponseMember",
            "0+",
            fields=[
                field("member_id", "string", "0+"),
                field("group_instance_id", "string", "5+", nullable="5+", default=None, ignorable=True),
                field("metadata", "bytes", "0+"),
            ],
        ),
    ],
)
