"""TopicReaders (25302): which groups of a coordinator read a topic, and how far they are. Between brokers.

A partition leader asks, to decide how far it may serve consumers that do not keep the order of keys themselves
(``ordered.delivery.legacy.consumers=hold``). ``coordinators`` are the partitions of the offsets topic whose groups are
in the answer. The broker surely led such a partition until ``confirmed_ms_ago``; since then another broker may lead it
and have other groups.

``life`` distinguishes a group from a deleted one of the same name. ``position`` is the first offset that the group has
not processed, -1: not known, or none. With ``is_reported`` a live member reports positions, and a log start does not
count as one.
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
