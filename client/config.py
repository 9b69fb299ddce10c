"""Configuration keys: Kafka's names with underscores, Kafka's defaults, types and ranges.

A config class is its own table: it has one dataclass field per key. The field's metadata has the key's rule and the
type of the keyword argument, from which ``make gen`` writes the classes in ``options.py``. ``parse`` takes the user's
arguments. An unknown key, or a value out of range, is a ``ConfigError`` that names valid choices.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import index
from typing import Any, TypeVar

from anabranch.client.arguments import shown, text
from anabranch.client.other_libraries import instead_of_key
from anabranch.protocol.addresses import join_address, split_server
from anabranch.protocol.batch_layout import DEFAULT_MAX_DECOMPRESSED_BYTES
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.sentinels import ACKS_ALL
from anabranch.zk_schemas.config_def import ConfigError

Serializer = Callable[[Any], bytes | None]
Deserializer = Callable[[bytes | None], Any]
C = TypeVar("C", bound="ClientConfig")
T = TypeVar("T", bound=type)

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
"""The address of a cluster that ``anabranch up`` runs on the same machine."""
BOOTSTRAP_VARIABLE = "ANABRANCH_BOOTSTRAP_SERVER"
"""The environment variable for ``bootstrap_servers``, of programs and of the command line."""
LINEAGES_AT_ONCE = 500
"""The default number of partitions in one request for lineages."""
_INT_MAX = 2**31 - 1
_LONG_MAX = 2**63 - 1


# ---------------------------------------------------------------- rules

LIBRDKAFKA_NAMES: Mapping[str, str] = {
    "compression_codec": "compression_type",
    "fetch_message_max_bytes": "max_partition_fetch_bytes",
    "fetch_wait_max_ms": "fetch_max_wait_ms",
    "max_in_flight": "max_in_flight_requests_per_connection",
    "message_max_bytes": "max_request_size",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery_timeout_ms",
    "metadata_broker_list": "bootstrap_servers",
    "queue_buffering_max_kbytes": "buffer_memory",
    "queue_buffering_max_ms": "linger_ms",
    "request_required_acks": "acks",
    "socket_timeout_ms": "request_timeout_ms",
    "topic_metadata_refresh_interval_ms": "metadata_max_age_ms",
}
"""Keys of librdkafka, with ``_`` for ``.``, and the key of the same meaning here."""


def _unknown(key: str, known: Collection[str]) -> str:
    """The text of the error for a key that is not one of ``known``."""
    name = key.lower().replace(".", "_")
    renamed = LIBRDKAFKA_NAMES.get(name)
    if renamed in known:
        return f"there is no such key; use {renamed}"
    instead = instead_of_key(name)
    if instead is not None:
        return f"there is no such key: {instead}"
    near = difflib.get_close_matches(name, known, n=1)
    return "there is no such key" + (f"; the nearest is {near[0]}" if near else ": docs/configuration.md has the keys")


def _number(key: str, value: Any, low: float, high: float, whole: bool) -> int | float:
    if isinstance(value, bool) or not (isinstance(value, int | float | str) or hasattr(type(value), "__index__")):
        raise ConfigError(key, f"{shown(value)} is not a number")
    try:
        number: int | float = int(value) if whole else float(value)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(key, f"{shown(value)} is not a {'whole ' if whole else ''}number") from None
    if whole and isinstance(value, float) and value != number:
        raise ConfigError(key, f"{shown(value)} is not a whole number")
    if not low <= number <= high:
        raise ConfigError(key, f"{shown(value)} is outside of {low:,} to {high:,}")
    return number


def _plain_number(value: Any) -> Any:
    """The number that an enum's member, or a number of another type such as numpy's, stands for."""
    try:
        return value if isinstance(value, bool) else index(value)
    except TypeError:
        return value


def _int(default: int, low: int = 0, high: int = _INT_MAX) -> Any:
    def rule(key: str, value: object) -> object:
        return _number(key, value, low, high, whole=True)

    return field(default=default, metadata={"rule": rule, "accepts": "int"})


def _flag(default: bool) -> Any:
    def rule(key: str, value: object) -> object:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ConfigError(key, f"{shown(value)} is neither true nor false")

    return field(default=default, metadata={"rule": rule, "accepts": "bool"})


def _choice(default: str, *choices: str) -> Any:
    def rule(key: str, value: object) -> object:
        chosen = "none" if value is None else value.lower() if isinstance(value, str) else ""
        if chosen not in choices:
            raise ConfigError(key, f"{shown(value)} is not one of {', '.join(choices)}")
        return chosen

    accepts = f"Literal{list(choices)}" + (" | None" if default == "none" else "")
    return field(default=default, metadata={"rule": rule, "accepts": accepts})


def _text(default: str | None) -> Any:
    def rule(key: str, value: object) -> object:
        if value is not None and not (isinstance(value, str) and value):
            raise ConfigError(key, f"{shown(value)} is not a non-empty string")
        try:
            return text(key, value) if value is not None else None
        except ValueError as error:
            raise ConfigError(key, str(error).removeprefix(f"{key} ")) from None

    return field(default=default, metadata={"rule": rule, "accepts": "str | None"})


def _parse_callable(key: str, value: object) -> object:
    if value is not None and not callable(value):
        raise ConfigError(key, f"{shown(value)} is not callable")
    return value


def parse_servers(key: str, value: object) -> tuple[tuple[str, int], ...]:
    """``"host:port,host:port"``, or a list of such, as ((host, port), ...)."""
    if isinstance(value, str):
        texts: Sequence[object] = value.split(",")
    elif isinstance(value, Sequence):
        texts = value
    else:
        raise ConfigError(key, f"{shown(value)} is neither a string nor a list")
    found: list[tuple[str, int]] = []
    for address in texts:
        try:
            given = join_address(*address) if isinstance(address, tuple) and len(address) == 2 else address
            host, port = split_server(str(given))
            host.encode("idna")
        except (TypeError, UnicodeError):
            raise ConfigError(key, f"{shown(address)} is not host:port") from None
        except ValueError as error:
            raise ConfigError(key, str(error)) from None
        found.append((host, port))
    return tuple(found)


def _parse_acks(key: str, value: object) -> object:
    """0, 1, or -1 for "all"."""
    text_of = value.lower() if isinstance(value, str) else shown(_plain_number(value))
    acks = {"all": ACKS_ALL, "-1": ACKS_ALL, "0": 0, "1": 1}.get(text_of)
    if acks is None:
        raise ConfigError(key, f'{shown(value)} is not one of 0, 1, "all"')
    return acks


def _parse_assignors(key: str, value: object) -> object:
    """Names of assignors, or assignors themselves, in the order of preference."""
    if isinstance(value, str):
        value = [name for name in value.split(",") if name.strip()]
    found = tuple(value) if isinstance(value, Sequence) else (value,)
    if not found:
        raise ConfigError(key, "is empty")
    return found


# ---------------------------------------------------------------- keys


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientConfig:
    """The keys that every client has."""

    bootstrap_servers: tuple[tuple[str, int], ...] = field(
        default=parse_servers("bootstrap_servers", DEFAULT_BOOTSTRAP),
        metadata={"rule": parse_servers, "accepts": "str | Sequence[str | tuple[str, int]]"},
    )
    client_id: str | None = _text("anabranch")
    client_rack: str | None = _text(None)
    request_timeout_ms: int = _int(30_000, 1)
    metadata_max_age_ms: int = _int(300_000)
    layout_backoff_ms: int = _int(5, 1)
    """The first pause after a broker refused a batch's layout or a fetch's leader epoch, if no newer metadata is known.

    It is also the pause before the next metadata request if a new layout has partitions without a leader.
    """
    layout_backoff_max_ms: int = _int(100, 1)
    retry_backoff_ms: int = _int(100)
    retry_backoff_max_ms: int = _int(1_000)
    reconnect_backoff_ms: int = _int(50)
    reconnect_backoff_max_ms: int = _int(1_000)
    socket_connection_setup_timeout_ms: int = _int(10_000, 1)
    connections_max_idle_ms: int = _int(540_000, 1, _LONG_MAX)
    receive_message_max_bytes: int = _int(104_857_600, 1_000)
    """The largest answer that a broker may send; a connection with a larger one is closed. As in librdkafka.

    Unless given, it is twice ``fetch_max_bytes`` if that is as large.
    """

    @classmethod
    def parse(cls: type[C], given: Mapping[str, Any]) -> C:
        """The config from a user's keyword arguments."""
        rules = {f.name: f.metadata["rule"] for f in fields(cls)}
        values: dict[str, Any] = {}
        for key, value in given.items():
            rule = rules.get(key)
            if rule is None:
                raise ConfigError(key, _unknown(key, rules))
            values[key] = rule(key, value)
        config = cls(**values)
        config.check(values)
        return config

    def check(self, given: Mapping[str, Any]) -> None:
        """Check the rules between keys; ``given`` are the keys that the user set."""
        if not self.bootstrap_servers:
            raise ConfigError("bootstrap_servers", "is empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig(ClientConfig):
    """Keys of ``Producer``. Serializers take the value given to ``send`` and return bytes or None."""

    acks: int = field(
        default=ACKS_ALL, metadata={"rule": _parse_acks, "accepts": 'Literal[0, 1, -1, "0", "1", "-1", "all"]'}
    )
    enable_idempotence: bool = _flag(True)
    max_in_flight_requests_per_connection: int = _int(5, 1)
    retries: int = _int(_INT_MAX)
    delivery_timeout_ms: int = _int(120_000)
    max_block_ms: int = _int(60_000, 0, _LONG_MAX)
    linger_ms: int = _int(0, 0, _LONG_MAX)
    batch_size: int = _int(16_384)
    buffer_memory: int = _int(33_554_432, 0, _LONG_MAX)
    max_request_size: int = _int(1_048_576)
    compression_type: str = _choice("none", "none", "gzip", "snappy", "lz4", "zstd")
    compression_gzip_level: int = _int(-1, -1, 9)
    compression_lz4_level: int = _int(1, 1, 17)
    compression_zstd_level: int = _int(3, -131_072, 22)
    metadata_max_idle_ms: int = _int(300_000, 5_000, _LONG_MAX)
    key_serializer: Serializer | None = field(default=None, metadata={"rule": _parse_callable})
    value_serializer: Serializer | None = field(default=None, metadata={"rule": _parse_callable})

    @property
    def compression(self) -> CompressionType:
        return CompressionType[self.compression_type.upper()]

    @property
    def compression_level(self) -> int | None:
        """The level for the codec; None for a codec without levels."""
        levels = {
            "gzip": None if self.compression_gzip_level < 0 else self.compression_gzip_level,
            "lz4": self.compression_lz4_level,
            "zstd": self.compression_zstd_level,
        }
        return levels.get(self.compression_type)

    def check(self, given: Mapping[str, Any]) -> None:
        super(ProducerConfig, self).check(given)  # a slots dataclass is a new class, for which bare super() fails
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            if "delivery_timeout_ms" in given:
                least = f"linger_ms ({self.linger_ms}) + request_timeout_ms ({self.request_timeout_ms})"
                raise ConfigError("delivery_timeout_ms", f"{self.delivery_timeout_ms} is below {least}")
            object.__setattr__(self, "delivery_timeout_ms", self.linger_ms + self.request_timeout_ms)
        if not self.enable_idempotence:
            return
        conflicts = {
            "acks": "all" if self.acks != ACKS_ALL else None,
            "retries": "more than 0" if self.retries == 0 else None,
            "max_in_flight_requests_per_connection": (
                "at most 5" if self.max_in_flight_requests_per_connection > 5 else None
            ),
        }
        for key, needed in conflicts.items():
            if needed is None:
                continue
            if given.get("enable_idempotence"):
                raise ConfigError(key, f"must be {needed} when enable_idempotence is true")
            # As in Kafka, keys that the user set have priority over idempotence, which is only a default.
            object.__setattr__(self, "enable_idempotence", False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(ClientConfig):
    """Keys of ``Consumer``. Deserializers take bytes or None and return ``record.key`` and ``record.value``."""

    group_id: str | None = _text(None)
    group_instance_id: str | None = _text(None)
    session_timeout_ms: int = _int(45_000, 1)
    heartbeat_interval_ms: int = _int(3_000, 1)
    max_poll_interval_ms: int = _int(300_000, 1)
    max_poll_records: int = _int(500, 1)
    partition_assignment_strategy: tuple[Any, ...] = field(
        default=("range", "cooperative-sticky"), metadata={"rule": _parse_assignors, "accepts": "Any"}
    )
    enable_auto_commit: bool = _flag(True)
    enable_auto_offset_store: bool = _flag(True)
    """Whether a record counts as processed when the user asks for the next one. If not: when its offset is stored."""
    auto_commit_interval_ms: int = _int(5_000)
    auto_offset_reset: str = _choice("latest", "earliest", "latest", "none")
    isolation_level: str = _choice("read_uncommitted", "read_uncommitted", "read_committed")
    check_crcs: bool = _flag(True)
    fetch_min_bytes: int = _int(1)
    fetch_max_bytes: int = _int(52_428_800)
    fetch_max_wait_ms: int = _int(500)
    max_decompressed_batch_bytes: int = _int(DEFAULT_MAX_DECOMPRESSED_BYTES, 1)
    """The largest batch of records after decompression; the partition of a larger one has an error."""
    max_partition_fetch_bytes: int = _int(1_048_576)
    default_api_timeout_ms: int = _int(60_000)
    ordered_delivery_commit_before_report: bool = _flag(True)
    """Commit processed records before another member continues with their keys.

    Otherwise these records could be delivered again after newer records of their keys, if this member crashes.
    """
    ordered_delivery_unassigned_parent: str = _choice("fail", "fail", "ignore")
    """With ``assign``: the policy if a partition's keys come from an unassigned partition without a known reader."""
    ordered_delivery_partitions_per_request: int = _int(LINEAGES_AT_ONCE, 1)
    """The number of partitions in one request for lineages."""
    allow_auto_create_topics: bool = _flag(True)
    exclude_internal_topics: bool = _flag(True)
    key_deserializer: Deserializer | None = field(default=None, metadata={"rule": _parse_callable})
    value_deserializer: Deserializer | None = field(default=None, metadata={"rule": _parse_callable})

    def check(self, given: Mapping[str, Any]) -> None:
        super(ConsumerConfig, self).check(given)  # as above
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            limit = f"session_timeout_ms ({self.session_timeout_ms})"
            raise ConfigError("heartbeat_interval_ms", f"{self.heartbeat_interval_ms} is not below {limit}")
        if self.receive_message_max_bytes <= self.fetch_max_bytes and self.receive_message_max_bytes < _INT_MAX:
            if "receive_message_max_bytes" in given:
                limit = f"fetch_max_bytes ({self.fetch_max_bytes})"
                raise ConfigError("receive_message_max_bytes", f"{self.receive_message_max_bytes} is not above {limit}")
            object.__setattr__(self, "receive_message_max_bytes", min(2 * self.fetch_max_bytes, _INT_MAX))
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigError("group_instance_id", "needs a group_id")
        if self.group_id is None and given.get("enable_auto_commit"):
            raise ConfigError("enable_auto_commit", "needs a group_id")
        if self.group_id is None and not self.enable_auto_offset_store:
            raise ConfigError("enable_auto_offset_store", "needs a group_id if it is false")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminConfig(ClientConfig):
    """Keys of ``Admin``."""

    default_api_timeout_ms: int = _int(60_000)
    retries: int = _int(_INT_MAX)


def documented(config: type[ClientConfig]) -> Callable[[T], T]:
    """Append the keys of ``config``, with their defaults, to the docstring of a client's class, for ``help``."""
    keys = "".join(f"\n        {key.name} = {shown_default(key.default)}" for key in fields(config))
    text = f"Keyword arguments and their defaults, which docs/configuration.md describes:\n{keys}\n"

    def decorate(kind: T) -> T:
        kind.__doc__ = f"{(kind.__doc__ or '').rstrip()}\n\n    {text}"
        return kind

    return decorate


def shown_default(value: object) -> str:
    """A default as text that ``parse`` accepts."""
    return repr(DEFAULT_BOOTSTRAP if value == parse_servers("", DEFAULT_BOOTSTRAP) else value)
