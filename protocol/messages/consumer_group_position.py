"""ConsumerGroupPosition (25300): members of a group tell each other how far they are (KIP-253, Public Interfaces 3, 4).

A long poll of the group's coordinator, beside KIP-253's fields: ``max_wait_ms``, ``group_instance_id`` and each
partition's incarnation. In a request ``need_position`` says "tell me the group's position", and ``position`` (-1: none)
reports that of the member that sends it; in a response ``need_position`` says "report yours", and ``position`` is the
group's (-1: not known). Errors are Heartbeat's: 14, 15, 16, 22, 25, 27, 82.

Each request replaces what the member wants to be told, each answer names all of it and all that is to be reported. With
an empty member id and generation -1 it is a question that anybody may ask: answered at once. Its ``need_position`` has
the owner, if it polls, asked to report until the generation ends; in the answer it says that somebody waits. Without
topics it is about all that is waited for or was reported.

Tag 10263 of an answer says that a live member alone can tell the position: it owns the partition, or may still do so.
Until it has, that the log begins behind what is waited for says nothing: the records may be with its user.

Tag 10273 of an answer counts how often a commit of the group lowered its offset of the partition. A member that knows
another count has missed that the group went back, and has perhaps read everything again since.
"""

from anabranch.protocol.schema import Field, field, message


def _topics(name: str, *more: Field) -> Field:
    return field(
        "topics",
        f"[]ConsumerGroupPosition{name}Topic",
        "0+",
        fields=[
            field("name", "string", "0+"),
            field(
                "partitions",
                f"[]ConsumerGroupPosition{name}Partition",
                "0+",
                fields=[
                    field("partition_index", "int32", "0+"),
                    field("incarnation", "int64", "0+", default=-1),
                    field("need_position", "bool", "0+"),
                    field("position", "int64", "0+", default=-1),
                    *more,
                ],
            ),
        ],
    )


REQUEST = message(
    "ConsumerGroupPositionRequest",
    api_key=25300,
    versions="0",
    flexible="0+",
    fields=[
        field("group_id", "string", "0+"),
        field("generation_id", "int32", "0+"),
        field("member_id", "string", "0+"),
        field("group_instance_id", "string", "0+", nullable="0+", default=None),
        field("max_wait_ms", "int32", "0+"),
        _topics("Request"),
    ],
)

RESPONSE = message(
    "ConsumerGroupPositionResponse",
    api_key=25300,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        _topics(
            "Response",
            field("awaits_report", "bool", "0+", ignorable=True, tag=10263),
            field("rewinds", "int32", "0+", ignorable=True, tag=10273),
        ),
    ],
)
