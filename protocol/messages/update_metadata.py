"""UpdateMetadata (6): the controller sends a broker the brokers, topics and leaders of the cluster.

Only version 7 is implemented: grouped by topic, with topic ids, flexible. KIP-253 tags carry the topic's partition
counts, its layout version, whether its delivery is ordered (-1: its configuration decides), and each partition's
incarnation. Tag 10267 distinguishes a topic from a deleted one of the same name.

Three tags announce a split that producers without a layout can follow. Tag 10290 is the new count, which brokers show
to these producers. With tag 10291 brokers refuse a batch with a key that moves, so that its producer refreshes its
metadata. Tag 10292 names the future leaders of the new partitions. For each named topic to which such producers wrote,
the response has the time of their last write, and of their last batch with a key that moves.

Tag 10293 of a topic asks for the bytes that this broker has appended to it. Tag 10272 of a partition makes its leader
retain records against retention by time. The tag has the first retained offset, the duration, and the group that has
yet to read the records ("": not known). The tag is None when nothing is retained.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "UpdateMetadataRequest",
    api_key=6,
    versions="7",
    flexible="7+",
    fields=[
        field("controller_id", "int32", "7+"),
        field("controller_epoch", "int32", "7+"),
        field("broker_epoch", "int64", "7+", default=-1, ignorable=True),
        field(
            "topic_states",
            "[]UpdateMetadataTopicState",
            "7+",
            fields=[
                field("topic_name", "string", "7+"),
                field("topic_id", "uuid", "7+", ignorable=True),
                field(
                    "partition_states",
                    "[]UpdateMetadataPartitionState",
                    "7+",
                    fields=[
                        field("partition_index", "int32", "7+"),
                        field("controller_epoch", "int32", "7+"),
                        field("leader", "int32", "7+"),
                        field("leader_epoch", "int32", "7+"),
                        field("isr", "[]int32", "7+"),
                        field("zk_version", "int32", "7+"),
                        field("replicas", "[]int32", "7+"),
                        field("offline_replicas", "[]int32", "7+", ignorable=True),
                        field("incarnation", "int64", "7+", default=-1, ignorable=True, tag=10256),
                        field("base_offset", "int64", "7+", default=-1, ignorable=True, tag=10261),
                        field(
                            "retained",
                            "RetainedFrom",
                            "7+",
                            ignorable=True,
                            tag=10272,
                            fields=[
                                field("offset", "int64", "7+", default=-1),
                                field("retained_ms", "int64", "7+", default=-1),
                                field("group_id", "string", "7+"),
                            ],
                        ),
                    ],
                ),
                field("undeleted_partition_count", "int32", "7+", default=-1, ignorable=True, tag=10253),
                field("initial_partition_count", "int32", "7+", default=-1, ignorable=True, tag=10254),
                field("ordered_delivery", "int8", "7+", default=-1, ignorable=True, tag=10255),
                field("layout_version", "int32", "7+", default=-1, ignorable=True, tag=10257),
                field("topic_incarnation", "int64", "7+", default=-1, ignorable=True, tag=10267),
                field("announced_partition_count", "int32", "7+", default=-1, ignorable=True, tag=10290),
                field("refreshes_stock_producers", "bool", "7+", default=False, ignorable=True, tag=10291),
                field("announced_leaders", "[]int32", "7+", ignorable=True, tag=10292),
                field("wants_appended_bytes", "bool", "7+", default=False, ignorable=True, tag=10293),
            ],
        ),
        field(
            "live_brokers",
            "[]UpdateMetadataBroker",
            "7+",
            fields=[
                field("id", "int32", "7+"),
                field(
                    "endpoints",
                    "[]UpdateMetadataEndpoint",
                    "7+",
                    ignorable=True,
                    fields=[
                        field("port", "int32", "7+"),
                        field("host", "string", "7+"),
                        field("listener", "string", "7+", ignorable=True),
                        field("security_protocol", "int16", "7+"),
                    ],
                ),
                field("rack", "string", "7+", nullable="7+", ignorable=True),
            ],
        ),
    ],
)

RESPONSE = message(
    "UpdateMetadataResponse",
    api_key=6,
    versions="7",
    flexible="7+",
    fields=[
        field("error_code", "int16", "7+"),
        field(
            "appended_bytes",
            "[]AppendedBytesOfTopic",
            "7+",
            ignorable=True,
            tag=10269,
            fields=[
                field("topic_name", "string", "7+"),
                field("bytes_since_start", "int64", "7+"),
            ],
        ),
        field(
            "stock_producers",
            "[]StockProducersOfTopic",
            "7+",
            ignorable=True,
            tag=10294,
            fields=[
                field("topic_name", "string", "7+"),
                field("written_ms_ago", "int64", "7+"),
                field("misplaced_ms_ago", "int64", "7+", default=-1),
            ],
        ),
    ],
)
