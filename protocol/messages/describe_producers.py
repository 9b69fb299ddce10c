"""DescribeProducers (61): the producers whose state a partition keeps.

Tag 10274 (Anabranch's) asks for the producers without any record left in the log. A follower that has to begin at its
leader's log start sets the tag, because it cannot read the state of these producers from records. The response has the
state in tag 10302, as a ``.snapshot`` file, and in tag 10303 as the ``.producers`` file beside it.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeProducersRequest",
    api_key=61,
    versions="0",
    flexible="0+",
    fields=[
        field(
            "topics",
            "[]TopicRequest",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field("partition_indexes", "[]int32", "0+"),
            ],
        ),
        field("without_records", "bool", "0+", ignorable=True, tag=10274),
    ],
)

RESPONSE = message(
    "DescribeProducersResponse",
    api_key=61,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "topics",
            "[]TopicResponse",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]PartitionResponse",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("error_code", "int16", "0+"),
                        field("error_message", "string", "0+", nullable="0+", default=None),
                        field("snapshot", "bytes", "0+", ignorable=True, tag=10302),
                        field("kept", "bytes", "0+", ignorable=True, tag=10303),
                        field(
                            "active_producers",
                            "[]ProducerState",
                            "0+",
                            fields=[
                                field("producer_id", "int64", "0+"),
                                field("producer_epoch", "int32", "0+"),
                                field("last_sequence", "int32", "0+", default=-1),
                                field("last_timestamp", "int64", "0+", default=-1),
                                field("coordinator_epoch", "int32", "0+"),
                                field("current_txn_start_offset", "int64", "0+", default=-1),
                            ],
                        ),
                    ],
                ),
            ],
        ),
    ],
)
