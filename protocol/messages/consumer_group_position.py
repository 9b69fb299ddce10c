"""ConsumerGroupPosition (25300): members of a group exchange their positions (KIP-253, Public Interfaces 3 and 4).

A member sends the request to the group's coordinator as a long poll. ``max_wait_ms``, ``group_instance_id`` and each
partition's incarnation are not in KIP-253. In a request ``need_position`` asks for the group's position, and
``position`` reports the sender's (-1: none). In a response ``need_position`` asks the member to report its position,
and ``position`` is the group's (-1: not known). Errors are Heartbeat's: 14, 15, 16, 22, 25, 27, 82; also 24 for an
empty group id, and 35 while ``group_coordinator`` is finalized below level 2. ApiVersions lists the API at every level.
The response begins with throttle time and error code, as Kafka's do; in KIP-253 the error code comes last.

Each request replaces the member's list of wanted positions. Each response has all wanted positions, and all partitions
that the member has to report.

Any client may send a request with an empty member id and generation -1, and gets the response at once. With
``need_position``, the coordinator asks the partition's owner, if the owner polls, to report until the generation ends.
In the response ``need_position`` means that a member waits for the partition, or may do so. Without topics the response
has all partitions that a member waits for or has reported.

Tag 10283 of a request has the offset that the group must reach before the member delivers waiting records: -1 if no
record waits for this partition, or if the offset is not known yet. The tag serves only metrics. A member requests a
position even after its wait has ended, because the position may be lowered.

Tag 10286 of a request numbers the member's requests. If a request arrives after a later request, its list of wanted
positions is out of date, and replaces nothing. The tag is -1 from a release without it, and from a client that is no
member.

Tag 10263 of a response means that only a live member knows the position: the owner of the partition, which polls or may
poll soon. Until this member reports, a log start beyond the wanted offset proves nothing, because the member's program
may still process the records.

Tag 10273 of a response counts the commits that lowered the group's offset of the partition. If a member knows another
count, it has missed such a commit. Since that commit, the group may have read the records again.

Tag 10288 of a response to a client that is no member is 1 if the owner of the partition has polled, or has announced
polls: only its reports count. It is 0 for another owner, such as a stock client, whose commits are its positions. It is
-1 if the partition has no owner now, and from a release without it.

Tags 10284 and 10285 give the order in which the coordinator made its responses to members. A member polls over two
connections, so responses may arrive in another order. The member drops a response that is older than a response it has
already processed. ``coordinator_epoch`` is the leader epoch in which the coordinator loaded the offsets partition.
``answer_number`` counts the responses since then. Both are -1 in the response of a release without these tags, and in a
response to a client that is no member.
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
        field("poll_number", "int64", "0+", default=-1, ignorable=True, tag=10286),
        _topics("Request", field("awaited_until", "int64", "0+", default=-1, ignorable=True, tag=10283)),
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
        field("coordinator_epoch", "int32", "0+", default=-1, ignorable=True, tag=10284),
        field("answer_number", "int64", "0+", default=-1, ignorable=True, tag=10285),
        _topics(
            "Response",
            field("awaits_report", "bool", "0+", ignorable=True, tag=10263),
            field("rewinds", "int32", "0+", ignorable=True, tag=10273),
            field("owner_reports", "int8", "0+", default=-1, ignorable=True, tag=10288),
        ),
    ],
)
