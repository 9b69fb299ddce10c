"""Produce (0): append record batches to partitions.

Version 3 brings the transactional id and record batch v2; 4 means that the client knows KAFKA_STORAGE_ERROR; 5 returns
the log start offset; 7 allows zstd; 8 returns the records at fault and a message; 9 is flexible. Versions 0-2 lack only
the transactional id and may carry old magics. These versions are advertised because librdkafka 2.0 stops compressing
otherwise (KAFKA-18659). A request of these versions gets a typed error. KIP-253: tags 10253 and 10257 are the partition
layout by which the producer placed the records.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ProduceRequest",
    api_key=0,
    versions="0-9",
    flexible="9+",
    fields=[
        field("transactional_id", "string", "3+", nullable="3+", default=None),
        field("acks", "int16", "0+"),
        field("timeout_ms", "int32", "0+"),
        field(
            "topic_data",
            "[]TopicProduceData",
            "0+",
            fields=[
                field("name", "string", "0+", ignorable=True),
                field(
                    "partition_data",
                    "[]PartitionProduceData",
                    "0+",
                    fields=[
                        field("index", "int32", "0+"),
                        field("records", "records", "0+", nullable="0+"),
                    ],
                ),
                field("undeleted_partition_count", "int32", "9+", default=-1, ignorable=True, tag=10253),
                field("layout_version", "int32", "9+", default=-1, ignorable=True, tag=10257),
            ],
        ),
    ],
)

RESPONSE = message(
    "ProduceResponse",
    api_key=0,
    versions="0-9",
    flexible="9+",
    fields=[
        field(
            "responses",
            "[]TopicProduceResponse",
            "0+",
            fields=[
                field("name", "string", "0+", ignorable=True),
                field(
                    "partition_responses",
                    "[]PartitionProduceResponse",
                    "0+",
                    fields=[
                        field("index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("base_offset", "int64", "0+"),
                        field("log_append_time_ms", "int64", "2+", default=-1, ignorable=True),
                        field("log_start_offset", "int64", "5+", default=-1, ignorable=True),
                        field(
                            "record_errors",
                            "[]BatchIndexAndErrorMessage",
                            "8+",
                            ignorable=True,
                            fields=[
                                field("batch_index", "int32", "8+"),
                                field("batch_index_error_message", "string", "8+", nullable="8+", default=None),
                            ],
                        ),
                        field("error_message", "string", "8+", nullable="8+", default=None, ignorable=True),
                    ],
                ),
            ],
        ),
        field("throttle_time_ms", "int32", "1+", ignorable=True),
    ],
)
