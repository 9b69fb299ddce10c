"""TopicReaders (25302), between brokers: the groups of a coordinator that read a topic, and their positions.

A partition leader sends this request, to decide up to which offset it may serve consumers that do not keep the order of
keys themselves (``ordered.delivery.stock.consumers=withhold``). ``coordinators`` are the partitions of the offsets
topic whose groups are in the response. The broker certainly led such a partition ``confirmed_ms_ago`` milliseconds ago;
since then another broker may have become the leader, with other groups.

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
            fields=[field("name", "string", "0+"), field("partition_indexes", "[]int32", "0+")],
        ),
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
                        field(
                            "partitions",
                            "[]TopicReadersResponsePartition",
                            "0+",
                            fields=[
                                field("partition_index", "int32", "0+"),
                                field("position", "int64", "0+", default=-1),
                                field("is_reported", "bool", "0+"),
                            ],
                        ),
                    ],
                ),
            ],
        ),
    ],
)
