"""A batch that the user fills for one partition. No IO."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from anabranch.client import arguments
from anabranch.client.arguments import judged, optional
from anabranch.client.errors import ErrorCode, IllegalStateError, KafkaError
from anabranch.protocol.batch_builder import BatchBuilder
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.sentinels import NO_TIMESTAMP


class AppendedRecord(NamedTuple):
    """A record of a batch that is not sent yet. ``offset`` counts from the first record of the batch."""

    offset: int
    timestamp: int


_RULES: dict[str, dict[str, arguments.Rule]] = {
    "append": {"key": arguments.blob, "value": arguments.blob, "timestamp": optional(arguments.timestamp)},
    "check_size": {"max_request_size": arguments.by_itself},
}


@judged(_RULES)
class MessageBatch:
    """Records for one partition, from ``Producer.create_batch``. ``Producer.send_batch`` sends it once."""

    def __init__(
        self, compression: CompressionType, level: int | None, max_bytes: int, now_ms: Callable[[], int]
    ) -> None:
        self._builder = BatchBuilder(compression, max_bytes, level=level)
        self._now_ms = now_ms
        self._closed = self._taken = False
        self.first_timestamp = NO_TIMESTAMP

    def append(
        self, *, key: bytes | None = None, value: bytes | None = None, timestamp: int | None = None
    ) -> AppendedRecord | None:
        """Add a record. None if the batch is full or closed: send it, and begin another one.

        Serializers are not called. ``timestamp`` is in milliseconds, by default the present time.
        """
        at = self._now_ms() if timestamp is None else timestamp
        offset = None if self._closed else self._builder.append(key, value, (), at)
        if offset is None:
            self._closed = True
            return None
        if offset == 0:
            self.first_timestamp = at
        return AppendedRecord(offset, at)

    def record_count(self) -> int:
        return self._builder.count

    def size(self) -> int:
        """The bytes of the batch so far, before compression."""
        return self._builder.size_bytes

    def close(self) -> None:
        """Take no more records."""
        self._closed = True

    def check_size(self, max_request_size: int) -> None:
        """Raise the error for a batch that cannot be sent: it is empty, was sent before, or is too large."""
        if self._taken or not self._builder.count:
            raise IllegalStateError("this batch was sent before" if self._taken else "this batch has no record")
        if self.size() > max_request_size:
            why = f"the batch takes {self.size()} bytes, more than max_request_size ({max_request_size})"
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, why)

    def take(self) -> BatchBuilder:
        """The records, for sending. The batch takes no more records."""
        self.check_size(self.size())
        self._closed = self._taken = True
        return self._builder
