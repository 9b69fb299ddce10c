"""TopicReaders (25302), between brokers: the groups of a coordinator that read a topic, and their positions.

A partition leader sends this request, to decide up to which offset it may serve consumers that do not keep the order of
keys themselves (``ordered.delivery.stock.consumers=withhold``). ``coordinators`` are the partitions of the offsets
topic whose groups are in the response. The broker certainly led such a partition ``confirmed_ms_ago`` milliseconds ago;
since then another broker may have become the leader, with other groups.

A controller sends it too, with ``questions``, to decide about partitions marked for deletion and about retention. Then
the leadership is always confirmed after the request arrived. The response has every group that has committed an offset
of the topic (``has_committed``), or that has a member that subscribes to the topic, or may have such a member.
``is_reading`` is false if it is not known whether the group reads the topic: it is in a rebalance (not ``is_settled``),
or the subscription of ``unreadable_member`` cannot be read. ``group_ids`` limits the groups. In a question,
``incarnation`` is the partition's; a commit of another one does not count. If the group has committed ``ask_from``, the
owner is asked to report its position (0: even without a commit; -1: the owner is not asked). ``need_position`` means
that a member waits for the position, or may do so.

``life`` distinguishes a group from a deleted one of the same name. ``position`` is the first offset that the group has
not processed; -1 when there is no position, or it is not known. ``is_reported`` means that a live member reports the
group's positions; the start of the log then does not count as a position.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "TopicReadersRequest",
    api_key=25302,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]TopicReadersRequestTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field("partition_indexes", "[]int32", "0+"),
                field(
                    "questions",
                    "[]TopicReadersRequestQuestion",
                    "0+",
                    ignorable=True,
                    tag=10306,
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("incarnation", "int64", "0+", default=-1),
                        field("ask_from", "int64", "0+", default=-1),
                    ],
                ),
            ],
        ),
        field("group_ids", "[]string", "0+", ignorable=True, tag=10307),
    ],
)

RESPONSE = message(
    "TopicReadersResponse",
    api_key=25302,
    versions="0",
    flexible="0+",
    fields=[
        field("error_code", "int16", "0+"),
        field(
            "coordinators",
            "[]TopicReadersResponseCoordinator",
            "0+",
            fields=[field("partition_index", "int32", "0+"), field("confirmed_ms_ago", "int64", "0+")],
        ),
        field(
            "topics",
            "[]TopicReadersResponseTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "groups",
                    "[]TopicReadersResponseGroup",
                    "0+",
                    fields=[
                        field("group_id", "string", "0+"),
                        field("life", "int64", "0+"),
                        field("is_reading", "bool", "0+", ignorable=True, tag=10308),
                        field("has_committed", "bool", "0+", ignorable=True, tag=10309),
                        field("is_settled", "bool", "0+", ignorable=True, tag=10310),
                        field("unreadable_member", "string", "0+", ignorable=True, tag=10311),
                        field(
                            "partitions",
                            "[]TopicReadersResponsePartition",
                            "0+",
                            fields=[
                                field("partition_index", "int32", "0+"),
                                field("position", "int64", "0+", default=-1),
                                field("is_reported", "bool", "0+"),
                                field("committed_offset", "int64", "0+", default=-1, ignorable=True, tag=10312),
                                field("need_position", "bool", "0+", ignorable=True, tag=10313),
                            ],
                        ),
                    ],
                ),
            ],
        ),
    ],
)
