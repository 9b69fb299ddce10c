"""The options of ``format("anabranch")``: named as in Spark's Kafka source and sink, checked by name and value.

Spark passes option names in lower case, so names are matched in lower case. Messages have the documented names.
``kafka.*`` options are keys of Anabranch's consumer or producer, with dots.
"""

from __future__ import annotations

import difflib
import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from anabranch.client.config import ConsumerConfig, ProducerConfig
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from anabranch.zk_schemas.config_def import ConfigError

TopicOffsets: TypeAlias = Mapping[str, Mapping[int, int]]

_READ: Final = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "startingTimestamp",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "failOnDataLoss",
    "includeHeaders",
)
_WRITE: Final = ("topic", "includeHeaders")
_BATCH_ONLY: Final = {"endingOffsets": "a stream has no end"}
_STREAM_ONLY: Final = {"maxOffsetsPerTrigger": "a batch query has no triggers"}
_OF_SPARK: Final = frozenset({"checkpointlocation", "queryname"})
"""Spark's own options, which it passes to a streaming sink."""
_KAFKA_PREFIX: Final = "kafka."
_SET_BY_SOURCE: Final = {
    "auto_offset_reset": "use startingOffsets",
    "enable_auto_commit": "offsets are committed after each micro-batch when kafka.group.id is set",
    "group_instance_id": "the source is no member of a group",
    "key_deserializer": "columns are bytes: use cast or from_json",
    "value_deserializer": "columns are bytes: use cast or from_json",
    "key_serializer": "columns are bytes or text",
    "value_serializer": "columns are bytes or text",
    "allow_auto_create_topics": "a source creates no topics",
}


class OptionError(ValueError):
    """An option does not exist, or its value is invalid."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option!r}: {problem}")


class Use(enum.Enum):
    """The use of the options: a batch query or a stream."""

    BATCH = "spark.read"
    STREAM = "spark.readStream"


@dataclass(frozen=True, slots=True)
class SparkSubscription:
    """The topics or partitions to read; exactly one field is set."""

    topics: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Whether the topic is read, as a whole or in some partitions."""
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return topic in self.topics or topic in self.partitions

    @property
    def named(self) -> tuple[str, ...]:
        """The topics that must exist; none for a pattern."""
        return self.topics or tuple(self.partitions)


@dataclass(frozen=True, slots=True)
class Begin:
    """The start or end of reading: offsets (including ``EARLIEST`` and ``LATEST``), or a time."""

    default: int = EARLIEST_TIMESTAMP
    offsets: TopicOffsets = field(default_factory=dict)
    timestamp_ms: int | None = None
    option: str = "startingOffsets"


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of ``spark.read`` or ``spark.readStream``."""

    client: Mapping[str, Any]
    """Keys of ``ConsumerConfig``, without ``group_id``."""
    subscription: SparkSubscription
    begin: Begin
    end: Begin
    group_id: str | None = None
    ignores_unassigned: bool = False
    """With ``assign``: whether assigned partitions are read without waiting for partitions that are not assigned."""
    max_offsets_per_trigger: int | None = None
    min_partitions: int | None = None
    fail_on_data_loss: bool = True
    include_headers: bool = False


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """The options of ``write`` or ``writeStream``."""

    client: Mapping[str, Any]
    """Keys of ``ProducerConfig``."""
    topic: str | None = None


FETCH_BYTES = 4 * 1024 * 1024
"""The default of ``kafka.max.partition.fetch.bytes``: a task reads one partition."""


def read_options(given: Mapping[str, str], use: Use) -> ReadOptions:
    """The checked options of a reader. Raises ``OptionError``, or ``ConfigError`` for a client's ``kafka.`` option."""
    found, client = _split(given, _READ)
    refused = _BATCH_ONLY if use is Use.STREAM else _STREAM_ONLY
    for name, why in refused.items():
        if name in found:
            raise OptionError(name, f"not with {use.value}: {why}")
    if "startingOffsets" in found and "startingTimestamp" in found:
        raise OptionError("startingTimestamp", "not together with startingOffsets")
    client.setdefault("max_partition_fetch_bytes", FETCH_BYTES)
    group_id = client.pop("group_id", None)
    ConsumerConfig.parse(client)
    parsed_ignores = client.get("ordered_delivery_unassigned_parent") == "ignore"
    begin = Begin(EARLIEST_TIMESTAMP if use is Use.BATCH else LATEST_TIMESTAMP)
    if "startingTimestamp" in found:
        begin = Begin(timestamp_ms=_whole("startingTimestamp", found["startingTimestamp"], 0))
    elif "startingOffsets" in found:
        begin = _offsets("startingOffsets", found["startingOffsets"])
        if use is Use.BATCH and (begin.default == LATEST_TIMESTAMP or LATEST_TIMESTAMP in _values(begin.offsets)):
            raise OptionError("startingOffsets", "latest would read nothing in a batch query")
    end = _offsets("endingOffsets", found["endingOffsets"]) if "endingOffsets" in found else Begin(LATEST_TIMESTAMP)
    if "endingOffsets" in found and (
        found["endingOffsets"] == "earliest" or EARLIEST_TIMESTAMP in _values(end.offsets)
    ):
        raise OptionError("endingOffsets", "earliest would read nothing in a batch query")
    return ReadOptions(
        client=client,
        subscription=_subscription(found),
        begin=begin,
        end=end,
        group_id=group_id,
        ignores_unassigned=parsed_ignores,
        max_offsets_per_trigger=_maybe_whole("maxOffsetsPerTrigger", found),
        min_partitions=_maybe_whole("minPartitions", found),
        fail_on_data_loss=_flag("failOnDataLoss", found.get("failOnDataLoss", "true")),
        include_headers=_flag("includeHeaders", found.get("includeHeaders", "false")),
    )


def wants_headers(given: Mapping[str, str]) -> bool:
    """Whether there is a column of headers. Raises ``OptionError`` for an option that does not exist."""
    found, _ = _split(given, _READ)
    return _flag("includeHeaders", found.get("includeHeaders", "false"))


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The checked options of a writer. Raises the errors of ``read_options``."""
    found, client = _split({name: text for name, text in given.items() if name.lower() not in _OF_SPARK}, _WRITE)
    _flag("includeHeaders", found.get("includeHeaders", "false"))  # only checked: the column of headers decides
    config = ProducerConfig.parse(client)
    if not config.enable_idempotence:
        problem = "has to be true, with the defaults of acks and retries: otherwise a retry may write a record twice"
        raise OptionError("kafka.enable.idempotence", problem)
    return WriteOptions(client, found.get("topic"))


# ---------------------------------------------------------------- names


def _split(given: Mapping[str, str], names: tuple[str, ...]) -> tuple[dict[str, str], dict[str, Any]]:
    """The options by their documented names, and the client's keys."""
    known = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    client: dict[str, Any] = {}
    for option, text in given.items():
        if option.lower().startswith(_KAFKA_PREFIX):
            key = option.lower().removeprefix(_KAFKA_PREFIX).replace(".", "_")
            if key in _SET_BY_SOURCE:
                raise OptionError(option, f"cannot be set: {_SET_BY_SOURCE[key]}")
            client[key] = text
        elif option.lower() in known:
            found[known[option.lower()]] = text
        else:
            raise OptionError(option, f"there is no such option{_hint(option, names)}")
    if "bootstrap_servers" not in client:
        raise OptionError("kafka.bootstrap.servers", "is missing: host:port of some brokers")
    return found, client


def _hint(option: str, names: tuple[str, ...]) -> str:
    lower = {name.lower(): name for name in (*names, "kafka.bootstrap.servers")}
    near = difflib.get_close_matches(option.lower(), lower, 1)
    return f"; did you mean {lower[near[0]]!r}?" if near else f"; there are kafka.* and {', '.join(names)}"


# ---------------------------------------------------------------- values


def _subscription(found: Mapping[str, str]) -> SparkSubscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in found]
    if len(given) != 1:
        what = (
            f"{' and '.join(given)} exclude each other" if given else "is missing: give it, subscribePattern or assign"
        )
        raise OptionError(given[-1] if given else "subscribe", what)
    text = found[given[0]]
    if given == ["subscribe"]:
        topics = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
        if not topics:
            raise OptionError("subscribe", "names no topic")
        return SparkSubscription(topics=topics)
    if given == ["subscribePattern"]:
        try:
            re.compile(text)
        except re.error as error:
            raise OptionError("subscribePattern", f"{text!r} is no regular expression: {error}") from None
        return SparkSubscription(pattern=text)
    parsed = _json("assign", text)
    if not parsed or not all(isinstance(ps, list) and ps and all(map(_is_partition, ps)) for ps in parsed.values()):
        raise OptionError("assign", f'{text!r} is not like {{"topic": [0, 1]}}')
    return SparkSubscription(partitions={topic: tuple(sorted(set(ps))) for topic, ps in parsed.items()})


def _offsets(option: str, text: str) -> Begin:
    if text.lower() in ("earliest", "latest"):
        return Begin(EARLIEST_TIMESTAMP if text.lower() == "earliest" else LATEST_TIMESTAMP, option=option)
    found: dict[str, dict[int, int]] = {}
    for topic, partitions in _json(option, text).items():
        if not isinstance(partitions, dict):
            raise OptionError(option, f'{topic}: {partitions!r} is not like {{"0": 23}}')
        for p, offset in partitions.items():
            if not (
                p.isdigit()
                and isinstance(offset, int)
                and not isinstance(offset, bool)
                and offset >= EARLIEST_TIMESTAMP
            ):
                raise OptionError(
                    option, f"{topic}: {p!r}: {offset!r} is not a partition with an offset (-2: earliest, -1: latest)"
                )
            found.setdefault(topic, {})[int(p)] = offset
    return Begin(EARLIEST_TIMESTAMP if option == "startingOffsets" else LATEST_TIMESTAMP, found, option=option)


def _values(offsets: TopicOffsets) -> set[int]:
    return {offset for partitions in offsets.values() for offset in partitions.values()}


def _json(option: str, text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise OptionError(option, f"{text!r} is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise OptionError(option, f"{text!r} is no JSON object")
    return parsed


def _is_partition(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _whole(option: str, text: str, low: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise OptionError(option, f"{text!r} is no whole number") from None
    if number < low:
        raise OptionError(option, f"{text!r} is below {low}")
    return number


def _maybe_whole(option: str, found: Mapping[str, str]) -> int | None:
    return _whole(option, found[option], 1) if option in found else None


def _flag(option: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(option, f"{text!r} is neither true nor false")
    return text.lower() == "true"


__all__ = ["Begin", "ConfigError", "OptionError", "ReadOptions", "SparkSubscription", "Use", "WriteOptions"]
