"""DescribeHolds (25303): which groups a leader waits for before it serves stock consumers more, and since when.

``ordered.delivery.legacy.consumers=hold``. Asked of the leaders of the partitions. ``served_epoch`` is the highest
leader epoch of which such consumers are given batches, -1: none; from ``leader_epoch`` on, all. ``from_partition``,
``leader_epoch`` and ``end_offset`` of a wait: what the group has still to process, -1 where the end is not known;
``position``, where it is, -1: nowhere. Once ``is_let_go`` it is not waited for any more.
"""

from protocol.schema import field, message

REQUEST = message(
    "DescribeHoldsRequest",
    api_key=25303,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]DescribeHoldsRequestTopic",
            "0+",
            fields=[field("name", "string", "0+"), field("partition_indexes", "[]int32", "0+")],
        ),
    ],
)

RESPONSE = message(
    "DescribeHoldsResponse",
    api_key=25303,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]DescribeHoldsResponseTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]DescribeHoldsResponsePartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("leader_epoch", "int32", "0+", default=-1),
                        field("served_epoch", "int32", "0+", default=-1),
                        field(
                            "waits",
                            "[]DescribeHoldsResponseWait",
                            "0+",
                            fields=[
                                field("group_id", "string", "0+"),
                                field("from_partition", "int32", "0+"),
                                field("leader_epoch", "int32", "0+"),
                                field("end_offset", "int64", "0+", default=-1),
                                field("position", "int64", "0+", default=-1),
                                field("waited_ms", "int64", "0+"),
                                field("is_let_go", "bool", "0+"),
                            ],
                        ),
                    ],
                ),
            ],
        ),
    ],
)
