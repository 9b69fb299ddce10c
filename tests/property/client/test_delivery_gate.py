"""The delivery gate against a second implementation that knows everything and is too simple to be wrong.

A topic lives through random grows, shrinks, elections, removals, produced batches and a group that moves forward. The
gate is told of it late, in any order and in parts, by brokers that may lag. Whatever it has heard, it never allows what
the all-knowing one forbids; once it has heard all it asked for, it allows exactly as much.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.cluster import TopicInfo
from client.ordered_delivery.barriers import CLOSED, PartitionMap
from client.ordered_delivery.gate import DeliveryGate
from protocol.types import TopicPartition
from tests import gate_mutations
from tests.layouts import topic, tp


def parents(p: int, initial: int) -> list[int]:
    """All ancestors, by the definition: the parent of p is p - N * 2^l for N * 2^l <= p < N * 2^(l + 1)."""
    found = []
    while p >= initial:
        size = initial
        while size * 2 <= p:
            size *= 2
        p -= size
        found.append(p)
    return found


@dataclass
class Part:
    incarnation: int
    leader_epoch: int
    ends: dict[int, int] = field(default_factory=dict)
    """Where each leader epoch that is over ended."""
    end: int = 0
    start: int = 0
    position: int = 0
    created: tuple[int, int] | None = None
    merged: tuple[int, int] | None = None
    marked_in: int = 0
    """The layout version that marked it."""
    sealed: int = -1

    def bump(self) -> None:
        self.ends[self.leader_epoch] = self.end
        self.leader_epoch += 1

    def end_of(self, epoch: int) -> int:
        return next((self.ends[e] for e in sorted(self.ends) if e >= epoch), self.end)


class World:
    """The truth."""

    def __init__(self, initial: int) -> None:
        self.initial = self.undeleted = initial
        self.version = 0
        self.incarnations = 0
        self.parts = [self.new() for _ in range(initial)]
        self.last_epochs: dict[int, int] = {}

    def new(self, epoch: int = 0) -> Part:
        self.incarnations += 1
        return Part(self.incarnations, epoch)

    def grow(self, by: int) -> None:
        if len(self.parts) > self.undeleted:
            return
        for p in range(self.undeleted, self.undeleted + by):
            part = self.new(self.last_epochs.get(p, -1) + 1)
            source = next(a for a in parents(p, self.initial) if a < self.undeleted)
            part.created = (source, self.parts[source].leader_epoch)
            self.parts.append(part)
        for part in self.parts[: self.undeleted]:
            part.bump()
        self.undeleted, self.version = len(self.parts), self.version + 1

    def shrink(self, by: int) -> None:
        before, self.undeleted = self.undeleted, max(self.initial, self.undeleted - by)
        if before == self.undeleted:
            return
        self.version += 1
        for p in range(self.undeleted, before):
            survivor = next(a for a in parents(p, self.initial) if a < self.undeleted)
            part = self.parts[p]
            part.marked_in = self.version
            part.merged = (survivor, self.parts[survivor].leader_epoch)
            part.bump()
            part.sealed = part.end
        for part in self.parts[: self.undeleted]:
            part.bump()

    def remove(self) -> None:
        part = self.parts[-1]
        if len(self.parts) > self.undeleted and part.position >= part.sealed:
            self.last_epochs[len(self.parts) - 1] = part.leader_epoch
            self.parts.pop()

    def unclean(self, p: int) -> None:
        """An election that drops the last batches: positions and seals come down with the log."""
        part = self.parts[p]
        part.bump()
        part.end = max(part.start, max((e for k, e in part.ends.items() if k < part.leader_epoch - 1), default=0))
        part.ends = {epoch: min(end, part.end) for epoch, end in part.ends.items()}
        part.sealed = min(part.sealed, part.end)

    def info(self) -> TopicInfo:
        return topic(
            self.initial,
            self.undeleted,
            [part.leader_epoch for part in self.parts],
            version=self.version,
            incarnations={p: part.incarnation for p, part in enumerate(self.parts)},
        )

    def map_of(self, p: int) -> PartitionMap:
        part = self.parts[p]
        return PartitionMap(part.incarnation, *(part.created or (-1, -1)), *(part.merged or (-1, -1)), part.sealed)

    def cap(self, p: int, *, at_once: bool = False) -> int:
        """What the rules allow, read off the truth.

        ``at_once``: to one who sees all merges together and passes all or none (EvalWith of the model). One who saw
        them come may have passed an earlier merge before the next: it waited for what was marked by then.
        """
        part = self.parts[p]
        for q in [p, *parents(p, self.initial)]:
            created = self.parts[q].created
            if created is None:
                continue
            source = self.parts[created[0]]
            end = source.end_of(created[1])
            if source.position < end and source.start < end:
                return CLOSED
        marked = [q for q in range(self.undeleted, len(self.parts)) if p in parents(q, self.initial)]
        others = [self.parts[q] for q in marked]
        waits = [other for other in others if max(other.position, other.start) < other.sealed]
        limits = [
            merged[1]
            for q in marked
            if (merged := self.parts[q].merged) is not None
            and merged[0] == p
            and any(at_once or wait.marked_in <= self.parts[q].marked_in for wait in waits)
        ]
        return min([*limits, part.leader_epoch])


class Told:
    """A gate and what it has heard of the world."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world, self.rng = world, rng
        self.gate = DeliveryGate()
        self.info = world.info()
        self.old_maps: list[tuple[TopicPartition, PartitionMap]] = []
        self.hold()

    def hold(self) -> None:
        self.gate.assign([tp(p) for p in range(len(self.world.parts))], {"t": self.info})

    def decide(self) -> None:
        self.gate.evaluate()
        self.gate.revoked(self.gate.keys_revoked())
        told = self.gate.keys_assigned()
        self.gate.announced(told)

    def hear_metadata(self) -> None:
        self.info = self.world.info()
        self.hold()
        self.gate.on_metadata({"t": self.info})

    def hear(self, share: float) -> bool:
        """Answer some of the questions; False when there are none."""
        asked = self.gate.questions()
        parts = self.world.parts
        if asked.metadata and self.rng.random() < share:
            self.hear_metadata()
        for key in asked.maps:
            if key.partition < len(parts) and self.rng.random() < share:
                answer = self.world.map_of(key.partition)
                self.old_maps.append((key, answer))
                self.gate.on_map(key, answer)
        for key, epoch in asked.end_offsets:
            if key.partition < len(parts) and self.rng.random() < share:
                part = parts[key.partition]
                known = self.info.partitions[key.partition]
                if (known.incarnation, known.leader_epoch) == (part.incarnation, part.leader_epoch):
                    self.gate.on_end_offset(key, epoch, part.leader_epoch, part.end_of(epoch))
        for key in asked.log_starts:
            if key.partition < len(parts) and self.rng.random() < share:
                self.gate.on_log_start(key, parts[key.partition].incarnation, parts[key.partition].start)
        for key in asked.positions:
            if key.partition < len(parts) and self.rng.random() < share:
                part = parts[key.partition]
                self.gate.on_position(key, part.incarnation, part.position)
        return asked.any_to_ask

    def lag(self) -> None:
        """A broker answers with a map that it read long ago."""
        if self.old_maps:
            self.gate.on_map(*self.rng.choice(self.old_maps))


STEPS = (
    *("write", "write", "read", "read", "elect", "unclean", "grow", "shrink", "remove"),
    *("expire", "tell", "hear", "hear", "lag"),
)


def step(world: World, told: Told, rng: random.Random) -> None:
    """One thing happens, to the world or to what the gate hears of it."""
    p = rng.randrange(len(world.parts))
    part = world.parts[p]
    match rng.choice(
        [
            "write",
            "write",
            "read",
            "read",
            "elect",
            "grow",
            "shrink",
            "remove",
            "tell",
            "hear",
            "hear",
            "lag",
            "expire",
            "unclean",
        ]
    ):
        case "write" if part.sealed < 0:
            part.end += rng.randint(1, 5)
        case "read" if world.cap(p) != CLOSED:
            allowed = part.end_of(world.cap(p)) if world.cap(p) < part.leader_epoch else part.end
            part.position = max(part.position, rng.randint(min(part.position, allowed), allowed))
        case "elect":
            part.bump()
        case "unclean":
            world.unclean(p)
        case "grow":
            world.grow(rng.randint(1, 3))
        case "shrink":
            world.shrink(rng.randint(1, 4))
        case "remove":
            world.remove()
        case "tell":
            told.hear_metadata()
        case "hear":
            told.hear(0.5)
        case "lag":
            told.lag()
        case "expire":
            part.start = rng.randint(part.start, part.end)
            part.position = max(part.position, part.start)


def allowed_too_much(world: World, told: Told) -> list[tuple[int, int, int]]:
    """(partition, what the gate allows, what the rules allow) where it matters: of batches that exist."""
    found = []
    for p, part in enumerate(world.parts):
        info = told.info.partitions.get(p)
        if info is None or info.incarnation != part.incarnation:
            continue  # nothing of a partition that the metadata does not name is fetched
        says, may = told.gate.cap(tp(p)), world.cap(p)
        if says > may:
            found.append((p, says, may))
    return found


def live(seed: int, initial: int) -> None:
    """A topic's life. Raises ``AssertionError`` where the gate allows more than the rules, or less in the end."""
    rng = random.Random(seed)
    world = World(initial)
    told = Told(world, rng)
    for _ in range(rng.randint(1, 60)):
        step(world, told, rng)
        if len(world.parts) > 14:
            break
        told.decide()
        assert not allowed_too_much(world, told)
    told.hear_metadata()
    told.decide()
    for _ in range(100):
        told.gate.recheck()
        told.gate.evaluate()
        told.hear(1.0)
        told.decide()
    for p in range(len(world.parts)):
        assert world.cap(p, at_once=True) <= told.gate.cap(tp(p)) <= world.cap(p)


@settings(max_examples=150)
@given(seed=st.integers(0, 2**32), initial=st.integers(1, 3))
def test_the_gate_never_allows_more_than_the_rules_and_in_the_end_exactly_as_much(seed: int, initial: int) -> None:
    live(seed, initial)


RULES = (
    (gate_mutations.no_creation_barrier, 0),
    (gate_mutations.no_deletion_barrier, 9),
    (gate_mutations.a_blocked_parent_frees_its_child, 46),
    (gate_mutations.only_what_names_the_survivor, 56),
    (gate_mutations.a_marked_partition_waits_for_nobody, 70),
    (gate_mutations.batches_of_any_epoch_are_delivered, 0),
    (gate_mutations.maps_of_any_incarnation_count, 2255),
)


@pytest.mark.parametrize(("switch_off", "first_seed"), RULES)
def test_a_gate_without_one_of_its_rules_is_noticed(
    switch_off: Callable[[pytest.MonkeyPatch], None], first_seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``first_seed`` noticed it when it was written; where the code has changed since, a later one does."""
    switch_off(monkeypatch)

    def is_noticed(seed: int) -> bool:
        try:
            live(seed, 1 + seed % 3)
        except AssertionError:
            return True
        return False

    assert any(is_noticed(seed) for seed in range(first_seed, first_seed + 2000))


@pytest.mark.parametrize("initial", [1, 2, 3])
def test_a_world_that_stands_still_opens_everything(initial: int) -> None:
    """The property would hold for a gate that is always closed: in a world read to its end it is open."""
    rng = random.Random(initial)
    world = World(initial)
    told = Told(world, rng)
    world.grow(3)
    world.shrink(2)
    for part in world.parts:
        part.position = part.end
    told.hear_metadata()
    for _ in range(10):
        told.decide()
        told.hear(1.0)
    assert [told.gate.cap(tp(p)) for p in range(len(world.parts))] == [part.leader_epoch for part in world.parts]
    assert not told.gate.blocked()
