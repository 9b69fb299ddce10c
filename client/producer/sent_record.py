"""A record as ``send`` takes it: its arguments judged and serialized. No IO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from anabranch.client import arguments
from anabranch.client.config import ProducerConfig
from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.protocol.batch_builder import estimate_batch_bytes
from anabranch.protocol.batch_layout import Header

Headers = Sequence[Header] | Mapping[str, bytes | None] | None
SentRecord = tuple[str, bytes | None, bytes | None, int | None, Sequence[Header], int, int, int]
"""Topic, key, value, partition, headers, timestamp (ms), time of the call (ms), bytes of key and value."""


class Judge:
    """Judges and serializes the arguments of a producer's sends. Any thread may use it."""

    def __init__(self, config: ProducerConfig, now_ms: Callable[[], int]) -> None:
        self._key_serializer = config.key_serializer
        self._value_serializer = config.value_serializer
        self._batch_size = config.batch_size
        self._max_request_size = config.max_request_size
        self._buffer_memory = config.buffer_memory
        self._now_ms = now_ms

    def judged(self, topic: Any, value: Any, key: Any, partition: Any, headers: Any, timestamp_ms: Any) -> SentRecord:
        """The record of these arguments of ``send``. Raises what ``send`` raises for a wrong argument."""
        if type(topic) is not str:
            topic = arguments.topic("topic", topic)
        if partition is not None:
            partition = arguments.partition("partition", partition)
        if timestamp_ms is not None:
            timestamp_ms = arguments.timestamp("timestamp_ms", timestamp_ms)
        if self._key_serializer is not None:
            key = self._key_serializer(key)
        if self._value_serializer is not None:
            value = self._value_serializer(value)
        size = 0
        if key is not None:
            if type(key) is not bytes:
                key = arguments.blob("key", key)
            size = len(key)
        if value is not None:
            if type(value) is not bytes:
                value = arguments.blob("value", value)
            size += len(value)
        pairs: Sequence[Header] = () if headers is None else _header_pairs(headers)
        if pairs or size > self._batch_size:
            check_record_size(key, value, pairs, self._max_request_size, self._buffer_memory)
        now_ms = self._now_ms()
        return topic, key, value, partition, pairs, now_ms if timestamp_ms is None else timestamp_ms, now_ms, size


def check_record_size(
    key: bytes | None, value: bytes | None, headers: Sequence[Header], max_request_size: int, buffer_memory: int
) -> None:
    """Raise MESSAGE_TOO_LARGE for a record that could never be sent."""
    size = estimate_batch_bytes(key, value, headers)
    if size > max_request_size:
        why = f"the record takes {size} bytes in a batch, more than max_request_size ({max_request_size})"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, why)
    if size > buffer_memory:
        why = f"the record takes {size} bytes in a batch, more than buffer_memory ({buffer_memory})"
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, why)


def _header_pairs(headers: Any) -> Sequence[Header]:
    pairs: list[Header] = []
    given = headers.items() if isinstance(headers, Mapping) else headers
    for at, pair in enumerate(arguments.items("headers", given, "a mapping or a list of pairs")):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise arguments.refused(TypeError, f"headers[{at}]", pair, "a pair of a name and a value")
        name = arguments.text(f"headers[{at}]: the name", pair[0])
        content = pair[1]
        if content is not None and not isinstance(content, bytes | bytearray | memoryview):
            raise arguments.refused(TypeError, f"headers: the value of {name!r},", content, "bytes or None")
        pairs.append((name, None if content is None else bytes(content)))
    return pairs
