"""Correct histories of a topic that grows and shrinks, from a random source, like ``generated``.

This module uses the promise itself, not the gate's rules. A record is delivered when all earlier records of its
producer and key in other partitions are delivered, flushed, committed and loaded.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from msgspec import structs

from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from tests.history.events import (
    ARCHIVE,
    EXPIRED,
    Acked,
    Assigned,
    Committed,
    Created,
    Drained,
    Event,
    Expired,
    Fault,
    KeysFlushed,
    KeysLoaded,
    LayoutAsked,
    LayoutSet,
    NotWritten,
    OffsetFetched,
    OrderedGroup,
    Polled,
    PositionAnswered,
    PositionReported,
    Removed,
    Replica,
    Revoked,
    Sent,
    StoredBatch,
    WatermarkSeen,
)
from tests.history.key_states import KeyStates

BROKERS = (1, 2, 3)
PRODUCERS = ("left", "right")
MEMBERS = ("one", "two")
GROUP = "readers"
TOPIC = "t"
INITIAL = 2
MOST = 8
KEYS = 4


@dataclass(slots=True)
class _Partition:
    """One incarnation of a partition: its log, shared by all replicas, and the group's position in it.

    Offsets below ``base`` belong to earlier incarnations, and have blanks in ``values``.
    """

    tp: TopicPartition
    incarnation: int
    epoch: int
    base: int = 0
    owner: str = ""
    batches: list[StoredBatch] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    position: int = 0
    committed: int = 0
    start: int = 0
    """The log start."""
    flushed_at: int = -1
    """The event number of the last flush."""
    loaded_at: int = -1

    def __post_init__(self) -> None:
        self.values = [""] * self.base
        self.position = self.committed = self.start = self.base

    @property
    def is_processed(self) -> bool:
        return self.committed == len(self.values)

    def batch_on(self, broker: int, at_ms: float, batch: StoredBatch) -> StoredBatch:
        return structs.replace(
            batch, at_ms=at_ms, broker=broker, values=list(batch.values), incarnation=self.incarnation
        )

    def replica(self, at_ms: float, broker: int, high_watermark: int) -> list[Event]:
        end = len(self.values)
        found: list[Event] = [
            Replica(at_ms, broker, self.tp, self.start, end, high_watermark, incarnation=self.incarnation)
        ]
        kept = [batch for batch in self.batches if batch.base_offset >= self.start]
        return found + [self.batch_on(broker, at_ms, batch) for batch in kept]


@dataclass(slots=True)
class _Generator:
    rng: random.Random
    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    partitions: list[_Partition] = field(default_factory=list)
    removed: list[_Partition] = field(default_factory=list)
    last_epochs: dict[int, int] = field(default_factory=dict)
    last_ends: dict[int, int] = field(default_factory=dict)
    undeleted: int = INITIAL
    version: int = 0
    incarnations: int = 0
    sequences: dict[tuple[str, int], int] = field(default_factory=dict)
    places: dict[tuple[str, str], list[tuple[_Partition, int]]] = field(default_factory=dict)
    """For each producer and key: the places of the records, in the order of sending."""
    stored: dict[str, tuple[int, str]] = field(default_factory=dict)
    states: dict[str, KeyStates] = field(default_factory=dict)
    generation: int = 0
    count: int = 0

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def add(self, event: Event) -> None:
        self.events.append(event)

    # ------------------------------------------------------------ the topic

    def begin(self) -> None:
        self.states = {member: KeyStates(self.stored) for member in MEMBERS}
        self.add(OrderedGroup(self.tick(), GROUP))
        for _ in range(INITIAL):
            self._create()
        self.rebalance()

    def _create(self) -> _Partition:
        number = len(self.partitions)
        self.incarnations += 1
        epoch = self.last_epochs.get(number, -1) + 1
        partition = _Partition(TopicPartition(TOPIC, number), self.incarnations, epoch, self.last_ends.get(number, 0))
        self.partitions.append(partition)
        self.add(Created(self.tick(), partition.tp, partition.incarnation))
        self._announce_layout(partition)
        return partition

    def _announce_layout(self, partition: _Partition) -> None:
        self.add(
            LayoutSet(
                self.tick(),
                partition.tp,
                partition.incarnation,
                partition.epoch,
                INITIAL,
                self.undeleted,
                self.version,
            )
        )

    def _resize(self, count: int) -> None:
        self.undeleted, self.version = count, self.version + 1
        for partition in self.partitions:
            partition.epoch += 1
            self._announce_layout(partition)

    def grow(self) -> None:
        """Grow the topic: closed partitions that still exist are revived, and the other new partitions are created."""
        if self.undeleted == MOST:
            return
        self._resize(self.rng.randint(self.undeleted + 1, MOST))
        while len(self.partitions) < self.undeleted:
            self._create()
        self.rebalance()

    def shrink(self) -> None:
        if self.undeleted == INITIAL:
            return
        self._resize(self.rng.randint(INITIAL, self.undeleted - 1))

    def remove(self) -> None:
        """Remove closed partitions from the last one down, as long as each is read to its end and flushed."""
        last = self.partitions[-1]
        if last.start == len(last.values):
            self.commit(last)
        while len(self.partitions) > self.undeleted and self.partitions[-1].is_processed:
            gone = self.partitions.pop()
            self.last_epochs[gone.tp.partition] = gone.epoch
            self.last_ends[gone.tp.partition] = len(gone.values)
            self.removed.append(gone)
            self.add(Revoked(self.tick(), GROUP, gone.owner, self.generation, [gone.tp]))
            self.add(Removed(self.tick(), gone.tp, gone.incarnation))

    def expire(self) -> None:
        """Retention removes batches, whether they are read and flushed or not. A reader continues at the log start."""
        partition = self.rng.choice(self.partitions)
        left = [batch for batch in partition.batches if batch.base_offset >= partition.start]
        if not left:
            return
        gone = left[: self.rng.randint(1, len(left))]
        partition.start, broker = gone[-1].next_offset, self.rng.choice(BROKERS)
        self.events += [partition.batch_on(EXPIRED, self.tick(), batch) for batch in gone]
        self.add(Expired(self.tick(), broker, partition.tp, partition.start, partition.incarnation))

    def fail_over(self) -> None:
        partition = self.rng.choice(self.partitions)
        partition.epoch += 1
        self.add(Fault(self.tick(), "kill", f"the leader of {partition.tp}"))

    # ------------------------------------------------------------ producers

    def send(self) -> None:
        producer = self.rng.choice(PRODUCERS)
        key = f"{producer}-{self.rng.randrange(KEYS)}"
        partition = self.partitions[place(positive_hash(key.encode()), INITIAL, self.undeleted)]
        values = []
        for _ in range(self.rng.randint(1, 3)):
            values.append(f"{producer}:{self.count}")
            self.count += 1
            self.add(Sent(self.tick(), producer, TOPIC, key, values[-1]))
        base, counter = len(partition.values), (producer, partition.incarnation)
        sequence = self.sequences.get(counter, 0)
        self.sequences[counter] = sequence + len(values)
        partition.batches.append(
            StoredBatch(
                0.0,
                0,
                partition.tp,
                base,
                partition.epoch,
                f"digest of {values}",
                list(values),
                PRODUCERS.index(producer),
                0,
                sequence,
            )
        )
        partition.values += values
        answered = self.rng.random() < 0.9
        for offset, value in enumerate(values, base):
            self.places.setdefault((producer, key), []).append((partition, offset))
            if answered:
                self.add(Acked(self.tick(), producer, partition.tp, offset, value))
            else:
                self.add(NotWritten(self.tick(), producer, value, "unknown", "timed out"))

    def name_another_layout(self) -> None:
        """A producer with an old layout, or with an invented one, is refused."""
        partition = self.rng.choice(self.partitions)
        version = self.rng.choice([self.version + 1000, self.version - 1])
        value = f"stale:{self.count}"
        self.count += 1
        self.add(Sent(self.tick(), "stale", TOPIC, "stale", value))
        self.add(NotWritten(self.tick(), "stale", value, "refused", "INVALID_PARTITION_METADATA"))
        self.add(LayoutAsked(self.tick(), partition.tp, self.undeleted, version, "INVALID_PARTITION_METADATA", value))

    # ------------------------------------------------------------ the group

    def rebalance(self, dead: str = "") -> None:
        """Revoke and assign all partitions. A dead member does not flush, so its uncommitted records are read again."""
        for partition in self.partitions:
            if partition.owner not in ("", dead):
                self.states[partition.owner].flush([partition.tp])
                self.add(Revoked(self.tick(), GROUP, partition.owner, self.generation, [partition.tp]))
        self.states = {member: KeyStates(self.stored) for member in MEMBERS}
        self.generation += 1
        for partition in self.partitions:
            partition.owner = self.rng.choice([member for member in MEMBERS if member != dead])
            self._assign(partition)

    def crash(self) -> None:
        self.rebalance(dead=self.rng.choice(MEMBERS))

    def _assign(self, partition: _Partition) -> None:
        tp = partition.tp
        self.states[partition.owner].load([tp])
        self.add(Assigned(self.tick(), GROUP, partition.owner, self.generation, [tp]))
        partition.loaded_at = len(self.events)
        answer = partition.committed or -1
        self.add(OffsetFetched(self.tick(), GROUP, tp, answer, self.now - 0.5, incarnation=partition.incarnation))
        partition.position = partition.committed

    def commit(self, partition: _Partition | None = None) -> None:
        partition = partition or self.rng.choice(self.partitions)
        tp, owner = partition.tp, partition.owner
        partition.position = max(partition.position, partition.start)
        if partition.position == 0:
            return
        self.states[owner].flush([tp])
        self.add(KeysFlushed(self.tick(), GROUP, owner, self.generation, [tp]))
        partition.flushed_at = len(self.events)
        asked, partition.committed = self.tick(), partition.position
        incarnation = partition.incarnation
        self.add(
            Committed(self.tick(), GROUP, owner, self.generation, tp, partition.committed, "ok", asked, incarnation)
        )
        self.add(PositionReported(self.tick(), GROUP, owner, self.generation, tp, partition.position, incarnation))

    def poll(self) -> None:
        for partition in self.partitions:
            for _ in range(self.rng.randint(0, 4)):
                self._deliver(partition)

    def _deliver(self, partition: _Partition) -> bool:
        """Deliver the next record. Returns False if it may not be delivered yet."""
        partition.position = max(partition.position, partition.start)
        if partition.position == len(partition.values):
            return False
        tp, owner, value = partition.tp, partition.owner, partition.values[partition.position]
        producer, key = self._sender(partition, partition.position)
        for other, offset in self.places[producer, key]:
            if (other, offset) == (partition, partition.position):
                break
            if other is partition:
                continue
            if other.committed <= offset:
                if max(other.position, other.start) <= offset:
                    return False
                self.commit(other)
            if partition.loaded_at < other.flushed_at:
                self.add(PositionAnswered(self.tick(), GROUP, owner, other.tp, other.committed, other.incarnation))
                self.states[owner].load([tp])
                self.add(KeysLoaded(self.tick(), GROUP, owner, self.generation, [tp]))
                partition.loaded_at = len(self.events)
        state = self.states[owner].apply(tp, f"{producer} {key}", value, self.generation)
        self.add(
            Polled(self.tick(), GROUP, owner, tp, partition.position, value, self.generation, partition.epoch, state)
        )
        partition.position += 1
        return True

    def _sender(self, partition: _Partition, offset: int) -> tuple[str, str]:
        return next(sender for sender, places in self.places.items() if (partition, offset) in places)

    def look(self) -> None:
        partition = self.rng.choice(self.partitions)
        leader = BROKERS[partition.epoch % len(BROKERS)]
        asked = self.tick()
        self.add(WatermarkSeen(self.tick(), partition.tp, leader, partition.epoch, len(partition.values), asked))

    def end(self) -> None:
        self.rebalance()
        waiting = [True]
        while any(waiting):
            waiting = [self._deliver(partition) for partition in self.partitions]
        for partition in self.partitions + self.removed:
            end = len(partition.values)
            assert partition.position == end, f"{partition.tp} waits at {partition.position} of {end}"
            self.add(Drained(self.tick(), GROUP, partition.tp, end, partition.incarnation))
        for partition in self.partitions:
            for broker in BROKERS:
                self.events += partition.replica(self.tick(), broker, len(partition.values))
        for partition in self.removed:
            self.events += partition.replica(self.tick(), ARCHIVE, len(partition.values))


def correct_resized_history(seed: int, steps: int = 150, *, expires: bool = False) -> list[Event]:
    """A history of growing, shrinking, removal and creation again, under load and rebalances, from a seed.

    With ``expires`` retention removes records, some of them unread.
    """
    generator = _Generator(random.Random(seed))
    generator.begin()
    weighted = [
        (generator.send, 10),
        (generator.poll, 8),
        (generator.commit, 4),
        (generator.look, 2),
        (generator.rebalance, 1),
    ]
    weighted += [
        (generator.fail_over, 1),
        (generator.crash, 1),
        (generator.grow, 2),
        (generator.shrink, 1),
        (generator.remove, 3),
    ]
    weighted += [(generator.name_another_layout, 1), *([(generator.expire, 2)] if expires else [])]
    actions = [action for action, weight in weighted for _ in range(weight)]
    for _ in range(steps):
        generator.rng.choice(actions)()
    generator.end()
    return generator.events
