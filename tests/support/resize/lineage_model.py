"""A simulation of one topic: a controller with the steps of ``ordered_resize.next_step``, leaders, producers, a group.

A step is one write to ZooKeeper, one LeaderAndIsr, one request, or one poll of a reader. Steps interleave in any order.
Each partition has its own reader, the worst case for order. ``ordered_resize.gate`` decides from responses of any age
which records the readers deliver. The deliveries are checked against the naive recursion on all written entries, and
against each other.
"""

from __future__ import annotations

import dataclasses
import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from anabranch.ordered_resize import consistency, judgement, next_step
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.gate import Gate, GateState, Question, QuestionKind
from anabranch.ordered_resize.layout import Layout
from anabranch.ordered_resize.next_step import Step
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.ordered_resize.state_loads import Loaded
from anabranch.protocol.key_placement import place
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

BROKER = 1
NEVER_BACK = True
"""Whether producers never go back to older metadata."""
Number = tuple[int, int]
"""A record: its key's hash, and its number among the key's records."""


class BrokenError(AssertionError):
    """A property of the simulation does not hold."""


class Record(NamedTuple):
    offset: int
    epoch: int
    number: Number


class Batch(NamedTuple):
    """An unacknowledged record. ``incarnation`` is the partition's incarnation in the producer's metadata."""

    partition: int
    layout: StoredLayout
    incarnation: int
    number: Number


class Metadata(NamedTuple):
    layout: Layout
    incarnations: Mapping[int, int]
    """The incarnations of partitions with a leader in the metadata."""


@dataclass
class Replica:
    """The state of a partition's leader. ``epoch`` is -1 before the leader's first LeaderAndIsr."""

    incarnation: int
    end: int
    epoch: int = -1
    layout: StoredLayout | None = None
    start: int = 0
    log: list[Record] = field(default_factory=list)
    starts: list[tuple[int, int]] = field(default_factory=list)
    numbers: set[Number] = field(default_factory=set)


@dataclass
class Producer:
    """The producer of one key."""

    next: int = 0
    metadata: int = 0
    batch: Batch | None = None


@dataclass
class Reader:
    """The reader of one partition. It has flushed and committed up to ``done``."""

    partition: int
    at: int = 0
    done: int = 0
    gate: Gate = field(default_factory=Gate)
    loading: tuple[Loaded, frozenset[Number]] | None = None
    loaded: frozenset[Number] = frozenset()

    def __post_init__(self) -> None:
        self.gate.assign([self.partition])


class LineageModel:
    """The simulation. Missing arguments are drawn from the seed. ``faults`` is the share of faulty steps."""

    def __init__(
        self,
        seed: int,
        *,
        records: int = 25,
        counts: tuple[int, int] | None = None,
        keys: Sequence[int] = (),
        calm: bool = False,
    ) -> None:
        """``counts``: the initial partition count, and the present count. ``calm``: no faults and no delays."""
        r = self.r = random.Random(seed)
        self.initial = r.choice([1, 1, 1, 2, 3]) if counts is None else counts[0]
        self.highest = self.initial + r.choice([1, 1, 3, 4])
        self.requests, self.records = 20, records
        self.faults = 0.0 if calm else r.choice([0.0, 0.02, 0.1])
        self.stale = 0.0 if calm else r.choice([0.0, 0.6])
        self.retains = r.random() < 0.3
        count = r.randint(self.initial, self.highest) if counts is None else counts[1]
        self.zxid = 1
        self.topic = TopicZnode.new(uuid.UUID(int=1), {p: [BROKER] for p in range(count)})
        self.setting = judgement.Setting(self.assign)
        self.topic = self.topic.replace(initial_partition_count=self.initial, layout_version=7)
        self.states: dict[int, PartitionState] = {}
        self.incarnations: dict[int, int] = {}
        self.controller_epoch = 1
        self.answered: dict[int, int] = {}
        self.deleted: dict[int, int] = {}
        self.replicas: dict[int, Replica] = {}
        self.ends: dict[int, tuple[int, int]] = {}
        """The incarnation and log end of each deleted replica."""
        self.late_orders: list[tuple[int, int, PartitionState]] = []
        self.late_batches: list[Batch] = []
        self.ages: dict[int, list[Lineage]] = {}
        self.overs: list[Mapping[int, int]] = [{}]
        self.entries: dict[int, dict[int, Mapping[int, int]]] = {}
        """All lineage entries ever written."""
        self.metadata: list[Metadata] = []
        keys = keys or r.sample(range(self.initial * 8), r.randint(1, 3))
        self.producers = {h: Producer() for h in keys}
        self.readers: dict[int, Reader] = {}
        self.where: dict[Number, tuple[int, int]] = {}
        """The partition and offset of each written record, acknowledged or not."""
        self.delivered: dict[Number, int] = {}
        self.flushed: set[Number] = set()
        self.lost: set[Number] = set()
        self.quiet = False
        self.is_edited = False
        """Whether the topic's znode is sometimes edited by hand."""
        self.judged: list[judgement.VerdictKind] = []
        self.writes = 0
        self.crash_after = -1
        """The number of the write after which the controller is replaced."""
        self.done: list[str] = []
        for p in range(count):
            layout = StoredLayout(count, 7)
            self.write_state(
                p, PartitionState(1, BROKER, 0, [BROKER], layout=layout, initial_partition_count=self.initial)
            )
        self.publish()
        for p in range(count):
            self.order(p, self.incarnations[p], self.states[p])
        self.weights = {kind: r.choice([1, 1, 4, 0.3]) * weight for kind, weight in KINDS.items()}
        self.slow = {p: 0 if calm else r.choice([0, 0, 0.8, 0.97]) for p in range(self.highest + 16)}
        self.late = {p: 0 if calm else r.choice([0, 0, 0.9]) for p in range(self.highest + 16)}

    # ------------------------------------------------------------ znodes

    def snapshot(self) -> Snapshot:
        return Snapshot(
            self.topic,
            dict(self.states),
            controller_epoch=self.controller_epoch,
            answered={
                p for p, epoch in self.answered.items() if p in self.states and self.states[p].leader_epoch == epoch
            },
            electable={p: [BROKER] for p in range(self.topic.undeleted_partition_count)},
            drained={p for p in self.states if self.is_drained(p)},
            deleted=dict(self.deleted),
            new_topic_id=uuid.UUID(int=self.r.getrandbits(120) + 2),
        )

    def is_drained(self, p: int) -> bool:
        replica = self.replicas.get(p)
        return replica is not None and self.readers[p].done >= replica.end

    def write_state(self, p: int, state: PartitionState) -> None:
        state = PartitionState.decode(PartitionState.path("t", p), state.encode())
        if p not in self.states:
            self.zxid += 1
            self.incarnations[p] = self.zxid
            self.readers.setdefault(p, Reader(p))
        self.states[p] = state
        for entry in state.lineage:
            self.entries.setdefault(p, {})[entry.epoch] = {
                **self.entries.get(p, {}).get(entry.epoch, {}),
                **entry.losers,
            }
        self.ages.setdefault(p, []).append(Lineage.of(state))

    def write(self, step: Step) -> None:
        """Write a whole step, and check the properties after it."""
        self.done.append(f"{step.name} {sorted(step.states) or step.deleted}")
        for p, state in step.states.items():
            known = self.states.get(p)
            if known is not None and (known.being_removed or state.leader_epoch < known.leader_epoch):
                raise BrokenError(f"{step.name} of partition {p}: {known} becomes {state}")
            self.write_state(p, state)
        for p in step.deleted:
            del self.states[p], self.incarnations[p], self.answered[p], self.deleted[p]
            self.overs.append({**self.overs[-1], p: self.leader_epoch_of(p, step)})
        if step.topic is not None:
            self.topic = TopicZnode.decode(TopicZnode.path("t"), step.topic.encode())
        self.publish()
        self.writes += 1
        if self.writes == self.crash_after:
            self.new_controller()
        if found := consistency.contradictions(self.snapshot()):
            raise BrokenError(f"{step.name}: {found[0]}")

    @staticmethod
    def leader_epoch_of(p: int, step: Step) -> int:
        assert step.topic is not None
        return step.topic.last_leader_epochs[p]

    def publish(self) -> None:
        led = {p: self.incarnations[p] for p, state in self.states.items() if not state.being_removed}
        self.metadata.append(Metadata(Layout.goal(self.topic), led))

    # ------------------------------------------------------------ controller

    def assign(self, partitions: Sequence[int]) -> dict[int, list[int]]:
        return {key: [BROKER] for key in partitions}

    def advance(self, *, first: bool = False) -> bool:
        """Let the controller write some of the due steps in any order; with ``first`` only the first step."""
        snapshot = self.snapshot()
        steps = next_step.next_steps(snapshot)
        if not steps and (verdict := judgement.judge_wanted(snapshot, self.setting)):
            steps = [Step("begin", topic=verdict.topic)]
        if self.retains and not self.quiet:
            steps = [step for step in steps if step.name != "leave"]
        if not steps:
            return False
        epoch = self.controller_epoch
        for step in steps[:1] if first else self.r.sample(steps, self.r.randint(1, len(steps))):
            if self.controller_epoch == epoch:  # a controller that replaced it decides anew
                self.write(step)
        return True

    def request(self, count: int) -> None:
        verdict = judgement.judge_request(self.snapshot(), count, self.setting)
        if verdict.outcome is judgement.VerdictKind.ACCEPT:
            self.write(Step(f"asked for {count}:", topic=verdict.topic))

    def new_controller(self) -> None:
        self.done.append("new controller")
        self.controller_epoch += 1
        self.answered, self.deleted = dict.fromkeys(self.answered, -1), {}

    def edit(self) -> None:
        """Edit the topic's znode while there is no active controller; the next controller judges the edit.

        If the next controller finds a contradiction, the topic is frozen until the edit is reverted.
        """
        name, value = self.r.choice(self.edits())
        self.done.append(f"edit: {name}={value}")
        self.new_controller()
        edited = self.topic.replace(**{name: value})
        if name == "undeleted_partition_count" and value > len(edited.partitions):
            edited = edited.replace(partitions={p: [BROKER] for p in range(value)})
        verdict = judgement.judge_found(dataclasses.replace(self.snapshot(), topic=edited), self.setting)
        self.done.append(f"{verdict.outcome.name}: {verdict.why}")
        self.judged.append(verdict.outcome)
        if verdict.outcome is not judgement.VerdictKind.FREEZE:
            self.topic = verdict.topic or edited
            self.publish()

    def edits(self) -> list[tuple[str, object]]:
        count, version = self.topic.undeleted_partition_count, self.topic.layout_version
        near = [count + by for by in (-2, -1, 1, 2) if count + by >= self.initial]
        return [
            *(("undeleted_partition_count", value) for value in (self.initial - 1, *near)),
            *(("previous_undeleted_partition_count", value) for value in [None, count, *near]),
            *(("layout_version", version + by) for by in (-2, -1, 1, 2)),
            *(("initial_partition_count", self.initial + by) for by in (-1, 1) if self.initial + by > 0),
            *(("last_leader_epochs", {p: 99}) for p in self.states),
        ]

    def elect(self, p: int) -> None:
        state = self.states.get(p)
        if state is not None and not state.being_removed:
            self.write(Step("elect", {p: state.replace(leader_epoch=state.leader_epoch + 1)}))

    # ------------------------------------------------------------ leaders

    def order(self, p: int, incarnation: int, state: PartitionState) -> bool:
        """Deliver a LeaderAndIsr or StopReplica. False when the request changes nothing."""
        replica = self.replicas.get(p)
        if state.being_removed:
            return self.stop(p, incarnation, state)
        if incarnation <= self.ends.get(p, (0, 0))[0]:
            return False
        if replica is None or replica.incarnation < incarnation:
            base = self.topic.base_offset(p)
            replica = self.replicas[p] = Replica(incarnation, base, start=base)
        if replica.incarnation > incarnation or replica.epoch > state.leader_epoch:
            return False
        if replica.epoch < state.leader_epoch:
            replica.starts.append((state.leader_epoch, replica.end))
        replica.epoch = state.leader_epoch
        replica.layout = state.layout or StoredLayout(self.initial, 0)
        is_news = self.answered.get(p) != state.leader_epoch
        if self.incarnations.get(p) == incarnation and self.states[p].leader_epoch == state.leader_epoch:
            self.answered[p] = state.leader_epoch
        return is_news

    def stop(self, p: int, incarnation: int, state: PartitionState) -> bool:
        replica = self.replicas.get(p)
        if replica is not None and replica.incarnation == incarnation:
            self.ends[p] = (incarnation, replica.end)
            del self.replicas[p]
        if self.incarnations.get(p) != incarnation or p in self.deleted or p not in self.ends:
            return False
        self.deleted[p] = self.ends[p][1]
        self.answered.setdefault(p, -1)
        return True

    def order_one(self, p: int) -> bool:
        if p not in self.states or (not self.quiet and self.r.random() < self.late[p]):
            return False
        sent = (p, self.incarnations[p], self.states[p])
        if self.r.random() < self.faults and not self.quiet:
            self.late_orders.append(sent)
            return True
        return self.order(*sent)

    # ------------------------------------------------------------ producers

    def refresh(self, h: int) -> bool:
        producer, newest = self.producers[h], len(self.metadata) - 1
        seen = newest if self.quiet else self.r.randint(producer.metadata if NEVER_BACK else 0, newest)
        is_news, producer.metadata = seen != producer.metadata, seen
        return is_news

    def send(self, h: int) -> bool:
        producer = self.producers[h]
        metadata = self.metadata[producer.metadata]
        if producer.batch is None:
            p = metadata.layout.owner(h)
            if producer.next == self.records or p not in metadata.incarnations:
                return False
            batch = Batch(p, metadata.layout.stored, metadata.incarnations[p], (h, producer.next))
            producer.batch = batch
            return True
        batch = producer.batch
        if not self.quiet and self.r.random() < self.faults:
            self.late_batches.append(batch)
            return True
        is_written = self.produce(batch)
        if is_written and (self.quiet or self.r.random() >= self.faults):
            producer.batch, producer.next = None, producer.next + 1
            return True
        is_newer = metadata.layout.layout_version > batch.layout.layout_version
        is_gone = self.incarnations.get(batch.partition, 0) > batch.incarnation or (
            batch.partition not in self.states and batch.partition not in metadata.incarnations
        )
        if is_gone:  # the batch fails, because its outcome is unknown
            self.lost.add(batch.number)
            producer.batch, producer.next = None, producer.next + 1
            return True
        if (
            not is_written and is_newer and batch.partition in self.replicas
        ):  # the batch is refused for ever, so its record gets a partition again
            producer.batch = None
            return True
        return False

    def produce(self, batch: Batch) -> bool:
        """Append the record, unless the leader refuses it. True when the record is or was in the log."""
        replica = self.replicas.get(batch.partition)
        if replica is None or replica.layout is None:
            return False
        if batch.number in replica.numbers:
            return True
        if not Layout(*replica.layout, self.initial).takes(batch.partition, batch.layout):
            return False
        h, n = batch.number
        if behind := [m for m in range(n + 1, self.records) if (h, m) in self.where]:
            raise BrokenError(f"record {n} of key {h} is written to {batch.partition} after {behind}")
        if batch.number in self.where:
            raise BrokenError(f"record {n} of key {h} is written twice")
        if place(h, self.initial, replica.layout[0]) != batch.partition:
            raise BrokenError(f"record {n} of key {h} does not belong in {batch.partition} of {replica.layout}")
        self.where[batch.number] = (batch.partition, replica.end)
        replica.log.append(Record(replica.end, replica.epoch, batch.number))
        replica.numbers.add(batch.number)
        replica.end += 1
        return True

    def expire(self, p: int) -> None:
        replica = self.replicas.get(p)
        if replica is not None:
            self.lost |= {record.number for record in replica.log}
            replica.log, replica.start = [], replica.end

    # ------------------------------------------------------------ readers

    def look(self, p: int) -> bool:
        reader, replica = self.readers.get(p), self.replicas.get(p)
        if reader is None or replica is None or (not self.quiet and self.r.random() < self.slow[p]):
            return False
        if reader.loading is not None:
            called, flushed = reader.loading
            reader.gate.load_returned(p, called)
            reader.loaded, reader.loading = flushed, None
            return True
        record = next((record for record in replica.log if record.offset >= reader.at), None)
        if record is None:
            reader.at = max(reader.at, replica.end)
            return self.flush(reader)
        reader.at = record.offset
        state = reader.gate.look(p, record.epoch)
        if (state is GateState.OPEN) != (record.epoch <= reader.gate.limit(p)):
            raise BrokenError(f"epoch {record.epoch} of partition {p} is {state}, the limit {reader.gate.limit(p)}")
        if state is GateState.DUE:
            reader.loading = (reader.gate.load_called(p), frozenset(self.flushed))
            return True
        if state is GateState.OPEN:
            self.deliver(reader, record)
            return True
        is_moved = self.flush(reader)
        questions = reader.gate.questions(p, record.epoch)
        before = reader.gate.facts.version, facts_of(reader.gate)
        for question in questions if self.quiet else self.r.sample(questions, 1) if questions else ():
            self.answer(reader.gate, question)
        return facts_of(reader.gate) != before[1] or is_moved

    def flush(self, reader: Reader) -> bool:
        is_news, reader.done = reader.done < reader.at, max(reader.done, reader.at)
        self.flushed |= {number for number, at in self.delivered.items() if at == reader.partition}
        return is_news

    def answer(self, gate: Gate, question: Question) -> None:
        q, replica = question.partition, self.replicas.get(question.partition)
        if question.ask is QuestionKind.LINEAGE:
            is_old = not self.quiet and self.r.random() < self.stale
            over = (self.r.choice(self.overs) if is_old else self.overs[-1]).get(q, -1)
            ages = self.ages.get(q, [])
            sent = (self.r.choice(ages) if is_old else ages[-1]) if ages and (q in self.states or is_old) else None
            gate.facts.on_lineage(q, sent, over)
        elif question.ask is QuestionKind.POSITION and q in self.readers:
            gate.facts.on_position(q, self.readers[q].done)
        if replica is None or (not self.quiet and self.r.random() < self.stale / 4):  # a broker with old metadata
            gate.facts.on_missing(q)
        elif question.ask is QuestionKind.END and replica.epoch > question.epoch:
            end = next(offset for epoch, offset in replica.starts if epoch > question.epoch)
            gate.facts.on_end(q, question.epoch, end)

    def deliver(self, reader: Reader, record: Record) -> None:
        p, (h, n) = reader.partition, record.number
        for m in range(n):
            number = (h, m)
            if number in self.lost or number not in self.where:
                continue
            at = self.delivered.get(number)
            if at is None and self.where[number][0] != p:
                raise BrokenError(f"record {n} of key {h} is delivered by {p} before {m} of {self.where[number]}")
            if at not in (None, p) and number not in self.flushed:
                raise BrokenError(f"record {n} of key {h} is delivered by {p} before {m} is flushed by {at}")
            if at not in (None, p) and number not in reader.loaded:
                raise BrokenError(f"record {n} of key {h} is delivered by {p}, which did not load {m} of {at}")
        if later := [m for m in range(n + 1, self.records) if self.delivered.get((h, m), p) != p]:
            raise BrokenError(f"record {n} of key {h} is delivered by {p} after {later}")
        if not self.may_deliver(p, record.epoch):
            raise BrokenError(f"the naive recursion does not deliver epoch {record.epoch} of {p} yet")
        self.delivered[record.number] = p
        reader.at = record.offset + 1

    def satisfied(self, q: int, f: int) -> bool:
        """The recursion of the design, on the true state."""
        if self.topic.last_leader_epochs.get(q, -1) >= f:
            return True
        replica = self.replicas.get(q)
        if replica is None:
            end: int | None = self.ends[q][1]  # the partition was read to its end before its deletion
        else:
            end = next((offset for epoch, offset in replica.starts if epoch > f), None)
        return end is not None and self.readers[q].done >= end and self.may_deliver(q, f)

    def may_deliver(self, p: int, b: int) -> bool:
        entries = self.entries.get(p, {})
        return all(self.satisfied(q, f) for e, losers in entries.items() if e <= b for q, f in losers.items())

    def crash(self, p: int) -> None:
        """The owner of a partition crashes; the next owner continues at the commit."""
        if p in self.readers:
            done = self.readers[p].done
            self.readers[p] = Reader(p, done, done)

    # ------------------------------------------------------------ history

    def step(self) -> None:
        r, p, h = self.r, self.r.randrange(self.highest), self.r.choice(list(self.producers))
        if self.is_edited and r.random() < 0.01:
            return self.edit()
        if r.random() < self.faults:
            fault = r.choice([0, 0, 0, 1, 2, 3, 4, 4, 5])
            if fault == 0:
                self.elect(p)
            elif fault == 1:
                self.new_controller()
            elif fault == 2:
                self.crash(p)
            elif fault == 3 and self.late_orders:
                self.order(*self.late_orders.pop(r.randrange(len(self.late_orders))))
            elif fault == 4 and self.late_batches:
                self.produce(self.late_batches.pop(r.randrange(len(self.late_batches))))
            elif fault == 5 and r.random() < 0.1:
                self.expire(p)
            return
        kind = r.choices(list(self.weights), list(self.weights.values()))[0]
        if kind == "request":
            if self.requests and r.random() < 0.3:
                self.requests -= 1
                self.request(self.wish())
        elif kind == "advance":
            self.advance()
        elif kind == "order":
            self.order_one(p)
        elif kind == "send":
            self.send(h)
        elif kind == "refresh":
            self.refresh(h)
        else:
            self.look(p)

    def wish(self) -> int:
        """Return a count to request. Often it is the previous count, which cancels the resize or merges."""
        before = self.topic.previous_undeleted_partition_count
        return before if before and self.r.random() < 0.4 else self.r.randint(self.initial, self.highest)

    def run(self) -> None:
        for _ in range(self.r.choice([600, 2500])):
            self.step()
        self.finish()

    def finish(self) -> None:
        """Continue without faults until no step is left. Then resizes, writes, reads and removals must be complete."""
        self.quiet, idle = True, 0
        while idle < 2:
            moved = self.advance()
            for p in list(self.states):
                moved = self.order_one(p) or moved
            for h in self.producers:
                moved = self.refresh(h) or moved
                moved = self.send(h) or moved
            for p in list(self.readers):
                moved = self.look(p) or moved
            idle = 0 if moved else idle + 1
        snapshot = self.snapshot()
        if self.topic.wanted is not None or not next_step.is_settled(snapshot):
            raise BrokenError(f"hangs: {next_step.phases(snapshot)}, wanted {self.topic.wanted}")
        if set(self.states) != set(range(self.topic.undeleted_partition_count)) or len(self.topic.partitions) != len(
            self.states
        ):
            raise BrokenError(
                f"hangs: partitions {sorted(self.states)} exist, {sorted(self.topic.partitions)} assigned"
            )
        for h, producer in self.producers.items():
            if producer.next != self.records:
                raise BrokenError(f"hangs: key {h} is sent up to {producer.next}")
        if left := [number for number in self.where if number not in self.delivered and number not in self.lost]:
            raise BrokenError(f"hangs: {left} are never delivered")


KINDS = {"request": 1, "advance": 6, "order": 6, "send": 2, "refresh": 1, "look": 8}


def facts_of(gate: Gate) -> str:
    facts = gate.facts
    return repr((facts.lineages, facts.over, facts.ends, facts.positions, facts.missing, facts.passed))
