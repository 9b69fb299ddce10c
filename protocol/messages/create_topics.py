"""CreateTopics (19): create topics. The request gives the replicas, or the controller chooses them.

Version 4 allows -1 for the broker's default partition count and replication factor; 5 is flexible and returns the
configs (with the config sources of DescribeConfigs); 6 may respond with THROTTLING_QUOTA_EXCEEDED; 7 returns topic ids.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "CreateTopicsRequest",
    api_key=19,
    versions="2-7",
    flexible="5+",
    fields=[
        field(
            "topics",
            "[]CreatableTopic",
            "2+",
            fields=[
                field("name", "string", "2+"),
                field("num_partitions", "int32", "2+"),
                field("replication_factor", "int16", "2+"),
                field(
                    "assignments",
                    "[]CreatableReplicaAssignment",
                    "2+",
                    fields=[
                        field("partition_index", "int32", "2+"),
                        field("broker_ids", "[]int32", "2+"),
                    ],
                ),
                field(
                    "configs",
                    "[]CreatableTopicConfig",
                    "2+",
                    fields=[
                        field("name", "string", "2+"),
                        field("value", "string", "2+", nullable="2+"),
                    ],
                ),
            ],
        ),
        field("timeout_ms", "int32", "2+", default=60000),
        field("validate_only", "bool", "2+"),
    ],
)

RESPONSE = message(
    "CreateTopicsResponse",
    api_key=19,
    versions="2-7",
    flexible="5+",
    fields=[
        field("throttle_time_ms", "int32", "2+", ignorable=True),
        field(
            "topics",
            "[]CreatableTopicResult",
            "2+",
            fields=[
                field("name", "string", "2+"),
                field("topic_id", "uuid", "7+", ignorable=True),
                field("error_code", "int16", "2+"),
                field("error_message", "string", "2+", nullable="2+", ignorable=True),
                field("topic_config_error_code", "int16", "5+", ignorable=True, tag=0),
                field("num_partitions", "int32", "5+", default=-1, ignorable=True),
                field("replication_factor", "int16", "5+", default=-1, ignorable=True),
                field(
                    "configs",
                    "[]CreatableTopicConfigs",
                    "5+",
                    nullable="5+",
                    ignorable=True,
                    fields=[
                        field("name", "string", "5+"),
                        field("value", "string", "5+", nullable="5+"),
                        field("read_only", "bool", "5+"),
                        field("config_source", "int8", "5+", default=-1, ignorable=True),
                        field("is_sensitive", "bool", "5+"),
                    ],
                ),
            ],
        ),
    ],
)
