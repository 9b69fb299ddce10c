"""DeleteTopics (20): delete topics with their records and configs.

Version 4 is flexible; 5 returns a message; 6 names topics by name or by id, in ``topics``.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DeleteTopicsRequest",
    api_key=20,
    versions="1-6",
    flexible="4+",
    fields=[
        field(
            "topics",
            "[]DeleteTopicState",
            "6+",
            fields=[
                field("name", "string", "6+", nullable="6+", default=None),
                field("topic_id", "uuid", "6+"),
            ],
        ),
        field("topic_names", "[]string", "1-5", ignorable=True),
        field("timeout_ms", "int32", "1+"),
    ],
)

RESPONSE = message(
    "DeleteTopicsResponse",
    api_key=20,
    versions="1-6",
    flexible="4+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field(
            "responses",
            "[]DeletableTopicResult",
            "1+",
            fields=[
                field("name", "string", "1+", nullable="6+"),
                field("topic_id", "uuid", "6+", ignorable=True),
                field("error_code", "int16", "1+"),
                field("error_message", "string", "5+", nullable="5+", default=None, ignorable=True),
            ],
        ),
    ],
)
