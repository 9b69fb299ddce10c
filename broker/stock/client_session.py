"""The state that a broker keeps about the client at the other end of a connection."""

from __future__ import annotations

import math
import uuid
from typing import TypeVar

from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.log.repeated_batches import HALF_OF_ALL_SEQUENCES, Answer, ProducerConnection
from anabranch.broker.stock.order_with_idempotence import AwaitedBatches, SentBatch
from anabranch.broker.stock.order_without_idempotence import RetryOrder
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import NO_EPOCH, NO_SEQUENCE
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock

OUR_SOFTWARE = "anabranch"
"""The prefix of the software names of our own clients and tools in ApiVersions (KIP-511)."""
_FAILS_WITHOUT_LEADER = frozenset({"sarama"})
"""Libraries that fail a record less than a second after its partition lost its leader. They send nothing meanwhile."""
IN_FLIGHT_S = 0.05
"""An idempotent producer's batch in flight may arrive this long after the producer was made to refresh metadata.
Such a batch gets the same error as the batch before it: OUT_OF_ORDER_SEQUENCE_NUMBER would do more harm. No library
repeats a batch so soon."""


_REFRESHES_SELDOM = frozenset({"kgo"})
"""Libraries that request metadata at most once in five seconds: franz-go.
Until the next request they write nothing to a partition whose leader is uncertain."""


class ClientSession:
    """The state of the client at the other end of one connection."""

    __slots__ = (
        "__weakref__",
        "_furthest",
        "_max_retried",
        "_refreshes",
        "awaited",
        "connection",
        "fetch_sessions",
        "fetch_was_refused",
        "is_ours",
        "retry_orders",
        "software_name",
    )

    def __init__(self, max_retried: int) -> None:
        self._max_retried = max_retried
        """The largest number of topics, and of pairs of partition and producer, whose state is remembered."""
        self.software_name = ""
        """The name in the client's ApiVersions request; empty if there is none."""
        self.is_ours = False
        """Whether the client is Anabranch's own, which follows a resize by itself."""
        self.fetch_was_refused = False
        """Whether the last fetch had nothing but errors to answer."""
        self.retry_orders: dict[TopicPartition, RetryOrder] = {}
        """Partitions for which a producer without idempotence has to repeat batches."""
        self.awaited = AwaitedBatches()
        """The batches that idempotent producers have to repeat."""
        self.connection = ProducerConnection()
        self.fetch_sessions: set[int] = set()
        """The ids of the fetch sessions that end with this connection."""
        self._refreshes: dict[str, tuple[uuid.UUID | None, int, float]] = {}
        self._furthest: dict[tuple[TopicPartition, int], tuple[int, int]] = {}

    def introduce(self, software_name: str) -> None:
        """Note the name of the client's software."""
        self.software_name = software_name
        self.is_ours = software_name.startswith(OUR_SOFTWARE)
        self.connection.renumbers = not self.is_ours

    @property
    def repeated_count(self) -> int:
        """The number of partitions and producers that have batches to repeat."""
        return len(self.awaited) + len(self.retry_orders)

    def sent(self, key: TopicPartition, batch: RecordBatch | None, clock: Clock) -> SentBatch | None:
        """See ``SentBatch.of``."""
        return SentBatch.of(self.awaited, self.connection, clock, key, batch)

    def acknowledged(self, producers: ProducerState, producer_id: int, last_offset: int) -> None:
        """Note that a batch of the request that is handled now, which ends at ``last_offset``, is answered at once."""
        producers.record_answer(producer_id, Answer(last_offset, self.connection, self.connection.requests))

    def stop_waiting(self, key: TopicPartition) -> None:
        """Await no record of a partition any more: see ``RetryOrder.stop_waiting``."""
        if (order := self.retry_orders.get(key)) is not None:
            order.stop_waiting()

    def written(self, key: TopicPartition) -> None:
        """Append the parked batch whose turn it is now, if there is one, because a batch was written."""
        order = self.retry_orders.get(key)
        if order is not None and (parked := order.pop_next()) is not None:
            parked.take_turn()

    @property
    def waits_for_leaders(self) -> bool:
        """Whether splits are announced to the client: only to stock clients that wait for leaders of new partitions."""
        return not self.is_ours and self.software_name not in _FAILS_WITHOUT_LEADER

    @property
    def repeats_until_led(self) -> bool:
        """Whether the client is known to repeat a batch until its partition has a leader.

        A client without a name may be sarama, which names itself only if it is configured for Kafka 2.4 or later.
        """
        return self.software_name != "" and self.waits_for_leaders

    @property
    def refreshes_seldom(self) -> bool:
        """Whether the client requests metadata so seldom that a doubling must not wait for its next request."""
        return self.software_name in _REFRESHES_SELDOM

    @property
    def repeat_code(self) -> ErrorCode:
        """The error that makes the client request metadata as soon as it can, and repeat a batch."""
        return ErrorCode.REQUEST_TIMED_OUT if self.refreshes_seldom else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def refresh(
        self, topic: str, topic_id: uuid.UUID | None, layout_version: int, now: float, again_s: float = math.inf
    ) -> bool:
        """Note that the client is made to refresh a topic's metadata. False if it was for this layout or a later one.

        After ``again_s`` the client is made to refresh again. A topic that was deleted and created again has another
        id, and its layout versions begin again.
        """
        before = self._refreshes.get(topic)
        is_known = before is not None and before[0] == topic_id and before[1] >= layout_version
        if before is not None and is_known and now - before[2] < again_s:
            return False
        _remember(self._refreshes, topic, (topic_id, layout_version, now), self._max_retried)
        return True

    def is_refreshing(self, topic: str, topic_id: uuid.UUID | None, layout_version: int, now: float) -> bool:
        """Whether the client was made to refresh metadata so recently that a batch sent before that may arrive now."""
        before = self._refreshes.get(topic)
        return before is not None and before[:2] == (topic_id, layout_version) and now - before[2] < IN_FLIGHT_S

    def is_furthest(self, key: TopicPartition, batch: RecordBatch) -> bool:
        """Whether no later batch of the same idempotent producer was noted. Otherwise this one is a repetition."""
        epoch, sequence = self._furthest.get((key, batch.producer_id), (NO_EPOCH, NO_SEQUENCE))
        return epoch != batch.producer_epoch or not 0 < sequence - batch.base_sequence < HALF_OF_ALL_SEQUENCES

    def note_furthest(self, key: TopicPartition, batch: RecordBatch) -> None:
        """Note a batch of an idempotent producer for which ``is_furthest`` holds."""
        named = (key, batch.producer_id)
        _remember(self._furthest, named, (batch.producer_epoch, batch.base_sequence), self._max_retried)


K = TypeVar("K")
V = TypeVar("V")


def _remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Set a value. If there are more than ``most`` values, drop the least recently set one."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]
