"""What the group coordinator needs from the broker: the offsets topic's log and a look at the topics there are."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Protocol, TypeAlias

from anabranch.broker.deferred import Deferred
from anabranch.protocol.errors import KafkaError

KeyValue: TypeAlias = tuple[bytes, bytes | None]
"""A record of the offsets topic: key and value; a None value is a tombstone."""

IncarnationOf: TypeAlias = Callable[[str, int], int]
"""``Topics.incarnation``."""


class OffsetsLog(Protocol):
    """The partitions of ``__consumer_offsets`` this broker leads, each call in one leader epoch.

    A call in another epoch than the partition is led in fails: what a coordinator knows, it knows of the epoch it
    loaded in. Leading on into the next epoch is not another leadership: what waits, waits on.
    """

    def append(self, partition: int, leader_epoch: int, records: Sequence[KeyValue]) -> Deferred[KafkaError | None]:
        """Append all records as one batch (acks=all, current time as timestamp).

        Filled with None once the batch is committed (below the high watermark), or with the error for which it never
        will be. NOT_ENOUGH_REPLICAS_AFTER_APPEND says that it is committed, but on fewer replicas than asked for. There
        is no timeout: as long as nothing is known, the batch may still be committed. Must not raise.
        """
        ...

    def confirm_leadership(self, partition: int, leader_epoch: int) -> Deferred[KafkaError | None]:
        """Make sure that nobody else has committed anything to the partition before this call.

        A broker that was cut off, or stood still, may long have a successor without knowing. Filled with None once the
        replicas that could have elected one are known to have followed this leader after the call; with an error when
        the leadership is over. There is no timeout. Must not raise.
        """
        ...

    def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        """Every record from the log start to the log end as of the call, in order, some at a time.

        Control batches are left out. ``KafkaError`` or ``OSError`` when the log cannot be read; the coordinator tries
        again.
        """
        ...

    async def wait_until_committed(self, partition: int, leader_epoch: int) -> None:
        """Return when everything up to the log end as of the call is below the high watermark.

        ``KafkaError`` when that will not happen in this leadership.
        """
        ...


class Topics(Protocol):
    """The broker's view of the cluster's topics."""

    def contains(self, topic: str, partition: int) -> bool:
        """Whether the partition exists: commits to, and deletions of offsets of, any other are refused."""
        ...

    def merged_away(self, topic: str, partition: int) -> bool:
        """Whether the topic was resized and has not so many partitions now."""
        ...

    def holds(self, topic: str) -> bool:
        """Whether leaders hold the topic's stock consumers for the order of keys."""
        ...

    def is_resized(self, topic: str) -> bool:
        """Whether the topic's partition count was ever changed, as far as it is known."""
        ...

    def incarnation(self, topic: str, partition: int) -> int:
        """Which creation of the partition exists, higher for a later one; -1 when it is not known or does not exist."""
        ...

    def base_offset(self, topic: str, partition: int) -> int:
        """Where a partition that was removed and created again began; -1 when it was not, or that is not known."""
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
    @property
    def keeps_order(self) -> bool: ...  # whether a consumer of this connection waits by itself (KIP-253)
