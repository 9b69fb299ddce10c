"""DeleteRecords (21): move the start of partitions up to an offset; -1 is the high watermark.

Version 2 is flexible. Tag 10268 (Anabranch's) is the only leader epoch in which the records may be deleted, -1 for any.
A program that drains a closed partition (KIP-253) sets this tag, so that nothing is deleted after a layout counts the
partition again.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DeleteRecordsRequest",
    api_key=21,
    versions="0-2",
    flexible="2+",
    fields=[
        field(
            "topics",
            "[]DeleteRecordsTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]DeleteRecordsPartition",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("offset", "int64", "0+"),
                        field("leader_epoch", "int32", "2+", default=-1, ignorable=True, tag=10268),
                    ],
                ),
            ],
        ),
        field("timeout_ms", "int32", "0+"),
    ],
)

RESPONSE = message(
    "DeleteRecordsResponse",
    api_key=21,
    versions="0-2",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "topics",
            "[]DeleteRecordsTopicResult",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field(
                    "partitions",
                    "[]DeleteRecordsPartitionResult",
                    "0+",
                    fields=[
                        field("partition_index", "int32", "0+"),
                        field("low_watermark", "int64", "0+"),
                        field("error_code", "int16", "0+"),
                    ],
                ),
            ],
        ),
    ],
)
