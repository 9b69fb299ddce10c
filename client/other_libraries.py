"""What users of other libraries type, and what to use here. The texts of errors, as data.

``docs/from-other-clients.md`` has all calls in tables.
"""

from __future__ import annotations

from collections.abc import Mapping

PAGE = "docs/from-other-clients.md"
_ITSELF = "no such call is needed: the client sends by itself"
_NO_TRANSACTIONS = "there are no transactions yet"
_NO_SECURITY = "there is no security yet: connections are plaintext"
_NO_END = f"compare position(tp) with end_offsets([tp]): {PAGE} has a program that reads to the end and stops"
_LISTENER = "use listener=, an object with the method on_partitions_assigned or on_partitions_revoked"
_ON_DELIVERY = "use on_delivery=, a function of (error, metadata)"
MILLISECONDS = "use timeout_ms=, in milliseconds"

METHODS: Mapping[str, Mapping[str, str]] = {
    "Producer": {
        "produce": "use send(topic, value, key)",
        "poll": _ITSELF,
        "list_partitions": "use partitions_for(topic)",
        **dict.fromkeys(
            (
                "init_transactions",
                "begin_transaction",
                "commit_transaction",
                "abort_transaction",
                "send_offsets_to_transaction",
            ),
            _NO_TRANSACTIONS,
        ),
    },
    "Consumer": {
        "consume": "use getmany(max_records=, timeout_ms=)",
        "consumer_group_metadata": _NO_TRANSACTIONS,
        "commit_async": "use commit()",
        "unassign": "use unsubscribe() or assign([])",
        "wakeup": "cancel the task that waits, or use anabranch.sync.Consumer",
    },
    "Admin": {
        "poll": _ITSELF,
        "list_consumer_groups": "use list_groups()",
        "describe_consumer_groups": "use describe_groups()",
        "delete_consumer_groups": "use delete_groups()",
        "list_consumer_group_offsets": "use list_group_offsets()",
        "alter_consumer_group_offsets": "use alter_group_offsets()",
    },
}
"""By class: methods. The blocking consumer has ``wakeup``."""

PARAMETERS: Mapping[str, str] = {
    **dict.fromkeys(("on_assign", "on_revoke", "on_lost"), f"{_LISTENER}, see {PAGE}"),
    "message": "use offsets={tp: message.offset + 1}",
    "asynchronous": "the call waits; enable_auto_commit commits in the background",
    **dict.fromkeys(("timeout", "request_timeout"), "the configuration limits the time of a call"),
    "flush.timeout": "flush waits until each record has an outcome, which delivery_timeout_ms of the producer limits",
    "close.timeout": MILLISECONDS,
    "operation_timeout": MILLISECONDS,
    **dict.fromkeys(("callback", "on_success", "on_error"), _ON_DELIVERY),
    "timestamp": "use timestamp_ms=",
    **dict.fromkeys(("config", "topic_configs"), "use configs="),
    "replica_assignment": "use replica_assignments={partition: brokers}",
    "new_topics": "use topics=",
    "poll.timeout_ms": "use timeout=, in seconds, or getmany(timeout_ms=)",
}
"""Keyword arguments of methods, or of one method."""
POSITIONS: Mapping[str, str] = {
    "Producer": "give the configuration as keyword arguments",
    "Admin": "give the configuration as keyword arguments",
    "flush": PARAMETERS["flush.timeout"],
    "close": MILLISECONDS,
    "subscribe": PARAMETERS["on_assign"],
}
"""By method: what to do instead of an argument by position that the method does not have."""

KEYS: Mapping[str, str] = {
    "enable_partition_eof": _NO_END,
    "consumer_timeout_ms": "use poll(timeout), in seconds",
    "on_commit": "commit() raises the error of a commit",
    **dict.fromkeys(("on_delivery", "dr_cb", "dr_msg_cb"), "use send(on_delivery=)"),
    **dict.fromkeys(("error_cb", "throttle_cb"), "errors are raised, and the loggers of anabranch.client warn"),
    "stats_cb": "use metrics()",
    "statistics_interval_ms": "use metrics()",
    **dict.fromkeys(("logger", "log_level", "debug"), "set the level of the logger anabranch.client"),
    **dict.fromkeys(("transactional_id", "transaction_timeout_ms"), _NO_TRANSACTIONS),
    "security_protocol": _NO_SECURITY,
    **dict.fromkeys(
        ("api_version", "api_version_auto_timeout_ms", "loop"), "leave it out: the client finds it by itself"
    ),
}
"""Keys of configuration, with ``_`` for ``.``."""
KEY_BEGINNINGS: Mapping[str, str] = dict.fromkeys(("sasl_", "ssl_"), _NO_SECURITY)

_ADMIN = "use Admin"
_CONSUMER, _PRODUCER = "use Consumer", "use Producer"
_SERIALIZERS = "use {}(key_{}=, value_{}=)"
NAMES: Mapping[str, str] = {
    **dict.fromkeys(("AdminClient", "KafkaAdminClient", "AIOKafkaAdminClient"), _ADMIN),
    **dict.fromkeys(("KafkaConsumer", "AIOKafkaConsumer", "AIOConsumer"), _CONSUMER),
    **dict.fromkeys(("KafkaProducer", "AIOKafkaProducer", "AIOProducer"), _PRODUCER),
    "SerializingProducer": _SERIALIZERS.format("Producer", "serializer", "serializer"),
    "DeserializingConsumer": _SERIALIZERS.format("Consumer", "deserializer", "deserializer"),
    "KafkaException": "use KafkaError, which is raised itself and has its number as error.code",
    "KafkaConnectionError": "use KafkaError",
    "Message": "use ConsumerRecord, or RecordMetadata for a written record",
    "OFFSET_BEGINNING": "use seek_to_beginning(tp)",
    "OFFSET_END": "use seek_to_end(tp)",
    "OFFSET_STORED": "use seek_to_committed(tp)",
    "OFFSET_INVALID": "committed(tp) returns None without a commit",
    **dict.fromkeys(
        ("TIMESTAMP_CREATE_TIME", "TIMESTAMP_LOG_APPEND_TIME"),
        "record.timestamp_type is 0 for the time of creation, 1 for the time of the append",
    ),
    "TIMESTAMP_NOT_AVAILABLE": "record.timestamp is -1 without a time",
    "ConsumerRebalanceListener": _LISTENER,
    "NewPartitions": "use create_partitions({topic: count})",
    **dict.fromkeys(
        ("ConfigResource", "ConfigResourceType", "ResourceType"),
        "use describe_configs(topics=[topic]) and incremental_alter_configs(topics={topic: {key: value}})",
    ),
    "AlterConfigOpType": "use ConfigOp",
    "ConfigSource": "describe_configs has the source of each entry",
    "OffsetSpec": 'use list_offsets({tp: "latest"}), with "earliest", "max_timestamp" or milliseconds',
    "TopicCollection": "use describe_topics([topic])",
    "ConsumerGroupTopicPartitions": "use list_group_offsets(group) and alter_group_offsets(group, {tp: offset})",
    "RecordsToDelete": "use delete_records({tp: offset})",
    **dict.fromkeys(("ConsumerGroupState", "ConsumerGroupType"), "describe_groups has the state as text"),
    "IsolationLevel": 'use isolation_level="read_committed", or list_offsets(read_committed=True)',
    **dict.fromkeys(("AclBinding", "AclBindingFilter", "ScramMechanism"), _NO_SECURITY),
}
"""Names of modules."""
RECORD: Mapping[str, str] = {
    "error": "no record stands for an error: an error is raised",
}
"""Attributes of a record."""


def missing(kind: str, name: str) -> str:
    """The text of the error for a name that a class does not have."""
    instead = METHODS.get(kind, {}).get(name)
    return f"{kind} has no {name}" + ("" if instead is None else f": {instead}, see {PAGE}")


def missing_in_module(module: str, name: str) -> Exception:
    """The error for a name that a module does not have.

    It is an ImportError for a name of another library, because an import replaces the text of an AttributeError.
    """
    if name in NAMES:
        return ImportError(f"{module} has no {name}: {NAMES[name]}, see {PAGE}", name=name)
    return AttributeError(f"module {module!r} has no attribute {name!r}")


def instead_of_key(key: str) -> str | None:
    """What to use instead of a key of configuration with ``_`` for ``.``."""
    beginning = next((text for prefix, text in KEY_BEGINNINGS.items() if key.startswith(prefix)), None)
    return KEYS.get(key, beginning)
