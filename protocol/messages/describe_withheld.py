"""DescribeWithheld (25303): the groups for which a leader withholds records from stock consumers, and for how long.

Only topics with ``ordered.delivery.stock.consumers=withhold`` have any. Partition leaders respond. ``served_epoch``
is the highest leader epoch whose batches stock consumers get, -1 for none. If ``served_epoch`` equals ``leader_epoch``,
stock consumers get all batches. A wait ends when the group has processed ``from_partition`` up to the end of
``leader_epoch``. That end is ``end_offset``, -1 while it is not known. ``position`` is the group's, -1 for none. A
leader no longer waits for a group with ``is_let_go``.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeWithheldRequest",
    api_key=25303,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]DescribeWithheldRequestTopic",
            "0+",
            fields=[field("name", "string", "0+"), field("partition_indexes", "[]int32", "0+")],
        ),
    ],
)

RESPONSE = message(
    "DescribeWithheldResponse",
    api_key=25303,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]DescribeWithheldResponseTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]DescribeWithheldResponsePartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("leader_epoch", "int32", "0+", default=-1),
                        field("served_epoch", "int32", "0+", default=-1),
                        field(
                            "waits",
                            "[]DescribeWithheldResponseWait",
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
