"""Makes random histories that a correct cluster could have recorded."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from anabranch.protocol.types import TopicPartition
from tests.history.events import (
    Acked,
    Assigned,
    Committed,
    Drained,
    Event,
    Fault,
    NotWritten,
    OffsetFetched,
    Polled,
    Positioned,
    Replica,
    Revoked,
    Sent,
    StoredBatch,
    WatermarkSeen,
)

BROKERS = (1, 2, 3)
PARTITIONS = tuple(TopicPartition("t", number) for number in range(2))
PRODUCERS = ("left", "right")
MEMBERS = ("one", "two")
GROUP = "readers"
KEYS = 3


@dataclass(slots=True)
class _Generator:
    """One log for each partition, shared by all replicas, and a group whose members take turns."""

    rng: random.Random
    now: float = 0.0
    events: list[Event] = field(default_factory=list)
    batches: dict[TopicPartition, list[StoredBatch]] = field(default_factory=lambda: {tp: [] for tp in PARTITIONS})
    values: dict[TopicPartition, list[str]] = field(default_factory=lambda: {tp: [] for tp in PARTITIONS})
    epochs: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    sequences: dict[tuple[str, TopicPartition], int] = field(default_factory=dict)
    committed: dict[TopicPartition, int] = field(default_factory=lambda: dict.fromkeys(PARTITIONS, 0))
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    owner: dict[TopicPartition, str] = field(default_factory=dict)
    generation: int = 0
    count: int = 0

    def tick(self) -> float:
        self.now += 1.0
        return self.now

    def send(self) -> None:
        producer, tp = self.rng.choice(PRODUCERS), self.rng.choice(PARTITIONS)
        values = []
        for _ in range(self.rng.randint(1, 3)):
            key = f"{tp.partition}-{self.rng.randrange(KEYS)}"
            values.append(f"{producer}:{self.count}")
            self.count += 1
            self.events.append(Sent(self.tick(), producer, tp.topic, key, values[-1]))
        if self.rng.random() < 0.1:
            self.events += [NotWritten(self.tick(), producer, value, "refused", "too large") for value in values]
            return
        base, sequence = len(self.values[tp]), self.sequences.get((producer, tp), 0)
        self.batches[tp].append(
            StoredBatch(
                0.0,
                0,
                tp,
                base,
                self.epochs[tp],
                f"digest of {values}",
                list(values),
                PRODUCERS.index(producer),
                0,
                sequence,
            )
        )
        self.values[tp] += values
        self.sequences[producer, tp] = sequence + len(values)
        answered = self.rng.random() < 0.9
        for offset, value in enumerate(values, base):
            if answered:
                self.events.append(Acked(self.tick(), producer, tp, offset, value))
            else:
                self.events.append(NotWritten(self.tick(), producer, value, "unknown", "timed out"))

    def rebalance(self) -> None:
        for tp, member in self.owner.items():
            self.events.append(Revoked(self.tick(), GROUP, member, self.generation, [tp]))
        self.generation += 1
        self.owner = {tp: self.rng.choice(MEMBERS) for tp in PARTITIONS}
        for tp, member in self.owner.items():
            self.events.append(Assigned(self.tick(), GROUP, member, self.generation, [tp]))
            self.events.append(OffsetFetched(self.tick(), GROUP, tp, self.committed[tp] or -1, self.now - 0.5))
        self.positions = dict(self.committed)

    def poll(self) -> None:
        for tp, member in self.owner.items():
            for offset in range(self.positions[tp], len(self.values[tp]))[: self.rng.randint(0, 4)]:
                value = self.values[tp][offset]
                self.events.append(Polled(self.tick(), GROUP, member, tp, offset, value, self.generation))
                self.positions[tp] = offset + 1

    def commit(self) -> None:
        tp = self.rng.choice(list(self.owner) or list(PARTITIONS))
        if tp not in self.owner or self.positions[tp] == 0:
            return
        outcome = self.rng.choice(["ok", "ok", "unknown", "refused"])
        asked, offset = self.tick(), self.positions[tp]
        self.events.append(
            Committed(self.tick(), GROUP, self.owner[tp], self.generation, tp, offset, outcome, asked)  # type: ignore[arg-type]
        )
        if outcome == "ok" or (outcome == "unknown" and self.rng.random() < 0.5):
            self.committed[tp] = offset

    def seek(self) -> None:
        for tp, member in self.owner.items():
            offset = self.rng.randint(0, len(self.values[tp]))
            if offset >= self.committed[tp]:  # below it, a correct commit would go back
                self.events.append(Positioned(self.tick(), GROUP, member, tp, offset))
                self.positions[tp] = offset

    def look(self) -> None:
        tp = self.rng.choice(PARTITIONS)
        asked, leader = self.tick(), BROKERS[self.epochs[tp] % len(BROKERS)]
        self.events.append(
            WatermarkSeen(self.tick(), tp, leader, self.epochs[tp], len(self.values[tp]), asked, via="list")
        )

    def fail_over(self) -> None:
        tp = self.rng.choice(PARTITIONS)
        self.epochs[tp] += 1
        self.events.append(Fault(self.tick(), "kill", f"the leader of {tp}"))

    def end(self) -> None:
        self.rebalance()
        for tp, member in self.owner.items():
            for offset in range(self.positions[tp], len(self.values[tp])):
                value = self.values[tp][offset]
                self.events.append(Polled(self.tick(), GROUP, member, tp, offset, value, self.generation))
            self.events.append(Drained(self.tick(), GROUP, tp, len(self.values[tp])))
        for tp in PARTITIONS:
            for broker in BROKERS:
                end = len(self.values[tp])
                self.events.append(Replica(self.tick(), broker, tp, 0, end, max(0, end - self.rng.randint(0, 1))))
                self.events += [
                    StoredBatch(
                        self.now,
                        broker,
                        tp,
                        batch.base_offset,
                        batch.leader_epoch,
                        batch.digest,
                        list(batch.values),
                        batch.producer_id,
                        batch.producer_epoch,
                        batch.base_sequence,
                    )
                    for batch in self.batches[tp]
                ]


def correct_history(seed: int, steps: int = 60, *, seeks: bool = False) -> list[Event]:
    """Return a history of producers, fail-overs, rebalances, reads and commits; a seed always gives the same history.

    With ``seeks`` members also seek, so records may stay undelivered, and there is no ``Drained`` event.
    """
    generator = _Generator(random.Random(seed))
    generator.rebalance()
    weighted = [
        (generator.send, 8),
        (generator.poll, 6),
        (generator.commit, 4),
        (generator.look, 3),
        (generator.rebalance, 1),
    ]
    weighted += [(generator.fail_over, 1), *([(generator.seek, 2)] if seeks else [])]
    actions = [action for action, weight in weighted for _ in range(weight)]
    for _ in range(steps):
        generator.rng.choice(actions)()
    generator.end()
    return [event for event in generator.events if not (seeks and isinstance(event, Drained))]
