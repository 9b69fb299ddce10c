"""TopicReaders (25302): which groups of a coordinator read a topic, and how far they are. Between brokers.

The leader of a partition asks it to know how far it may serve consumers that do not keep the order of keys themselves
(``ordered.delivery.legacy.consumers=hold``). ``coordinators`` are the partitions of the offsets topic whose groups are
in the answer; ``confirmed_ms_ago`` is since when another broker may lead one, and know of groups that are not in it.

``life`` tells a group from one of the same name that was deleted. ``position`` is the first offset that the group has
not processed, -1 where it is not known or the group has none; ``is_reported`` says that a live member alone can tell.
"""

from protocol.schema import field, message

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
