"""LeaderAndIsr (4): the controller sends a broker the partitions that it leads or follows.

Only version 5 is implemented: grouped by topic, with topic ids; requests and responses are flexible. Type 2 is a full
list, 1 an incremental one, 0 not known. Tag 10266 (Anabranch's) counts how often the controller has read the cluster in
its term; a broker refuses a request with a lower count. The KIP-253 tags are fields of the partition, because the
partitions of a topic may differ during a resize. ``ordered_delivery`` is -1 before the first resize, when the
configuration decides. The base offset (Anabranch's, tag 10261) is the first offset of a new log. The base offset is
above 0 for a partition that was removed and created again. Tag 10296 of a response says why ZooKeeper's data are older
than the log here (FENCED_LEADER_EPOCH).
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "LeaderAndIsrRequest",
    api_key=4,
    versions="5",
    flexible="5+",
    fields=[
        field("controller_id", "int32", "5+"),
        field("controller_epoch", "int32", "5+"),
        field("broker_epoch", "int64", "5+", default=-1, ignorable=True),
        field("type", "int8", "5+"),
        field("image_number", "int32", "5+", default=0, ignorable=True, tag=10266),
        field(
            "topic_states",
            "[]LeaderAndIsrTopicState",
            "5+",
            fields=[
                field("topic_name", "string", "5+"),
                field("topic_id", "uuid", "5+", ignorable=True),
                field(
                    "partition_states",
                    "[]LeaderAndIsrPartitionState",
                    "5+",
                    fields=[
                        field("partition_index", "int32", "5+"),
                        field("controller_epoch", "int32", "5+"),
                        field("leader", "int32", "5+"),
                        field("leader_epoch", "int32", "5+"),
                        field("isr", "[]int32", "5+"),
                        field("zk_version", "int32", "5+"),
                        field("replicas", "[]int32", "5+"),
                        field("adding_replicas", "[]int32", "5+", ignorable=True),
                        field("removing_replicas", "[]int32", "5+", ignorable=True),
                        field("is_new", "bool", "5+", ignorable=True),
                        field("undeleted_partition_count", "int32", "5+", default=-1, ignorable=True, tag=10253),
                        field("initial_partition_count", "int32", "5+", default=-1, ignorable=True, tag=10254),
                        field("ordered_delivery", "int8", "5+", default=-1, ignorable=True, tag=10255),
                        field("incarnation", "int64", "5+", default=-1, ignorable=True, tag=10256),
                        field("layout_version", "int32", "5+", default=-1, ignorable=True, tag=10257),
                        field("base_offset", "int64", "5+", default=0, ignorable=True, tag=10261),
                    ],
                ),
            ],
        ),
        field(
            "live_leaders",
            "[]LeaderAndIsrLiveLeader",
            "5+",
            fields=[
                field("broker_id", "int32", "5+"),
                field("host_name", "string", "5+"),
                field("port", "int32", "5+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "LeaderAndIsrResponse",
    api_key=4,
    versions="5",
    flexible="5+",
    fields=[
        field("error_code", "int16", "5+"),
        field(
            "topics",
            "[]LeaderAndIsrTopicError",
            "5+",
            fields=[
                field("topic_id", "uuid", "5+"),
                field(
                    "partition_errors",
                    "[]LeaderAndIsrPartitionError",
                    "5+",
                    fields=[
                        field("partition_index", "int32", "5+"),
                        field("error_code", "int16", "5+"),
                        field("error_message", "string", "5+", nullable="5+", default=None, ignorable=True, tag=10296),
                    ],
                ),
            ],
        ),
    ],
)
