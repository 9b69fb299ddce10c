"""AlterPartition (56), in Kafka 3.0 still named AlterIsr: a leader asks the controller to change the ISR.

Only version 0. KIP-903: tag 10259 holds the broker epoch of each member of ``new_isr``, -1 where the leader has none.
In Kafka, the structs of request and response have the same names. Here the names in the response start with
``AlterPartitionResponse``.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "AlterPartitionRequest",
    api_key=56,
    versions="0",
    flexible="0+",
    fields=[
        field("broker_id", "int32", "0+"),
        field("broker_epoch", "int64", "0+", default=-1),
        field(
            "topics",
            "[]TopicData",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]PartitionData",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("leader_epoch", "int32", "0+"),
                        field("new_isr", "[]int32", "0+"),
                        field("current_isr_version", "int32", "0+"),
                        field("new_isr_epochs", "[]int64", "0+", ignorable=True, tag=10259),
                    ],
                ),
            ],
        ),
    ],
)

RESPONSE = message(
    "AlterPartitionResponse",
    api_key=56,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        field(
            "topics",
            "[]AlterPartitionResponseTopicData",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]AlterPartitionResponsePartitionData",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("leader_id", "int32", "0+"),
                        field("leader_epoch", "int32", "0+"),
                        field("isr", "[]int32", "0+"),
                        field("current_isr_version", "int32", "0+"),
                    ],
                ),
            ],
        ),
    ],
)
