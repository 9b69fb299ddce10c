"""The keys of librdkafka, and the keyword arguments of ``anabranch`` that they stand for. No IO.

A key that has the same name in both, but for ``.`` and ``_``, needs no line here.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from anabranch.client.arguments import shown
from anabranch.client.config import AdminConfig, ClientConfig, ConsumerConfig, ProducerConfig
from anabranch.client.options import AdminOptions, ConsumerOptions, ProducerOptions
from anabranch.client.other_libraries import PAGE
from anabranch.zk_schemas.config_def import ConfigError

_LONGEST_MS = 2**31 - 1
_OFFSET_RESETS = {
    "smallest": "earliest",
    "beginning": "earliest",
    "largest": "latest",
    "end": "latest",
    "error": "none",
}


def _reset(value: Any) -> Any:
    return _OFFSET_RESETS.get(value, value)


def _endless(value: Any) -> Any:
    return _LONGEST_MS if value in (0, "0") else value


def _bytes(kilobytes: Any) -> Any:
    return int(kilobytes) * 1024


RENAMED: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "metadata.broker.list": ("bootstrap_servers", None),
    "topic.metadata.refresh.interval.ms": ("metadata_max_age_ms", None),
    "socket.timeout.ms": ("request_timeout_ms", None),
    # producer
    "request.required.acks": ("acks", None),
    "queue.buffering.max.ms": ("linger_ms", None),
    "queue.buffering.max.kbytes": ("buffer_memory", _bytes),
    "message.timeout.ms": ("delivery_timeout_ms", _endless),
    "delivery.timeout.ms": ("delivery_timeout_ms", _endless),
    "message.send.max.retries": ("retries", None),
    "max.in.flight": ("max_in_flight_requests_per_connection", None),
    "message.max.bytes": ("max_request_size", None),
    "compression.codec": ("compression_type", None),
    # consumer
    "auto.offset.reset": ("auto_offset_reset", _reset),
    "fetch.wait.max.ms": ("fetch_max_wait_ms", None),
    "fetch.message.max.bytes": ("max_partition_fetch_bytes", None),
}
"""Keys with another name, or other values, here."""

ONLY: dict[str, tuple[tuple[Any, ...], str]] = {
    "enable.partition.eof": ((False, "false"), f"no message tells the end of a partition: compare offsets, see {PAGE}"),
    "group.protocol": (("classic",), "groups use the classic protocol"),
    "partitioner": (("murmur2_random",), "keys are placed by murmur2, and records without a key change partitions"),
    "security.protocol": (("plaintext", "PLAINTEXT"), "connections are plaintext"),
    "compression.level": ((-1, "-1"), "use compression.gzip.level, compression.lz4.level or compression.zstd.level"),
    "queue.buffering.backpressure.threshold": ((), "linger.ms and batch.size decide when a batch is sent"),
    "sticky.partitioning.linger.ms": ((), "records without a key stay in a partition until the batch is full"),
    "batch.num.messages": ((), "use batch.size, in bytes"),
    "queued.min.messages": ((), "use fetch.max.bytes and max.partition.fetch.bytes"),
    "queued.max.messages.kbytes": ((), "use fetch.max.bytes"),
    "transactional.id": ((), "there are no transactions yet"),
    "transaction.timeout.ms": ((), "there are no transactions yet"),
    "default.topic.config": ((), "set its keys in the dictionary itself"),
    "key.serializer": ((), "produce() takes bytes or str"),
    "value.serializer": ((), "produce() takes bytes or str"),
    "key.deserializer": ((), "key() returns bytes"),
    "value.deserializer": ((), "value() returns bytes"),
}
"""Keys that are accepted with one of the values, and refused with any other. The text says why, or what to use."""

IGNORED = frozenset(
    {
        "api.version.fallback.ms",
        "api.version.request",
        "api.version.request.timeout.ms",
        "broker.address.family",
        "broker.address.ttl",
        "broker.version.fallback",
        "client.dns.lookup",
        "debug",
        "enable.metrics.push",
        "error_cb",
        "fetch.error.backoff.ms",
        "log.connection.close",
        "log.queue",
        "log.thread.name",
        "log_level",
        "logger",
        "socket.keepalive.enable",
        "socket.nagle.disable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "statistics.interval.ms",
        "stats_cb",
        "throttle_cb",
        "topic.metadata.propagation.max.ms",
        "topic.metadata.refresh.fast.interval.ms",
        "topic.metadata.refresh.sparse",
    }
)
"""Keys that change nothing here."""

_USERS: dict[type[ClientConfig], str] = {ProducerConfig: "Producer", ConsumerConfig: "Consumer"}
_SECURITY = ("sasl.", "ssl.", "enable.ssl.", "oauth", "enable.sasl.")
_QUEUE = "queue.buffering.max.messages"
_QUEUE_DEFAULT = 100_000
_DEFAULTS = ProducerConfig()


def producer_options(conf: Mapping[str, Any]) -> tuple[ProducerOptions, int, Any]:
    """The keyword arguments, the most messages without a served report, and the callback for all messages."""
    given = dict(conf)
    most = given.pop(_QUEUE, _QUEUE_DEFAULT)
    if isinstance(most, bool) or not str(most).isdecimal() or int(most) < 1:
        raise ConfigError(_QUEUE, f"{shown(most)} is not a whole number from 1 on")
    names = ("on_delivery", "dr_cb")
    callback = next((found for found in [given.pop(name, None) for name in names] if found is not None), None)
    if callback is not None and not callable(callback):
        raise ConfigError("on_delivery", f"{shown(callback)} is not callable")
    options = _mapped(given, ProducerConfig)
    _lower_request_timeout(options)
    return options, int(most), callback  # type: ignore[return-value]


def _lower_request_timeout(options: dict[str, Any]) -> None:
    """Let no request wait longer than its records do, as in librdkafka. A wrong value is judged later."""
    values = {name: options.get(name, getattr(_DEFAULTS, name)) for name in ("linger_ms", "request_timeout_ms")}
    try:
        left_ms = int(options["delivery_timeout_ms"]) - int(values["linger_ms"])
        if 0 < left_ms < int(values["request_timeout_ms"]):
            options["request_timeout_ms"] = left_ms
    except (KeyError, TypeError, ValueError):
        return


def consumer_options(conf: Mapping[str, Any]) -> tuple[ConsumerOptions, Any]:
    """The keyword arguments, and the callback for commits. As in librdkafka, no topic is created by default."""
    given = dict(conf)
    on_commit = given.pop("on_commit", None)
    if on_commit is not None and not callable(on_commit):
        raise ConfigError("on_commit", f"{shown(on_commit)} is not callable")
    return {"allow_auto_create_topics": False} | _mapped(given, ConsumerConfig), on_commit  # type: ignore[return-value]


def admin_options(conf: Mapping[str, Any]) -> AdminOptions:
    return _mapped(conf, AdminConfig)  # type: ignore[return-value]


def _mapped(conf: Mapping[str, Any], kind: type[ClientConfig]) -> dict[str, Any]:
    """The keyword arguments for a dictionary of librdkafka's keys. Raises ConfigError for an unknown key."""
    known = {field.name for field in fields(kind)}
    found: dict[str, Any] = {}
    for key, value in conf.items():
        if not isinstance(key, str):
            raise ConfigError(shown(key), "is not the name of a key")
        if key in IGNORED:
            continue
        if key in ONLY:
            allowed, reason = ONLY[key]
            if value not in allowed:
                raise ConfigError(key, f"{shown(value)} cannot be set: {reason}")
            continue
        if key.startswith(_SECURITY):
            raise ConfigError(key, "cannot be set: connections are plaintext, without authentication")
        name, change = RENAMED.get(key, (key.replace(".", "_"), None))
        if name not in known:
            raise ConfigError(key, _unknown(key, known))
        try:
            found[name] = value if change is None else change(value)
        except (TypeError, ValueError):
            raise ConfigError(key, f"{shown(value)} is not a whole number") from None
    return found


def _unknown(key: str, known: set[str]) -> str:
    for kind, user in _USERS.items():
        if key.replace(".", "_") in {field.name for field in fields(kind)}:
            return f"is a key of {user} only"
    names = [*RENAMED, *(name.replace("_", ".") for name in sorted(known))]
    near = difflib.get_close_matches(key.lower(), names, n=1)
    return "there is no such key here; " + (f"the nearest is {near[0]}" if near else f"{PAGE} has the keys")


@contextlib.contextmanager
def named_as_given(conf: Mapping[str, Any]) -> Iterator[None]:
    """Give the keys in the text of a ConfigError the names of ``conf``, or else those with dots."""
    try:
        yield
    except ConfigError as error:
        kinds = (ProducerConfig, ConsumerConfig, AdminConfig)
        names = {field.name: field.name.replace("_", ".") for kind in kinds for field in fields(kind)}
        names |= {RENAMED[key][0]: key for key in conf if key in RENAMED}
        text = re.sub(r"\w+", lambda word: names.get(word[0], word[0]), error.detail)
        raise ConfigError(names.get(error.key, error.key), text) from None
