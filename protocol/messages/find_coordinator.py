"""FindCoordinator (10): the broker that coordinates a group (key type 0) or a transactional id (1).

Version 1 brings key types and an error message; 3 is flexible; 4 asks for several keys at once.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "FindCoordinatorRequest",
    api_key=10,
    versions="0-4",
    flexible="3+",
    fields=[
        field("key", "string", "0-3"),
        field("key_type", "int8", "1+"),
        field("coordinator_keys", "[]string", "4+"),
    ],
)

RESPONSE = message(
    "FindCoordinatorResponse",
    api_key=10,
    versions="0-4",
    flexible="3+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field("error_code", "int16", "0-3"),
        field("error_message", "string", "1-3", nullable="1-3", ignorable=True),
        field("node_id", "int32", "0-3"),
        field("host", "string", "0-3"),
        field("port", "int32", "0-3"),
        field(
            "coordinators",
            "[]Coordinator",
            "4+",
            fields=[
                field("key", "string", "4+"),
                field("node_id", "int32", "4+"),
                field("host", "string", "4+"),
                field("port", "int32", "4+"),
                field("error_code", "int16", "4+"),
                field("error_message", "string", "4+", nullable="4+", ignorable=True),
            ],
        ),
    ],
)
