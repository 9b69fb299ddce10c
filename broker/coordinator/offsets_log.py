"""What the group coordinator needs from the broker: the offsets topic's log and a look at the topics there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol, TypeAlias

from broker.deferred import Deferred
from protocol.errors import KafkaError

OFFSETS_TOPIC = "__consumer_offsets"

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""A record of the offsets topic: key and value; a None value is a tombstone."""


class OffsetsLog(Protocol):
    """The partitions of ``__consumer_offsets`` this broker leads."""

    def append(self, partition: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        """Append all records as one batch (acks=all, current time as timestamp).

        Filled with None once the batch is committed (below the high watermark), or with the error that says it is not:
        any error means the caller treats the records as never written. Must not raise.
        """
        ...

    def read_all(self, partition: int) -> AsyncIterator[Sequence[KeyValue]]:
        """Every record from the log start to the log end as of the call, in order, in slices.

        Control batches are left out. A slice is what one read returns (say 1 MiB of log at most). ``KafkaError`` or
        ``OSError`` when the log cannot be read; the coordinator tries again.
        """
        ...


class Topics(Protocol):
    """The broker's view of the cluster's topics."""

    def contains(self, topic: str, partition: int) -> bool:
        """Whether the partition exists: commits to, and deletions of offsets of, any other are refused."""
        ...

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions of a topic, None when it does not exist."""
        ...


class RequestContext(Protocol):
    """Who asks, and in which version."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def client_host(self) -> str: ...
    @property
    def api_version(self) -> int: ...
