"""Fetch (1): read record batches from partitions.

Version 4 brings the isolation level and aborted transactions; 5 the log start offset; 7 incremental sessions
(KIP-227); 8 means that the client accepts the response before it is throttled; 9 brings the client's leader epoch; 10
allows zstd; 11 brings rack and preferred read replica (KIP-392); 12 is flexible and returns the diverging epoch.
Version 13 (topic ids) is not implemented. The tagged structs are None when they are not sent.
KIP-903: tag 10258 is a follower's broker epoch, which Kafka's version 15 sends in a struct of its own.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "FetchRequest",
    api_key=1,
    versions="4-12",
    flexible="12+",
    fields=[
        field("cluster_id", "string", "12+", nullable="12+", default=None, ignorable=True, tag=0),
        field("replica_id", "int32", "4+", default=-1),
        field("max_wait_ms", "int32", "4+"),
        field("min_bytes", "int32", "4+"),
        field("max_bytes", "int32", "4+", default=2147483647, ignorable=True),
        field("isolation_level", "int8", "4+", ignorable=True),
        field("session_id", "int32", "7+", ignorable=True),
        field("session_epoch", "int32", "7+", default=-1, ignorable=True),
        field(
            "topics",
            "[]FetchTopic",
            "4+",
            fields=[
                field("topic", "string", "4+", ignorable=True),
                field(
                    "partitions",
                    "[]FetchPartition",
                    "4+",
                    fields=[
                        field("partition", "int32", "4+"),
                        field("current_leader_epoch", "int32", "9+", default=-1, ignorable=True),
                        field("fetch_offset", "int64", "4+"),
                        field("last_fetched_epoch", "int32", "12+", default=-1),
                        field("log_start_offset", "int64", "5+", default=-1, ignorable=True),
                        field("partition_max_bytes", "int32", "4+"),
                    ],
                ),
            ],
        ),
        field(
            "forgotten_topics_data",
            "[]ForgottenTopic",
            "7+",
            fields=[
                field("topic", "string", "7+", ignorable=True),
                field("partitions", "[]int32", "7+"),
            ],
        ),
        field("rack_id", "string", "11+", ignorable=True),
        field("replica_epoch", "int64", "12+", default=-1, ignorable=True, tag=10258),
    ],
)

RESPONSE = message(
    "FetchResponse",
    api_key=1,
    versions="4-12",
    flexible="12+",
    fields=[
        field("throttle_time_ms", "int32", "4+", ignorable=True),
        field("error_code", "int16", "7+", ignorable=True),
        field("session_id", "int32", "7+"),
        field(
            "responses",
            "[]FetchableTopicResponse",
            "4+",
            fields=[
                field("topic", "string", "4+", ignorable=True),
                field(
                    "partitions",
                    "[]PartitionData",
                    "4+",
                    fields=[
                        field("partition_index", "int32", "4+"),
                        field("error_code", "int16", "4+"),
                        field("high_watermark", "int64", "4+"),
                        field("last_stable_offset", "int64", "4+", default=-1, ignorable=True),
                        field("log_start_offset", "int64", "5+", default=-1, ignorable=True),
                        field(
                            "diverging_epoch",
                            "EpochEndOffset",
                            "12+",
                            tag=0,
                            fields=[
                                field("epoch", "int32", "12+", default=-1),
                                field("end_offset", "int64", "12+", default=-1),
                            ],
                        ),
                        field(
                            "current_leader",
                            "LeaderIdAndEpoch",
                            "12+",
                            tag=1,
                            fields=[
                                field("leader_id", "int32", "12+", default=-1),
                                field("leader_epoch", "int32", "12+", default=-1),
                            ],
                        ),
                        field(
                            "snapshot_id",
                            "SnapshotId",
                            "12+",
                            tag=2,
                            fields=[
                                field("end_offset", "int64", "4+", default=-1),
                                field("epoch", "int32", "4+", default=-1),
                            ],
                        ),
                        field(
                            "aborted_transactions",
                            "[]AbortedTransaction",
                            "4+",
                            nullable="4+",
                            ignorable=True,
                            fields=[
                                field("producer_id", "int64", "4+"),
                                field("first_offset", "int64", "4+"),
                            ],
                        ),
                        field("preferred_read_replica", "int32", "11+", default=-1),
                        field("records", "records", "4+", nullable="4+"),
                    ],
                ),
            ],
        ),
    ],
)
