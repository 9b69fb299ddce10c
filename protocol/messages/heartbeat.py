"""Heartbeat (12): a member is alive.

Version 3 brings static members; 4 is flexible. Tag 10265 (Anabranch's) says that the member polls for positions (25300)
in every generation. The first poll of a generation waits until the user has given up the partitions that the generation
assigns to other members.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "HeartbeatRequest",
    api_key=12,
    versions="0-4",
    flexible="4+",
    fields=[
        field("group_id", "string", "0+"),
        field("generation_id", "int32", "0+"),
        field("member_id", "string", "0+"),
        field("group_instance_id", "string", "3+", nullable="3+", default=None),
        field("polls_positions", "bool", "4+", ignorable=True, tag=10265),
    ],
)

RESPONSE = message(
    "HeartbeatResponse",
    api_key=12,
    versions="0-4",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field("error_code", "int16", "0+"),
    ],
)
