"""InitProducerId (22): a producer id for an idempotent or transactional producer.

Version 2 is flexible; 3 lets a producer ask for the next epoch of its id; 4 means that the client knows
PRODUCER_FENCED.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "InitProducerIdRequest",
    api_key=22,
    versions="0-4",
    flexible="2+",
    fields=[
        field("transactional_id", "string", "0+", nullable="0+"),
        field("transaction_timeout_ms", "int32", "0+"),
        field("producer_id", "int64", "3+", default=-1),
        field("producer_epoch", "int16", "3+", default=-1),
    ],
)

RESPONSE = message(
    "InitProducerIdResponse",
    api_key=22,
    versions="0-4",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "0+", ignorable=True),
        field("error_code", "int16", "0+"),
        field("producer_id", "int64", "0+", default=-1),
        field("producer_epoch", "int16", "0+"),
    ],
)
