"""SyncGroup (14): the leader sends the assignment, and every member gets its part of it.

Version 3 brings static members; 4 is flexible; 5 carries protocol type and name for a check.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "SyncGroupRequest",
    api_key=14,
    versions="0-5",
    flexible="4+",
    fields=[
        field("group_id", "string", "0+"),
        field("generation_id", "int32", "0+"),
        field("member_id", "string", "0+"),
        field("group_instance_id", "string", "3+", nullable="3+", default=None),
        field("protocol_type", "string", "5+", nullable="5+", default=None, ignorable=True),
        field("protocol_name", "string", "5+", nullable="5+", default=None, ignorable=True),
        field(
            "assignments",
            "[]SyncGroupRequestAssignment",
            "0+",
            fields=[
                field("member_id", "string", "0+"),
                field("assignment", "bytes", "0+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "SyncGroupResponse",
    api_key=14,
    versions="0-5",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field("error_code", "int16", "0+"),
        field("protocol_type", "string", "5+", nullable="5+", default=None, ignorable=True),
        field("protocol_name", "string", "5+", nullable="5+", default=None, ignorable=True),
        field("assignment", "bytes", "0+"),
    ],
)
