"""Tracks producers that name no layout: when they wrote to a topic, and when they are made to refresh metadata.

Such a producer keeps the partition count of its metadata for minutes. NOT_LEADER_OR_FOLLOWER for one batch makes every
client library ask for metadata and repeat the batch, to the same partition. This error is returned in two cases, once
for each connection and layout:

- A split is announced, stock placement follows it, and a batch has a key that moves. When the batch is repeated, it is
  accepted: the key belongs here until the layout changes. By then the producer uses the new count.
- The layout has changed and a batch has a misplaced key. The repeated batch is refused permanently.

Batches in flight that follow a refused batch are refused too; otherwise they would be written before the refused batch.
The same holds if the first batch was refused because this broker did not lead its partition yet. See
``order_with_idempotence`` for idempotent producers, and ``order_without_idempotence`` for the others.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary

from anabranch.broker.log.log_state import Examined
from anabranch.broker.log.producer_state import AppendOrigin
from anabranch.broker.metadata_cache import CachedTopic, MetadataCache
from anabranch.broker.replication.layout_admission import (
    Admission,
    LayoutRefusedError,
    Placement,
    produce_admission,
    verifies_keys,
)
from anabranch.broker.replication.partition import Partition
from anabranch.broker.stock.client_session import ClientSession
from anabranch.broker.stock.order_without_idempotence import BatchTurn, RetryOrder, can_be_awaited
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.update_metadata import StockProducersOfTopic
from anabranch.protocol.key_placement import positive_hash
from anabranch.protocol.records import Record, RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout

REFRESH_AGAIN_S = 1.0
"""If a client refreshes metadata seldom, it gets the error again after this time."""
MAX_TOPICS = 4096
"""The largest number of remembered topics. The topic that was least recently written to is dropped first."""

_EARLIER_FIRST = "the producer must first repeat earlier batches of this connection, which were refused"


class EarlyBatchError(KafkaError):
    """A batch is repeated before its turn. ``order`` may hold the batch, or the producer must repeat it once more."""

    def __init__(self, key: TopicPartition, order: RetryOrder, records: list[Record], code: ErrorCode) -> None:
        super().__init__(code, f"{key}: {_EARLIER_FIRST}")
        self.order = order
        self.records = records


class Write(NamedTuple):
    """The batch may be written now."""


class Park(NamedTuple):
    """The batch came before its turn. ``order`` may park it, or ``error`` makes the producer repeat it once more."""

    error: KafkaError
    order: RetryOrder
    records: list[Record]


class Refuse(NamedTuple):
    """The batch is refused with ``error``."""

    error: KafkaError


Decision: TypeAlias = Write | Park | Refuse
WRITE: Final = Write()


@dataclass(slots=True)
class Owed:
    """The partitions that one layout version of a topic waits for: open connections have outstanding batches there."""

    topic_id: uuid.UUID | None
    layout_version: int
    partitions: WeakKeyDictionary[ClientSession, dict[int, float]] = field(default_factory=WeakKeyDictionary)
    """For each partition, the time when the wait for its outstanding batch ends.
    If a batch must be repeated, the time is infinite. If the last batch had a misplaced key, the time is limited: the
    next batch may have a misplaced key too."""

    def is_waited_for(self, now: float) -> bool:
        return any(until > now for partitions in self.partitions.values() for until in partitions.values())


class StockProducers:
    """The stock producers that one broker has seen since it was started."""

    def __init__(self, clock: Clock, silence_s: float, metadata: MetadataCache) -> None:
        self._clock = clock
        self._metadata = metadata
        self._silence_s = silence_s
        """The longest wait for a busy producer.
        The time begins when the producer can be made to refresh metadata. It begins again with each batch that has a
        misplaced key, because the producer may write more records by the old count. A batch without such a key ends the
        wait."""
        self._written_at: dict[str, float] = {}
        self._misplaced_at: dict[str, float] = {}
        """The time of the last batch with a key that moves to another partition under the announced count."""
        self._owed: dict[str, Owed] = {}
        self._refreshing_since: dict[str, float] = {}
        """The time since when producers are made to refresh metadata, for each topic with an announced split."""

    def report(self, topics: Collection[str], known: Mapping[str, CachedTopic]) -> list[StockProducersOfTopic]:
        """A report on the topics to which stock producers wrote. ``known`` is the controller's present metadata."""
        now = self._clock.monotonic()
        for topic in topics:
            info = known.get(topic)
            if info is not None and info.refreshes_stock_producers:
                self._refreshing_since.setdefault(topic, now)
            else:
                self._refreshing_since.pop(topic, None)
        return [
            StockProducersOfTopic(
                topic_name=topic,
                written_ms_ago=int((now - self._written_at[topic]) * 1000),
                misplaced_ms_ago=self._misplaced_ms_ago(topic, now),
            )
            for topic in topics
            if topic in self._written_at
        ]

    def _misplaced_ms_ago(self, topic: str, now: float) -> int:
        owed = self._owed.get(topic)
        if (owed is not None and owed.is_waited_for(now)) or self._is_silent(topic, now):
            return 0
        at = self._misplaced_at.get(topic)
        return -1 if at is None else int((now - at) * 1000)

    def _is_silent(self, topic: str, now: float) -> bool:
        """Whether producers were busy until they could be made to refresh metadata, and nothing has arrived since then.

        The result is False again when this has lasted for ``silence_s``.
        """
        since = self._refreshing_since.get(topic, -math.inf)
        silence_s = self._silence_s
        return now - since < silence_s and since - silence_s < self._written_at[topic] <= since

    def note_write(self, session: ClientSession, key: TopicPartition, now: float) -> None:
        """Note that a stock producer sends a batch for a partition."""
        order = session.retry_orders.get(key)
        if order is not None and order.is_over:
            del session.retry_orders[key]  # otherwise every batch on this connection would be decoded
        topic = key.topic
        self._written_at.pop(topic, None)
        self._written_at[topic] = now
        if len(self._written_at) > MAX_TOPICS:
            forgotten = next(iter(self._written_at))
            del self._written_at[forgotten]
            self._misplaced_at.pop(forgotten, None)
            self._owed.pop(forgotten, None)

    def admit(
        self,
        session: ClientSession,
        partition: Partition,
        examined: Examined,
        named: StoredLayout | None = None,
        placement: Placement | None = None,
    ) -> Decision:
        """Decide whether a batch may be written now, unless the log has it under the same numbers.

        ``named``: the layout that the producer names; None for a stock producer. ``placement``: see
        ``produce_admission``. A refusal is permanent if its error is not retriable. Otherwise the producer refreshes
        its metadata and repeats the batch.
        """
        batch = examined.batch
        try:
            if examined.known is None:
                if named is not None:
                    check = produce_admission(partition.key, partition.layout, partition.delivery, named)
                    if check is not None:
                        check(batch)
                elif self._is_checked(session, partition):
                    self._check(session, partition, batch, placement)
            if session.awaited.first:
                now, producers = self._clock.monotonic(), partition.log.producers
                session.awaited.check(partition.key, batch, producers, now, session.repeat_code)
        except EarlyBatchError as early:
            return Park(early, early.order, early.records)
        except KafkaError as error:
            return Refuse(error)
        return WRITE

    def _is_checked(self, session: ClientSession, partition: Partition) -> bool:
        """Whether there is anything to decide about the batch of a stock producer."""
        key, layout = partition.key, partition.layout
        return (
            layout.layout_version > 0
            or layout.closes(key.partition)
            or (bool(session.retry_orders) and _is_awaited(session, key))
            or _is_announced(self._metadata.topics.get(key.topic), layout)
        )

    def _check(
        self, session: ClientSession, partition: Partition, batch: RecordBatch, placement: Placement | None
    ) -> None:
        """Return if a batch that names no layout, and that the log does not have, may be written now.

        Otherwise raises EarlyBatchError if the batch may be parked until its turn, and another KafkaError if the batch
        is refused: with LayoutRefusedError permanently, or so that the producer refreshes metadata and repeats it.
        """
        key, layout = partition.key, partition.layout
        info = self._metadata.topics.get(key.topic)
        check = produce_admission(key, layout, partition.delivery, None, placement)
        if info is not None and _is_announced(info, layout):
            self._admit_announced(session, partition, info, check, batch)
        elif check is not None and verifies_keys(key.partition, layout, partition.delivery, None):
            self._admit_verified(session, key, info, layout.layout_version, check, batch)
        else:
            if check is not None:
                check(batch)
            if _is_awaited(session, key) and not batch.has_producer_id:
                _check_order(session, key, batch, self._clock.monotonic())

    def refused_before_leading(self, session: ClientSession, key: TopicPartition, batch: RecordBatch) -> None:
        """Await a batch that is refused because this broker does not lead yet. Raises CorruptRecordError."""
        if session.repeats_until_led and can_be_awaited(batch):
            records = batch.sent_records()
            _retry_order(session, key, self._clock.monotonic()).refused_before_leading(records)

    def _admit_announced(
        self,
        session: ClientSession,
        partition: Partition,
        info: CachedTopic,
        check: Admission | None,
        batch: RecordBatch,
    ) -> None:
        key, layout, topic_id = partition.key, partition.layout, info.topic_id
        version = layout.layout_version + 1
        counts = (layout.undeleted_partition_count, info.announced_partition_count)
        if check is not None:
            check(batch)
        now = self._clock.monotonic()
        owed = self._owed_by(session, key.topic, topic_id, version)
        owed[key.partition] = math.inf
        if batch.producer_id < 0:
            _check_order(session, key, batch, now)
            is_last = not _is_awaited(session, key)
        else:
            is_last = session.is_furthest(key, batch)
            if is_last:
                session.note_furthest(key, batch)
            _check_sequence(session, partition, batch, topic_id, version, now)
        is_moving = session.waits_for_leaders and _is_moving(batch, key.partition, *counts)
        if is_moving:
            self._misplaced_at[key.topic] = now
            is_next = batch.producer_id >= 0 or is_last
            again_s = REFRESH_AGAIN_S if session.refreshes_seldom else math.inf
            is_due = info.refreshes_stock_producers and is_next
            if is_due and session.refresh(key.topic, topic_id, version, now, again_s):
                if batch.producer_id < 0:
                    _retry_order(session, key, now).refused(batch.sent_records())
                raise _repeat(session, f"{key}: the topic is about to have {info.announced_partition_count} partitions")
        if is_last and is_moving:
            owed[key.partition] = now + self._silence_s
        elif is_last:
            del owed[key.partition]

    def _owed_by(self, session: ClientSession, topic: str, topic_id: uuid.UUID, version: int) -> dict[int, float]:
        owed = self._owed.get(topic)
        if owed is None or (owed.topic_id, owed.layout_version) != (topic_id, version):
            owed = self._owed[topic] = Owed(topic_id, version)
        return owed.partitions.setdefault(session, {})

    def _admit_verified(
        self,
        session: ClientSession,
        key: TopicPartition,
        info: CachedTopic | None,
        version: int,
        check: Admission,
        batch: RecordBatch,
    ) -> None:
        topic_id = None if info is None else info.topic_id
        now = self._clock.monotonic()
        try:
            check(batch)
            if batch.producer_id < 0:
                _check_order(session, key, batch, now)
        except LayoutRefusedError as refusal:
            is_in_flight = batch.producer_id >= 0 and session.is_refreshing(key.topic, topic_id, version, now)
            is_first = not is_in_flight and session.refresh(key.topic, topic_id, version, now)
            if batch.producer_id < 0:
                _refused_for_good(session, key, batch, now, is_repeated=is_first)
            if is_first or is_in_flight:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, refusal.message) from refusal
            raise


def _is_announced(info: CachedTopic | None, layout: Layout) -> bool:
    return info is not None and info.announced_partition_count > layout.undeleted_partition_count >= 0


def _check_sequence(
    session: ClientSession, partition: Partition, batch: RecordBatch, topic_id: uuid.UUID, version: int, now: float
) -> None:
    """Raise unless an idempotent producer's batch may be written now: other batches may have to be repeated first.

    The log's own check is made here as well: a batch that the log refuses has to be repeated, so it stays awaited.
    """
    key = partition.key
    if session.is_refreshing(key.topic, topic_id, version, now):
        raise _repeat(session, f"{key}: {_EARLIER_FIRST}")
    producers = partition.log.producers
    session.awaited.check(key, batch, producers, now, session.repeat_code)
    producers.check(batch, AppendOrigin.CLIENT)


def _check_order(session: ClientSession, key: TopicPartition, batch: RecordBatch, now: float) -> None:
    """Raise unless a batch of a producer without idempotence may be written now."""
    order = session.retry_orders.get(key)
    if order is None:
        return
    records = batch.sent_records()
    turn = order.turn(records, now)
    if turn is BatchTurn.EARLY:
        raise EarlyBatchError(key, order, records, session.repeat_code)
    if turn is BatchTurn.LATER:
        raise _repeat(session, f"{key}: {_EARLIER_FIRST}")
    if turn is BatchTurn.NEVER:
        raise LayoutRefusedError(
            ErrorCode.POLICY_VIOLATION,
            f"{key}: the batch repeats records that were refused permanently, or that precede records written "
            "meanwhile; writing them now would break their order: make the producer idempotent (enable.idempotence)",
        )


def _refused_for_good(
    session: ClientSession, key: TopicPartition, batch: RecordBatch, now: float, *, is_repeated: bool
) -> None:
    """Note that no record of the batch may be written. ``is_repeated``: the error makes the producer repeat them."""
    if is_repeated:
        _retry_order(session, key, now).refused_for_good(batch.sent_records())
    elif _is_awaited(session, key):
        _retry_order(session, key, now).forget(batch.sent_records())


def _retry_order(session: ClientSession, key: TopicPartition, now: float) -> RetryOrder:
    return session.retry_orders.setdefault(key, RetryOrder(now))


def _is_awaited(session: ClientSession, key: TopicPartition) -> bool:
    order = session.retry_orders.get(key)
    return order is not None and not order.is_empty


def _is_moving(batch: RecordBatch, partition: int, count: int, announced: int) -> bool:
    """Whether all keys belong here with ``count`` partitions, and a key moves with ``announced`` partitions.

    If a producer uses another partitioner, it cannot follow the split, so the split does not wait for it.
    """
    keys = batch.keys()
    hashes = [positive_hash(key) for key in keys if key is not None]
    if any(found % count != partition for found in hashes):
        return False
    return any(found % announced != partition for found in hashes)


def _repeat(session: ClientSession, message: str) -> KafkaError:
    return KafkaError(session.repeat_code, message)
