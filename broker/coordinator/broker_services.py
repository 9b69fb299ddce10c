"""The group coordinator's interface to the broker: the offsets topic's log, and the topics of the cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.types import TopicPartition

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""The key and the value of a record in the offsets topic. If the value is None, the record is a tombstone."""

IncarnationOf: TypeAlias = Callable[[str, int], int]
"""``Topics.incarnation``."""


class OffsetsLog(Protocol):
    """The partitions of ``__consumer_offsets`` that this broker leads. Each call names a leader epoch.

    A call fails if this broker does not lead the partition in that epoch: a coordinator's state is correct only for the
    epoch in which it was loaded. If this broker still leads in the next epoch, waiting calls continue.
    """

    def append(self, partition: int, leader_epoch: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        """Append all records as one batch (acks=all, current time as timestamp).

        The result is filled with None once the batch is committed (below the high watermark), or with an error once it
        is certain that the batch will not be committed. NOT_ENOUGH_REPLICAS_AFTER_APPEND means that the batch is
        committed, but on fewer replicas than required. There is no timeout: until the result is filled, the batch may
        still be committed. Must not raise.
        """
        ...

    def confirm_leadership(self, partition: int, leader_epoch: int) -> Deferred[KafkaError | None]:
        """Make sure that until this call no other leader has committed anything to the partition.

        Another broker may have been elected while this broker was cut off or paused. The result is filled with None
        once every replica that could be elected has fetched from this leader after the call. If the leadership ends
        before, the result is filled with an error. There is no timeout. Must not raise.
        """
        ...

    def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        """Yields every record from the log start to the log end as of the call, in order, some at a time.

        Control batches are left out. Raises ``KafkaError`` or ``OSError`` if the log cannot be read; the coordinator
        then tries again.
        """
        ...

    async def wait_until_committed(self, partition: int, leader_epoch: int) -> None:
        """Return when everything up to the log end as of the call is below the high watermark.

        Raises ``KafkaError`` when that will not happen in this leadership.
        """
        ...


class Topics(Protocol):
    """The broker's view of the cluster's topics."""

    def contains(self, topic: str, partition: int) -> bool:
        """Whether the partition exists. If not, commits and deletions of its offsets are refused."""
        ...

    def merged_away(self, topic: str, partition: int) -> bool:
        """Whether a resize merged the partition away."""
        ...

    def withholds(self, topic: str) -> bool:
        """Whether leaders withhold records from the topic's stock consumers to keep the order of keys."""
        ...

    def is_resized(self, topic: str) -> bool:
        """Whether the topic's partition count was ever changed, as far as this broker knows."""
        ...

    def incarnation(self, topic: str, partition: int) -> int:
        """The partition's incarnation, higher for a later one; -1 if unknown, or if there is no such partition."""
        ...

    def base_offset(self, topic: str, partition: int) -> int:
        """The first offset of a partition that was removed and created again; -1 for others, or if unknown."""
        ...

    def is_of_deleted_topic(self, key: TopicPartition, leader_epoch: int) -> bool:
        """Whether the epoch belongs to an earlier, deleted topic of this name; False if this broker does not know."""
        ...

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions of a topic, None when it does not exist."""
        ...


class RequestOrigin(Protocol):
    """The client of a request, and the request's version."""

    @property
    def client_id(self) -> str | None: ...
    @property
    def client_host(self) -> str: ...
    @property
    def api_version(self) -> int: ...
    @property
    def keeps_order(self) -> bool: ...  # whether the consumer keeps the order of keys itself (KIP-253)
