"""What a consumer reads and where it stands in each partition. No IO."""

from __future__ import annotations

import enum
import re
from collections import deque
from collections.abc import Iterable, Iterator

from anabranch.client.errors import IllegalStateError, KafkaError
from anabranch.client.net.cluster import Cluster
from anabranch.client.subscription.fetched import Deserializers, FetchedBatch, Records
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.sentinels import LATEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition


class FetchState(enum.Enum):
    """Why a partition is fetched or not."""

    INITIALIZING = "initializing"
    """No position yet: the committed offset decides."""
    AWAIT_RESET = "await reset"
    """The position comes from the partition's start, end or a time."""
    AWAIT_VALIDATION = "await validation"
    """The leader changed: is what was read still in the log?"""
    FETCHING = "fetching"


class AssignedPartition:
    """One assigned partition. The user gets ``position`` next, the broker is asked for ``fetch_offset`` next."""

    __slots__ = (
        "buffer",
        "buffered_bytes",
        "current_leader_epoch",
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
        "tp",
        "uncommitted_start",
        "version",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.state = FetchState.INITIALIZING
        self.position = -1
        self.position_epoch = -1
        """Leader epoch of the last record before ``position``."""
        self.fetch_offset = -1
        self.last_fetched_epoch = -1
        self.current_leader_epoch = -1
        self.reset_timestamp = LATEST_TIMESTAMP
        self.paused = False
        self.high_watermark = -1
        self.last_stable_offset = -1
        self.log_start_offset = -1
        self.buffer: deque[FetchedBatch] = deque()
        self.buffered_bytes = 0
        self.retry_at = 0.0
        self.error: KafkaError | None = None
        self.version = 0
        """Goes up when the position jumps: an answer to an older request is dropped."""
        self.read_replica = -1
        self.read_replica_until = 0.0
        self.incarnation = -1
        """Which partition of this number the position is in (KIP-253); -1: not known."""
        self.max_leader_epoch = EVERY_EPOCH
        """Batches of newer leader epochs are not delivered yet."""
        self.refusals = 0
        """How often in a row the broker refused the leader epoch that this client knows of the partition."""
        self.uncommitted_start: int | None = None
        """Where the group begins in a resized topic by ``auto_offset_reset="latest"`` and has not said so by a commit;
        -1 until the offset is known.
        """
        self.refused_epoch: int | None = None
        """Which that was."""

    def seek(self, offset: int, epoch: int = -1) -> None:
        """Go on from ``offset``; what was fetched is dropped."""
        self._drop()
        self.uncommitted_start = None
        self.position = self.fetch_offset = offset
        self.position_epoch = self.last_fetched_epoch = epoch
        self.state = FetchState.FETCHING if epoch < 0 else FetchState.AWAIT_VALIDATION

    def reset(self, timestamp: int) -> None:
        """Take the position from the partition's start, end or a time once it is known."""
        self._drop()
        self.uncommitted_start = None
        self.state = FetchState.AWAIT_RESET
        self.reset_timestamp = timestamp

    def restart(self, incarnation: int) -> None:
        """The partition was removed and another one of its number created: its position is to be found anew."""
        self._drop()
        self.uncommitted_start = None
        self.state = FetchState.INITIALIZING
        self.position = self.fetch_offset = self.position_epoch = self.last_fetched_epoch = -1
        self.high_watermark = self.last_stable_offset = self.log_start_offset = -1
        self.current_leader_epoch = -1
        self.incarnation = incarnation

    def validate(self) -> None:
        """Stop fetching until it is known whether the log was truncated below what was fetched."""
        if self.state is FetchState.FETCHING and self.last_fetched_epoch >= 0:
            self.state = FetchState.AWAIT_VALIDATION

    def validated(self) -> None:
        if self.state is FetchState.AWAIT_VALIDATION:
            self.state = FetchState.FETCHING

    def _drop(self) -> None:
        self.version += 1
        self.buffer.clear()
        self.buffered_bytes = 0
        self.error = None
        self.retry_at = 0.0

    def add(self, fetched: FetchedBatch) -> None:
        """Buffer a batch that begins at or holds ``fetch_offset``."""
        self.buffer.append(fetched)
        self._pass_gap()
        self.buffered_bytes += fetched.size_bytes
        self.fetch_offset = fetched.batch.next_offset
        if fetched.leader_epoch >= 0:
            self.last_fetched_epoch = fetched.leader_epoch

    def take(self, limit: int) -> list[tuple[FetchedBatch, int, int]]:
        """Give out at most ``limit`` buffered records and move the position behind them."""
        spans: list[tuple[FetchedBatch, int, int]] = []
        while self.buffer and limit > 0:
            fetched = self.buffer[0]
            if fetched.left:
                if fetched.leader_epoch > self.max_leader_epoch:
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
        return spans

    def pass_start(self, log_start_offset: int) -> None:
        """The log begins behind the position, and nothing is at hand: nobody waits for what is not there."""
        if not self.buffer and 0 <= self.position < log_start_offset:
            self.position = self.fetch_offset = log_start_offset
            self.position_epoch = self.last_fetched_epoch = -1

    def _pass_gap(self) -> None:
        """Compaction left nothing up to what is at hand: that may wait for others, who wait for what was removed.

        A leader epoch read before may have ended below: that of the position is not known then.
        """
        if self.buffer and self.buffer[0].batch.base_offset > self.position:
            self.position, self.position_epoch = self.buffer[0].batch.base_offset, -1

    @property
    def is_held_back(self) -> bool:
        """Whether what is buffered must wait so that keys keep their order."""
        return bool(self.buffer) and self.buffer[0].leader_epoch > self.max_leader_epoch

    @property
    def has_held_back(self) -> bool:
        """Whether some of what is buffered must wait; leader epochs ascend in a log."""
        return bool(self.buffer) and self.buffer[-1].leader_epoch > self.max_leader_epoch

    @property
    def has_position(self) -> bool:
        return self.state in (FetchState.FETCHING, FetchState.AWAIT_VALIDATION)


class Mode(enum.Enum):
    NONE = "none"
    TOPICS = "topics"
    PATTERN = "pattern"
    MANUAL = "manual"


class Subscription:
    """Topics subscribed to, or partitions assigned by hand, and the state of every partition assigned."""

    def __init__(self, *, has_group: bool = True) -> None:
        self._has_group = has_group
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
        """Read exactly ``partitions``; those assigned before keep their position."""
        self._become(Mode.MANUAL)
        self.set_assignment(partitions)

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
        """Whether it is subscribed without a group: every partition of the topics is read here."""
        return not self._has_group and self.mode in (Mode.TOPICS, Mode.PATTERN)

    def match(self, cluster: Cluster, *, exclude_internal: bool) -> bool:
        """Find the topics of the pattern in ``cluster``; True when they are others than before."""
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
        """Hold exactly ``partitions``; those held before keep their state."""
        self.partitions = {tp: self.partitions.get(tp) or AssignedPartition(tp) for tp in partitions}

    def follow(self, cluster: Cluster, *, exclude_internal: bool) -> bool:
        """Without a group: hold every partition of the topics there are now. True when that changed something.

        A partition that was removed stays until what was fetched of it is delivered, and those of a topic of which
        nothing is known stay.
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
        """The state of an assigned partition; IllegalStateError for another."""
        state = self.partitions.get(tp)
        if state is None:
            raise IllegalStateError(f"{tp} is not assigned to this consumer")
        return state

    def positions(self) -> dict[TopicPartition, tuple[int, int]]:
        """(offset, leader epoch) of each partition that has a position: what a commit without arguments commits."""
        return {tp: (s.position, s.position_epoch) for tp, s in self.partitions.items() if s.has_position}

    def in_state(self, state: FetchState) -> list[AssignedPartition]:
        return [s for s in self.partitions.values() if s.state is state and s.error is None]

    def on_metadata(self, cluster: Cluster) -> None:
        """Have positions validated where the leader epoch grew (KIP-320), found anew where the partition is another."""
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
        """Take at most ``max_records`` buffered records, of ``most`` partitions in turn; empty: nothing is deliverable.

        Raises the error of a partition when nothing before it was taken; it is raised once.
        """
        found: dict[TopicPartition, Records] = {}
        for state in self._in_turn(frozenset(only)):
            if state.error is not None and not state.buffer:
                if not found:
                    error, state.error = state.error, None
                    raise error
                continue
            spans = state.take(max_records)
            if spans:
                records = found[state.tp] = Records(state.tp, spans, deserializers)
                max_records -= len(records)
                if max_records <= 0 or len(found) == most:
                    break
        return found

    def _in_turn(self, only: frozenset[TopicPartition]) -> Iterator[AssignedPartition]:
        """Partitions that may deliver, beginning with another one each time."""
        states = list(self.partitions.values())
        if not states:
            return
        first = self._turn % len(states)
        self._turn += 1
        for state in states[first:] + states[:first]:
            readable = state.state is FetchState.FETCHING and not state.paused
            if (readable or state.error is not None) and (not only or state.tp in only):
                yield state


def _partitions(cluster: Cluster, topic: str) -> Iterable[int]:
    known = cluster.topics.get(topic)
    return known.partitions if known is not None else ()
