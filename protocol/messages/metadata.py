"""Metadata (3): brokers, topics and partitions.

A null topic list asks for all topics; in version 0 an empty list does. Version 1 brings racks, controller and
internal topics; 2 the cluster id; 4 lets the client forbid auto-creation; 5 offline replicas; 7 leader epochs; 8
authorised operations; 9 is flexible; 10 returns topic ids; 11 drops the cluster's authorised operations; from 12 on
clients ask by topic id, and the answer about an unknown id has a null name.
KIP-253: the topic's partition counts, its layout version, whether its delivery is ordered, and each partition's
incarnation. Tag 10267 distinguishes a topic from a deleted one of the same name; the topic id does not, because the
removal of merged partitions changes it.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "MetadataRequest",
    api_key=3,
    versions="0-12",
    flexible="9+",
    fields=[
        field(
            "topics",
            "[]MetadataRequestTopic",
            "0+",
            nullable="1+",
            fields=[
                field("topic_id", "uuid", "10+", ignorable=True),
                field("name", "string", "0+", nullable="10+"),
            ],
        ),
        field("allow_auto_topic_creation", "bool", "4+", default=True),
        field("include_cluster_authorized_operations", "bool", "8-10"),
        field("include_topic_authorized_operations", "bool", "8+"),
    ],
)

RESPONSE = message(
    "MetadataResponse",
    api_key=3,
    versions="0-12",
    flexible="9+",
    fields=[
        field("throttle_time_ms", "int32", "3+", ignorable=True),
        field(
            "brokers",
            "[]MetadataResponseBroker",
            "0+",
            fields=[
                field("node_id", "int32", "0+"),
                field("host", "string", "0+"),
                field("port", "int32", "0+"),
                field("rack", "string", "1+", nullable="1+", default=None, ignorable=True),
            ],
        ),
        field("cluster_id", "string", "2+", nullable="2+", default=None, ignorable=True),
        field("controller_id", "int32", "1+", default=-1, ignorable=True),
        field(
            "topics",
            "[]MetadataResponseTopic",
            "0+",
            fields=[
                field("error_code", "int16", "0+"),
                field("name", "string", "0+", nullable="12+"),
                field("topic_id", "uuid", "10+", ignorable=True),
                field("is_internal", "bool", "1+", ignorable=True),
                field(
                    "partitions",
                    "[]MetadataResponsePartition",
                    "0+",
                    fields=[
                        field("error_code", "int16", "0+"),
                        field("partition_index", "int32", "0+"),
                        field("leader_id", "int32", "0+"),
                        field("leader_epoch", "int32", "7+", default=-1, ignorable=True),
                        field("replica_nodes", "[]int32", "0+"),
                        field("isr_nodes", "[]int32", "0+"),
                        field("offline_replicas", "[]int32", "5+", ignorable=True),
                        field("incarnation", "int64", "9+", default=-1, ignorable=True, tag=10256),
                    ],
                ),
                field("topic_authorized_operations", "int32", "8+", default=-2147483648),
                field("undeleted_partition_count", "int32", "9+", default=-1, ignorable=True, tag=10253),
                field("initial_partition_count", "int32", "9+", default=-1, ignorable=True, tag=10254),
                field("ordered_delivery", "int8", "9+", default=0, ignorable=True, tag=10255),
                field("layout_version", "int32", "9+", default=-1, ignorable=True, tag=10257),
                field("topic_incarnation", "int64", "9+", default=-1, ignorable=True, tag=10267),
            ],
        ),
        field("cluster_authorized_operations", "int32", "8-10", default=-2147483648),
    ],
)
