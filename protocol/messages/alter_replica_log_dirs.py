"""AlterReplicaLogDirs (34): move replicas to another log directory of the same broker.

Version 2 is flexible.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "AlterReplicaLogDirsRequest",
    api_key=34,
    versions="1-2",
    flexible="2+",
    fields=[
        field(
            "dirs",
            "[]AlterReplicaLogDir",
            "1+",
            fields=[
                field("path", "string", "1+"),
                field(
                    "topics",
                    "[]AlterReplicaLogDirTopic",
                    "1+",
                    fields=[
                        field("name", "string", "1+"),
                        field("partitions", "[]int32", "1+"),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "AlterReplicaLogDirsResponse",
    api_key=34,
    versions="1-2",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "1+"),
        field(
            "results",
            "[]AlterReplicaLogDirTopicResult",
            "1+",
            fields=[
                field("topic_name", "string", "1+"),
                field(
                    "partitions",
                    "[]AlterReplicaLogDirPartitionResult",
                    "1+",
                    fields=[
                        field("partition_index", "int32", "1+"),
                        field("error_code", "int16", "1+"),
                    ],
                ),
            ],
        ),
    ],
)
