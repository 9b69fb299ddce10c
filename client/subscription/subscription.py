"""A consumer's subscription and its position in each partition. No IO."""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from anabranch.client.cluster import Cluster
from anabranch.client.errors import ErrorCode, IllegalStateError, KafkaError, error_for
from anabranch.client.subscription.fetched_batch import ConsumerRecord, Deserializers, FetchedBatch, Records
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import LATEST_TIMESTAMP, NO_EPOCH, NO_INCARNATION, NO_NODE, NO_OFFSET
from anabranch.protocol.types import TopicPartition


class FetchState(enum.Enum):
    """The states of an assigned partition. A partition is fetched in ``FETCHING`` only.

    There is no table of transitions, because each state may follow any state: at any time the user may seek, the
    position may be reset, and the partition may be removed and created again.
    """

    INITIALIZING = "initializing"
    """No position yet: the committed offset decides."""
    AWAIT_RESET = "await reset"
    """The position comes from the partition's start, end or a time."""
    AWAIT_VALIDATION = "await validation"
    """The leader changed. It is not known yet whether the records read are still in the log."""
    FETCHING = "fetching"


class AssignedPartition:
    """One assigned partition. The user gets ``position`` next, the broker is asked for ``fetch_offset`` next."""

    __slots__ = (
        "buffer",
        "buffered_bytes",
        "current_leader_epoch",
        "delivered_end",
        "error",
        "fetch_offset",
        "high_watermark",
        "incarnation",
        "last_fetched_epoch",
        "last_stable_offset",
        "log_start_offset",
        "max_leader_epoch",
        "paused",
        "position",
        "position_epoch",
        "read_replica",
        "read_replica_until",
        "refusals",
        "refused_epoch",
        "reset_timestamp",
        "retry_at",
        "state",
        "stored",
        "stored_epoch",
        "stored_metadata",
        "stores",
        "tp",
        "uncommitted_start",
        "version",
    )

    def __init__(self, tp: TopicPartition, *, stores: bool = False) -> None:
        self.tp = tp
        self.stores = stores
        """Whether the user stores the offsets of processed records (``enable_auto_offset_store=False``)."""
        self.stored = NO_OFFSET
        """With ``stores``: the records before this offset are processed, if it is below ``delivered_end``."""
        self.stored_epoch = NO_EPOCH
        self.stored_metadata = ""
        self.delivered_end = NO_OFFSET
        """With ``stores``: the offset after the last record that the user got since the position jumped; -1: none."""
        self.state = FetchState.INITIALIZING
        self.position = NO_OFFSET
        self.position_epoch = NO_EPOCH
        """Leader epoch of the last record before ``position``."""
        self.fetch_offset = NO_OFFSET
        self.last_fetched_epoch = NO_EPOCH
        self.current_leader_epoch = NO_EPOCH
        self.reset_timestamp = LATEST_TIMESTAMP
        self.paused = False
        self.high_watermark = NO_OFFSET
        self.last_stable_offset = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.buffer: deque[FetchedBatch] = deque()
        self.buffered_bytes = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None
        self.version = 0
        """Rises when the position jumps. Then a response to an older request is dropped."""
        self.read_replica = NO_NODE
        self.read_replica_until = 0.0
        self.incarnation = NO_INCARNATION
        """The incarnation of the partition in which the position lies (KIP-253); -1 if not known."""
        self.max_leader_epoch = EVERY_EPOCH
        """Batches of leader epochs above this limit are not delivered yet."""
        self.refusals = 0
        """How often in a row the broker refused the leader epoch that this client knows."""
        self.uncommitted_start: int | None = None
        """The uncommitted offset where the group begins in a resized topic, by ``auto_offset_reset="latest"``.

        It is -1 until the offset is known, and None if there is no offset to commit.
        """
        self.refused_epoch: int | None = None
        """The leader epoch that was refused."""

    def seek(self, offset: int, epoch: int = NO_EPOCH) -> None:
        """Go on from ``offset``. Fetched records are dropped."""
        self._drop()
        self.uncommitted_start = None
        self.position = self.fetch_offset = offset
        self.position_epoch = self.last_fetched_epoch = epoch
        self.state = FetchState.FETCHING if epoch < 0 else FetchState.AWAIT_VALIDATION

    def reset(self, timestamp: int) -> None:
        """Take the position from the partition's start, end or a time once that offset is known."""
        self._drop()
        self.uncommitted_start = None
        self.state = FetchState.AWAIT_RESET
        self.reset_timestamp = timestamp

    def restart(self, incarnation: int) -> None:
        """Find the position again, because the partition was removed and another with its number was created."""
        self._drop()
        self.uncommitted_start = None
        self.state = FetchState.INITIALIZING
        self.position = self.fetch_offset = NO_OFFSET
        self.position_epoch = self.last_fetched_epoch = NO_EPOCH
        self.high_watermark = self.last_stable_offset = self.log_start_offset = NO_OFFSET
        self.current_leader_epoch = NO_EPOCH
        self.incarnation = incarnation

    def validate(self) -> None:
        """Stop fetching until it is known whether records that were fetched have been truncated from the log."""
        if self.state is FetchState.FETCHING and self.last_fetched_epoch >= 0:
            self.state = FetchState.AWAIT_VALIDATION

    def validated(self) -> None:
        if self.state is FetchState.AWAIT_VALIDATION:
            self.state = FetchState.FETCHING

    def _drop(self) -> None:
        self.version += 1
        self.stored = self.delivered_end = NO_OFFSET
        self.stored_metadata = ""
        self.buffer.clear()
        self.buffered_bytes = 0
        self.error = None
        self.retry_at = 0.0

    def add(self, fetched: FetchedBatch) -> None:
        """Buffer a batch that begins at ``fetch_offset`` or contains it."""
        self.buffer.append(fetched)
        self._pass_gap()
        self.buffered_bytes += fetched.size_bytes
        self.fetch_offset = fetched.batch.next_offset
        if fetched.leader_epoch >= 0:
            self.last_fetched_epoch = fetched.leader_epoch

    def take(self, limit: int) -> list[tuple[FetchedBatch, int, int]]:
        """Give out at most ``limit`` buffered records and move the position past them."""
        spans: list[tuple[FetchedBatch, int, int]] = []
        before = self.processed if self.stores else None
        while self.buffer and limit > 0:
            fetched = self.buffer[0]
            if fetched.left:
                if fetched.leader_epoch > self.max_leader_epoch or not self._keep_readable(fetched.batch):
                    break
                span = fetched.take(limit)
                limit -= span[2] - span[1]
                spans.append(span)
            self.position = fetched.position()
            if fetched.leader_epoch >= 0:
                self.position_epoch = fetched.leader_epoch
            if not fetched.left:
                self.buffer.popleft()
                self.buffered_bytes -= fetched.size_bytes
                self._pass_gap()
        if before is not None and spans:
            self.stored, self.stored_epoch = before
            last, _, stop = spans[-1]
            self.delivered_end = last.offset_after(stop)
        return spans

    def take_row(self) -> ConsumerRecord[Any, Any] | None:
        """``take(1)`` of a record that ``prepare_rows`` has prepared; None if there is none.

        As with ``take``, the position is behind the record if its deserializer fails.
        """
        fetched = self.buffer[0]
        if fetched.taken >= fetched.rows_end or fetched.leader_epoch > self.max_leader_epoch:
            return None
        fetched.taken += 1
        self.position += 1
        try:
            return next(fetched.rows)
        except BaseException:
            fetched.rows_end = 0  # the rows end at an error
            raise

    def prepare_rows(self, deserializers: Deserializers, limit: int) -> None:
        """Prepare at most ``limit`` records of the batch that the last ``take`` ended in."""
        if self.buffer and self.buffer[0].taken and not self.stores:
            self.buffer[0].prepare_rows(self.tp, deserializers, limit)

    def _keep_readable(self, batch: RecordBatch) -> bool:
        """Drop a batch that may not be decompressed, and set ``error``; it is fetched again later. False if dropped."""
        try:
            batch.ensure_size()
        except CorruptRecordError as failure:
            hint = ""
            if failure.code is ErrorCode.MESSAGE_TOO_LARGE:
                hint = f" by max_decompressed_batch_bytes. Raise it, or seek to offset {batch.next_offset}"
            where = f"{self.tp}: the batch of {batch.length} bytes at offset {batch.base_offset}"
            self.error = error_for(failure.code, f"{where}: {failure.message}{hint}")
            self.version += 1  # the answer to a fetch of later batches is dropped
            self.buffer.clear()
            self.buffered_bytes = 0
            self.fetch_offset, self.last_fetched_epoch = self.position, self.position_epoch
            return False
        return True

    def give_back(self, spans: list[tuple[FetchedBatch, int, int]], read: int) -> None:
        """Undo the end of a ``take`` that returned ``spans``: all records but the first ``read`` are buffered again.

        The position must not have moved since.
        """
        unread: list[FetchedBatch] = []
        epoch = NO_EPOCH
        for fetched, start, stop in spans:
            count = min(read, stop - start)
            read -= count
            if count:
                epoch = fetched.leader_epoch
            if count < stop - start:
                fetched.give_back(stop - start - count)
                unread.append(fetched)
        for fetched in reversed(unread):
            if not self.buffer or self.buffer[0] is not fetched:
                self.buffer.appendleft(fetched)
                self.buffered_bytes += fetched.size_bytes
        if unread:
            self.position, self.position_epoch = unread[0].position(), epoch

    @property
    def processed(self) -> tuple[int, int]:
        """(offset, leader epoch) up to which all records are processed: what a commit and a report say.

        It is the position, unless the user stores offsets and has not stored the last record that was delivered.
        """
        if self.stored >= self.delivered_end:
            return self.position, self.position_epoch
        return self.stored, self.stored_epoch

    def check_storable(self, offset: int) -> None:
        """Raise ``IllegalStateError`` if some record before ``offset`` was not delivered."""
        if offset > self.position:
            known = f"only records before {self.position} were" if self.has_position else "no record was"
            raise IllegalStateError(f"{self.tp}: offset {offset} cannot be stored: {known} delivered")

    def store(self, offset: int, epoch: int, metadata: str) -> None:
        """Take all records before ``offset`` as processed."""
        if self.delivered_end < 0:
            self.delivered_end = self.position
        self.stored, self.stored_epoch, self.stored_metadata = offset, epoch, metadata

    def pass_start(self, log_start_offset: int) -> None:
        """Move the position to the start of the log, if the position is before the start and nothing is buffered.

        Other partitions then do not wait for records that do not exist.
        """
        if not self.buffer and 0 <= self.position < log_start_offset:
            self.position = self.fetch_offset = log_start_offset
            self.position_epoch = self.last_fetched_epoch = NO_EPOCH

    def _pass_gap(self) -> None:
        """Move the position over a gap that compaction left before the first buffered batch.

        The batch may wait for other partitions. Without the move, readers of those partitions would wait for the
        removed records. The last leader epoch read may end in the gap, so the position's epoch is not known after the
        move.
        """
        if self.buffer and self.buffer[0].batch.base_offset > self.position:
            self.position, self.position_epoch = self.buffer[0].batch.base_offset, NO_EPOCH

    @property
    def is_blocked(self) -> bool:
        """Whether the first buffered batch must wait so that keys keep their order."""
        return bool(self.buffer) and self.buffer[0].leader_epoch > self.max_leader_epoch

    @property
    def has_blocked(self) -> bool:
        """Whether some buffered batch must wait. Leader epochs ascend in a log, so the last batch decides."""
        return bool(self.buffer) and self.buffer[-1].leader_epoch > self.max_leader_epoch

    @property
    def has_position(self) -> bool:
        return self.state in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION)


@dataclass(frozen=True, slots=True)
class TakenRecords:
    """Records of one partition, and the state of the partition when they were taken."""

    records: Records[Any, Any]
    state: AssignedPartition
    version: int


class Mode(enum.Enum):
    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    MANUAL = "manual"


class Subscription:
    """The subscribed topics, or the partitions assigned by hand, and the state of every assigned partition."""

    def __init__(self, *, has_group: bool = True, stores: bool = False) -> None:
        self._has_group = has_group
        self._stores = stores
        self.mode = Mode.NONE
        self.topics: frozenset[str] = frozenset()
        self.pattern: re.Pattern[str] | None = None
        self.partitions: dict[TopicPartition, AssignedPartition] = {}
        self._turn = 0

    # ------------------------------------------------------------ what to read

    def subscribe(self, topics: Iterable[str]) -> None:
        self._become(Mode.TOPICS)
        self.topics = frozenset(topics)

    def subscribe_pattern(self, pattern: str | re.Pattern[str]) -> None:
        self._become(Mode.PATTERN)
        self.pattern = re.compile(pattern)
        self.topics = frozenset()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly ``partitions``. Partitions that were already assigned keep their position."""
        self._become(Mode.MANUAL)
        self.set_assignment(partitions)

    def assign_more(self, partitions: Iterable[TopicPartition]) -> None:
        """Also read ``partitions``, none of which is assigned yet."""
        wanted = list(partitions)
        for tp in wanted:
            if tp in self.partitions:
                raise IllegalStateError(f"{tp} is assigned to this consumer already")
        self._become(Mode.MANUAL)
        self.set_assignment([*self.partitions, *wanted])

    def assign_fewer(self, partitions: Iterable[TopicPartition]) -> None:
        """Read ``partitions``, all of which are assigned, no more."""
        gone = {self.state(tp).tp for tp in partitions}
        self._become(Mode.MANUAL)
        self.set_assignment([tp for tp in self.partitions if tp not in gone])

    def unsubscribe(self) -> None:
        self.mode = Mode.NONE
        self.topics = frozenset()
        self.pattern = None
        self.partitions = {}

    def _become(self, mode: Mode) -> None:
        if self.mode not in (Mode.NONE, mode):
            raise IllegalStateError(
                f"subscribe by topics, subscribe by pattern and assign exclude each other; "
                f"this consumer uses {self.mode.value}: call unsubscribe() first"
            )
        self.mode = mode

    @property
    def is_group_managed(self) -> bool:
        return self._has_group and self.mode in (Mode.TOPICS, Mode.PATTERN)

    @property
    def takes_every_partition(self) -> bool:
        """Whether topics are subscribed without a group. Then every partition of the topics is read here."""
        return not self._has_group and self.mode in (Mode.TOPICS, Mode.PATTERN)

    def match(self, cluster: Cluster, *, exclude_internal: bool) -> bool:
        """Find the topics of the pattern in ``cluster``. Returns True if they have changed."""
        if self.pattern is None:
            return False
        matched = frozenset(
            name
            for name, topic in cluster.topics.items()
            if topic.partitions and not (exclude_internal and topic.internal) and self.pattern.match(name)
        )
        changed = matched != self.topics
        self.topics = matched
        return changed

    # ------------------------------------------------------------ partitions

    def set_assignment(self, partitions: Iterable[TopicPartition]) -> None:
        """Own exactly ``partitions``. Partitions that were already owned keep their state."""
        known, stores = self.partitions, self._stores
        self.partitions = {tp: known.get(tp) or AssignedPartition(tp, stores=stores) for tp in partitions}

    def follow(self, cluster: Cluster, *, exclude_internal: bool) -> bool:
        """Without a group: own every present partition of the topics. Returns True if the owned partitions changed.

        A removed partition stays until its fetched records are delivered. Partitions of a topic without known metadata
        stay too.
        """
        self.match(cluster, exclude_internal=exclude_internal)
        found = {TopicPartition(name, p) for name in self.topics for p in _partitions(cluster, name)}
        for tp, state in self.partitions.items():
            if tp.topic in self.topics and (state.buffer or not _partitions(cluster, tp.topic)):
                found.add(tp)
        if found == self.partitions.keys():
            return False
        self.set_assignment(sorted(found))
        return True

    def state(self, tp: TopicPartition) -> AssignedPartition:
        """The state of an assigned partition. Raises IllegalStateError for any other partition."""
        state = self.partitions.get(tp)
        if state is None:
            raise IllegalStateError(f"{tp} is not assigned to this consumer")
        return state

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, leader epoch) of each partition's processed records. A commit without arguments commits these."""
        return {tp: s.processed for tp, s in self.partitions.items() if s.has_position}

    def in_state(self, state: FetchState) -> list[AssignedPartition]:
        return [s for s in self.partitions.values() if s.state is state and s.error is None]

    def on_metadata(self, cluster: Cluster) -> None:
        """Validate positions where the leader epoch grew (KIP-320). Find the position again for another incarnation."""
        for tp, state in self.partitions.items():
            info = cluster.partition(tp)
            if info is not None and info.incarnation != state.incarnation and info.incarnation >= 0:
                if state.incarnation >= 0:
                    state.restart(info.incarnation)
                state.incarnation = info.incarnation
            epoch = cluster.leader_epoch(tp)
            if epoch > state.current_leader_epoch:
                if state.current_leader_epoch >= 0:
                    state.validate()
                state.current_leader_epoch = epoch

    # ------------------------------------------------------------ delivery

    def collect(
        self, max_records: int, only: Iterable[TopicPartition], deserializers: Deserializers, *, most: int | None = None
    ) -> dict[TopicPartition, Records]:
        """Take at most ``max_records`` buffered records, of at most ``most`` partitions, which take turns.

        The result is empty if nothing is deliverable. The error of a partition is raised once, and only if no records
        were taken before the error.
        """
        found: dict[TopicPartition, Records] = {}
        for state in self._in_turn(frozenset(only)):
            spans = state.take(max_records)
            if state.error is not None and not state.buffer and not spans and not found:
                error, state.error = state.error, None
                raise error
            if spans:
                records = found[state.tp] = Records(state.tp, spans, deserializers)
                max_records -= len(records)
                if max_records <= 0 or len(found) == most:
                    break
        return found

    def _in_turn(self, only: frozenset[TopicPartition]) -> Iterator[AssignedPartition]:
        """Partitions that may deliver, beginning with a different partition each time."""
        states = list(self.partitions.values())
        if not states:
            return
        first = self._turn % len(states)
        self._turn += 1
        for state in states[first:] + states[:first]:
            readable = state.state is FetchState.FETCHING and not state.paused
            failed = state.error is not None and not (state.paused and state.buffer)  # the records come before it
            if (readable or failed) and (not only or state.tp in only):
                yield state


def _partitions(cluster: Cluster, topic: str) -> Iterable[int]:
    known = cluster.topics.get(topic)
    return known.partitions if known is not None else ()
