"""CreatePartitions (37): change the partition count of topics.

Version 2 is flexible; 3 may respond with THROTTLING_QUOTA_EXCEEDED. With ``validate_only``, tag 10279 of a topic asks
for the bytes appended to the topic, as the controller measured them, instead of a validation. The response has these
measurements in tags 10269 to 10271. In the same way, tag 10280 asks for the partition count of the last resize, done or
not (tag 10278), and for the queued count (tag 10289; -1: none).

Tag 10295 is the check for stock clients. A broker sets it to 1 in a request without tag 10287 in its header, and
forwards the request in version 2 or later. Then a count is refused with POLICY_VIOLATION if it is lower than the
present one, or if ``hash % count`` misplaces keys. It is accepted all the same if the topic has no records. The
topic key ``ordered.delivery.stock.admin=accept`` allows such counts. A manual edit of the topic's znode, which is the
way of KIP-253, is not checked. With ``validate_only``, the value 2 refuses a count that a stock producer cannot follow,
if it wrote lately. Otherwise the response warns of such a producer.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "CreatePartitionsRequest",
    api_key=37,
    versions="0-3",
    flexible="2+",
    fields=[
        field(
            "topics",
            "[]CreatePartitionsTopic",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field("count", "int32", "0+"),
                field(
                    "assignments",
                    "[]CreatePartitionsAssignment",
                    "0+",
                    nullable="0+",
                    fields=[
                        field("broker_ids", "[]int32", "0+"),
                    ],
                ),
                field("wants_measured", "bool", "2+", default=False, ignorable=True, tag=10279),
                field("wants_goal", "bool", "2+", default=False, ignorable=True, tag=10280),
            ],
        ),
        field("timeout_ms", "int32", "0+"),
        field("validate_only", "bool", "0+"),
        field("stock_check", "int8", "2+", default=0, ignorable=True, tag=10295),
    ],
)

RESPONSE = message(
    "CreatePartitionsResponse",
    api_key=37,
    versions="0-3",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field(
            "results",
            "[]CreatePartitionsTopicResult",
            "0+",
            fields=[
                field("name", "string", "0+"),
                field("error_code", "int16", "0+"),
                field("error_message", "string", "0+", nullable="0+", default=None),
                field("appended_bytes", "int64", "2+", default=-1, ignorable=True, tag=10269),
                field("elapsed_ms", "int64", "2+", default=-1, ignorable=True, tag=10270),
                field("unchanged_ms", "int64", "2+", default=-1, ignorable=True, tag=10271),
                field("goal_count", "int32", "2+", default=-1, ignorable=True, tag=10278),
                field("queued_count", "int32", "2+", default=-1, ignorable=True, tag=10289),
            ],
        ),
    ],
)
