"""The records of ``__transaction_state``: each key and value starts with an int16 version, then the fields below.

A value is flexible from version 1 (KIP-915). Nothing writes these records yet: transactions are not implemented.
``transaction_status`` is Kafka's number: 0 empty, 1 ongoing, 2 prepare commit, 3 prepare abort, 4 complete commit,
5 complete abort, 6 dead, 7 prepare epoch fence.

No higher versions will follow, because older releases could not read their records. New fields are tagged fields of the
highest version (KIP-915).
"""

from anabranch.protocol.schema import field, message

TRANSACTION_LOG_KEY = message(
    "TransactionLogKey",
    versions="0",
    fields=[
        field("transactional_id", "string", "0+"),
    ],
)

TRANSACTION_LOG_VALUE = message(
    "TransactionLogValue",
    versions="0-1",
    flexible="1+",
    fields=[
        field("producer_id", "int64", "0+"),
        field("producer_epoch", "int16", "0+"),
        field("transaction_timeout_ms", "int32", "0+"),
        field("transaction_status", "int8", "0+"),
        field(
            "transaction_partitions",
            "[]TransactionPartitions",
            "0+",
            nullable="0+",
            fields=[
                field("topic", "string", "0+"),
                field("partition_ids", "[]int32", "0+"),
            ],
        ),
        field("transaction_last_update_timestamp_ms", "int64", "0+"),
        field("transaction_start_timestamp_ms", "int64", "0+"),
    ],
)
