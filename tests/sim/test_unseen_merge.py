"""Partitions that merge and are removed before the group's members notice: the cases of ``docs/model/Removal.tla``.

A member waits for a partition only if the member knows that the partition is marked. An offset may be committed before
the flush callback has run. So the coordinator asks the owner to flush before the partition is removed, and the removal
waits for owners that have not polled yet. The survivor's reader may never see the partition as marked. The reader's
user still loads states before the first record of the new layout. If records are flushed during a load, the user loads
again. A member that read the marked partition may not know of its eviction. That member flushes the partition's records
before it continues in the survivor.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any

import pytest
import trio

from anabranch.broker.coordinator import position_poll, readers
from anabranch.client import Consumer
from anabranch.client.cluster import TopicInfo
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.group.join import Join
from anabranch.client.net.metadata import Metadata
from anabranch.client.ordered_delivery.topic_gates import TopicGates
from anabranch.ordered_resize import lineage
from anabranch.ordered_resize.facts import Facts
from anabranch.ordered_resize.gate import Gate
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState
from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.history.events import (
    Assigned,
    Committed,
    KeysFlushed,
    KeysLoaded,
    OrderedGroup,
    Polled,
    PositionAnswered,
    Revoked,
)
from tests.sim.faults import BROKERS
from tests.sim.keeping_range import KeepingRange
from tests.sim.members import GROUP, generation_of
from tests.sim.recording import now_ms
from tests.sim.scenes import TOPIC, Scene
from tests.sim.sim_cluster import SimCluster
from tests.support.resize import lineage_mutations as rules

Patch = pytest.MonkeyPatch
SURVIVOR, MARKED = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
LONG_S = 120.0
LITTLE_S = 4.0
"""Long enough for several requests of the controller, and shorter than the members' sessions."""


class Reader:
    """A member that commits offsets automatically, even those of unflushed records.

    While ``sees_metadata`` is not set, no broker responds to its metadata requests. While ``belongs`` is not set, its
    coordinator does not respond. Its callbacks for loads and flushes wait until ``loads`` and ``flushes`` are set.
    """

    def __init__(self, scene: UnseenMerge, name: str) -> None:
        self._scene = scene
        self._name = name
        self._consumer: Consumer | None = None
        self.sees_metadata = trio.Event()
        self.sees_metadata.set()
        self.belongs = trio.Event()
        self.belongs.set()
        self.loads = trio.Event()
        self.loads.set()
        self.flushes = trio.Event()
        self.flushes.set()

    @property
    def assignment(self) -> set[TopicPartition]:
        return set() if self._consumer is None else self._consumer.assignment()

    @property
    def topic(self) -> TopicInfo:
        """The topic in the member's metadata."""
        assert self._consumer is not None
        return self._consumer._metadata.cluster.topics[TOPIC]

    def stops_metadata(self) -> None:
        if self.sees_metadata.is_set():
            self.sees_metadata = trio.Event()

    async def run(self) -> None:
        scene, name = self._scene, self._name
        async with Consumer(
            bootstrap_servers=scene.cluster.bootstrap_servers,
            env=scene.cluster.client_env(name),
            client_id=name,  # ranges are assigned in the order of member ids, which begin with it
            group_id=GROUP,
            partition_assignment_strategy=[KeepingRange()],
            auto_offset_reset="earliest",
            auto_commit_interval_ms=200,
            metadata_max_age_ms=2000,
            session_timeout_ms=8000,
            heartbeat_interval_ms=500,
        ) as consumer:
            self._consumer = consumer
            scene.recorder.spy_on(consumer, name)
            scene.readers.update(dict.fromkeys((consumer._metadata, consumer._need_link()), self))
            consumer.subscribe([TOPIC], listener=self, partition_key_listener=self)
            while True:
                for tp, records in (await consumer.getmany(timeout_ms=50)).items():
                    for record in records:
                        value = (record.value or b"").decode()
                        polled = Polled(now_ms(), GROUP, name, tp, record.offset, value, generation_of(consumer))
                        scene.recorder.add(polled)
                        scene.delivered[value] = None

    def _record(self, kind: Any, tps: list[TopicPartition], **more: Any) -> None:
        assert self._consumer is not None
        self._scene.recorder.add(kind(now_ms(), GROUP, self._name, generation_of(self._consumer), list(tps), **more))

    async def on_partitions_assigned(self, tps: list[TopicPartition]) -> None:
        self._record(Assigned, tps)  # the load happens at this moment; it lacks states that are flushed later
        if tps:
            await self.loads.wait()

    def on_partitions_revoked(self, tps: list[TopicPartition]) -> None:
        self._record(Revoked, tps)

    def on_partitions_lost(self, tps: list[TopicPartition]) -> None:
        self._record(Revoked, tps, lost=True)

    async def on_partition_key_maybe_revoked(self, tps: list[TopicPartition]) -> None:
        await self.flushes.wait()
        self._record(KeysFlushed, tps)

    async def on_partition_key_assigned(self, tps: list[TopicPartition]) -> None:
        self._record(KeysLoaded, tps)
        await self.loads.wait()

    def look(self) -> None:
        """Inspect the consumer, as a monitoring task does."""
        assert self._consumer is not None
        self._consumer.explain_blocked()

    def pause(self, tp: TopicPartition) -> None:
        assert self._consumer is not None
        self._consumer.pause(tp)

    def resume(self, tp: TopicPartition) -> None:
        assert self._consumer is not None
        self._consumer.resume(tp)


class UnseenMerge(Scene):
    """A scene with two readers. ``leader`` leads the group, and gets the child of the two partitions.

    ``other`` cannot start a rebalance, and gets the survivor.
    """

    def __init__(self, cluster: SimCluster, nursery: trio.Nursery) -> None:
        super().__init__(cluster, nursery)
        self._tasks = nursery
        self.leader = Reader(self, "b")
        self.other = Reader(self, "a")
        self.delivered = self._group.delivered
        self.readers: dict[Metadata | CoordinatorLink, Reader] = {}
        """The reader of each metadata object and of each link to the coordinator."""

    def hold_requests(self, patch: Patch) -> None:
        """Make the readers' requests wait for the events of ``Reader``, and let no reader start a rebalance.

        The scenarios need members with different metadata, and a rebalance would end the difference.
        """
        refresh, request, readers = Metadata.refresh, CoordinatorLink.request, self.readers

        async def refresh_once_served(metadata: Metadata) -> None:
            if metadata in readers:
                await readers[metadata].sees_metadata.wait()
            await refresh(metadata)

        async def request_when_it_belongs(link: CoordinatorLink, *args: Any, **kwargs: Any) -> Any:
            if link not in readers:
                return await request(link, *args, **kwargs)
            await readers[link].belongs.wait()
            answer = await request(link, *args, **kwargs)
            await readers[link].belongs.wait()
            return answer

        patch.setattr(Metadata, "refresh", refresh_once_served)
        patch.setattr(CoordinatorLink, "request", request_when_it_belongs)
        patch.setattr(Join, "needs_assignment", lambda _: False)

    async def begin(self) -> None:
        """Start both readers."""
        self._reads = True
        self.recorder.add(OrderedGroup(now_ms(), GROUP))
        self._tasks.start_soon(self.leader.run)
        assert await self.until(lambda: self.leader.assignment == set(self.watch.tps()))
        self._tasks.start_soon(self.other.run)
        assert await self.until(lambda: self.owned == (self.share(0), self.share(1))), self.owned

    def share(self, turn: int) -> set[TopicPartition]:
        """The partitions that the range assignor gives to the first (0) or second (1) member."""
        tps = self.watch.tps()
        first = (len(tps) + 1) // 2
        return set(tps[first:] if turn else tps[:first])

    @property
    def owned(self) -> tuple[set[TopicPartition], set[TopicPartition]]:
        return self.other.assignment, self.leader.assignment

    def is_committed(self, tp: TopicPartition, offset: int) -> bool:
        committed = (event for event in self.recorder.events if isinstance(event, Committed))
        return any((event.tp, event.offset, event.outcome) == (tp, offset, "ok") for event in committed)

    def is_answered(self, reader: str, tp: TopicPartition) -> bool:
        """Whether a reader got the group's position in a partition from the coordinator."""
        answered = (event for event in self.recorder.events if isinstance(event, PositionAnswered))
        return any((event.member, event.tp) == (reader, tp) for event in answered)

    def is_delivered_to(self, reader: str, value: str) -> bool:
        polled = (event for event in self.recorder.events if isinstance(event, Polled))
        return any((event.member, event.value) == (reader, value) for event in polled)

    def has_begun_to_load(self, reader: str, tp: TopicPartition) -> bool:
        """Whether a reader has begun to load states for the new keys of a partition."""
        loads = (event for event in self.recorder.events if isinstance(event, KeysLoaded))
        return any(event.member == reader and tp in event.partitions for event in loads)

    @property
    def coordinator(self) -> str:
        """The broker that leads the group's offsets; "" while there is none."""
        path = PartitionState.path("__consumer_offsets", 0)
        found = self.cluster.zk.tree.find(path)
        leader = -1 if found is None else PartitionState.decode(path, found.data).leader
        return f"broker{leader}" if leader >= 0 else ""

    async def deliver(self, key: str) -> str:
        """Write a record, wait until it is read, and return its value."""
        value = self.sends(key)
        await self.produce(key, self.layout, value=value)
        assert await self.until(lambda: value in self.delivered), self.owned
        return value

    async def merge_unseen(self) -> None:
        """2 -> 1: the child is removed before any member gets new metadata. Then only the survivor's owner gets it."""
        self.leader.stops_metadata()
        self.other.stops_metadata()
        await self.resize(1)
        await self.see_removed()
        self.other.sees_metadata.set()

    async def see_removed(self) -> None:
        """Wait until the child is removed. The leader must not know of the removal."""
        assert await self.until(lambda: self.watch.tps() == [SURVIVOR], LONG_S), self.watch.unfinished()
        assert self.leader.topic.layout_version < self.layout.layout_version, "the leader must not know the new layout"
        assert MARKED in self.leader.assignment


async def merge(scene: UnseenMerge) -> None:
    """The readers know only the layout with two partitions."""
    await scene.resize(2)
    await scene.begin()
    key = scene.key(1, 2)
    await scene.deliver(key)
    await scene.merge_unseen()
    await scene.deliver(key)
    scene.leader.sees_metadata.set()


async def split_and_merge(scene: UnseenMerge) -> None:
    """The survivor's owner knows of one partition: its metadata shows neither the split nor the merge."""
    await scene.begin()
    scene.other.stops_metadata()
    await scene.resize(2)
    assert await scene.until(lambda: scene.owned == ({SURVIVOR}, {MARKED}))
    key = scene.key(1, 2)
    await scene.deliver(key)
    await scene.merge_unseen()
    await scene.deliver(key)
    scene.leader.sees_metadata.set()


async def merge_while_it_is_loaded(scene: UnseenMerge) -> None:
    """The survivor's owner still loads its assigned partitions when the child is flushed and removed."""
    await scene.resize(2)
    scene.other.loads = trio.Event()
    await scene.begin()
    key = scene.key(1, 2)
    await scene.deliver(key)
    scene.leader.stops_metadata()
    await scene.resize(1)
    await scene.see_removed()
    assert await scene.until(lambda: len(scene.other.topic.partitions) == 1)
    scene.other.loads.set()
    await scene.deliver(key)
    scene.leader.sees_metadata.set()


async def merge_while_another_is_loaded(scene: UnseenMerge) -> None:
    """A survivor's owner loads a merged partition's states. Meanwhile a second partition is flushed and merged."""
    await scene.resize(6)
    await scene.begin()
    first, second, survivor = scene.key(5, 6), scene.key(3, 6), TopicPartition(TOPIC, 1)
    for key in (first, second):
        await scene.deliver(key)
    scene.leader.stops_metadata()
    scene.other.loads = trio.Event()
    await scene.resize(5)
    value = scene.sends(first)
    await scene.produce(first, scene.layout, value=value)
    assert await scene.until(lambda: scene.has_begun_to_load("a", survivor))
    await scene.resize(3)

    def is_answered() -> bool:
        scene.other.look()  # as a monitoring task does
        return scene.is_answered("a", TopicPartition(TOPIC, 3))

    assert await scene.until(is_answered)
    scene.other.loads.set()
    await scene.deliver(second)
    scene.leader.sees_metadata.set()


async def split_after_an_unseen_merge(scene: UnseenMerge) -> None:
    """After a merge and a split, the survivor's owner reads the records that were written between the two."""
    await scene.resize(2)
    await scene.begin()
    key = scene.key(1, 2)
    await scene.deliver(key)
    scene.other.pause(SURVIVOR)
    scene.leader.stops_metadata()
    scene.other.stops_metadata()
    await scene.resize(1)
    await scene.see_removed()
    value = scene.sends(key)
    await scene.produce(key, scene.layout, value=value)
    await scene.resize(2)
    scene.other.sees_metadata.set()
    scene.other.resume(SURVIVOR)
    assert await scene.until(lambda: value in scene.delivered)
    scene.leader.sees_metadata.set()


async def merge_while_no_member_polls(scene: UnseenMerge) -> None:
    """The controller asks a new coordinator for positions before any member has polled that coordinator."""
    await scene.resize(2)
    await scene.begin()
    key = scene.key(1, 2)
    await scene.deliver(key)
    assert await scene.until(lambda: scene.is_committed(MARKED, 1))
    scene.leader.stops_metadata()
    scene.other.stops_metadata()
    brokers = [f"broker{broker}" for broker in BROKERS]
    for broker in brokers:
        for reader in ("a", "b"):
            scene.cluster.fabric.cut(reader, broker)
    before = scene.coordinator
    await scene.cluster.kill(before)
    assert await scene.until(lambda: scene.coordinator not in ("", before))
    assert await scene.until(lambda: all(scene.leader_or_none(p) not in ("", before) for p in (0, 1)))
    await scene.ask_a_new_controller_for(1)
    await scene.until(lambda: scene.watch.tps() == [SURVIVOR], LITTLE_S)
    scene.cluster.fabric.heal_all()
    await scene.restart(before)
    await scene.see_removed()
    scene.other.sees_metadata.set()
    await scene.deliver(key)
    scene.leader.sees_metadata.set()


async def merge_behind_a_member(scene: UnseenMerge) -> None:
    """The coordinator evicts an unreachable member. Later records of that member's keys are in the survivor."""
    await removed_behind_a_member(scene, created_again=False)


async def merge_and_split_behind_a_member(scene: UnseenMerge) -> None:
    """Like ``merge_behind_a_member``, but the partition exists again when the member gets metadata."""
    await removed_behind_a_member(scene, created_again=True)


async def removed_behind_a_member(scene: UnseenMerge, *, created_again: bool) -> None:
    await scene.resize(4)
    await scene.begin()
    assert scene.other.assignment == {SURVIVOR, MARKED}
    key = scene.key(1, 4)
    await scene.deliver(key)
    assert await scene.until(lambda: scene.is_committed(MARKED, 1))
    scene.other.belongs = trio.Event()
    scene.other.stops_metadata()
    assert await scene.until(lambda: scene.leader.assignment == set(scene.watch.tps()))
    await scene.resize(1)
    assert await scene.until(lambda: scene.watch.tps() == [SURVIVOR], LONG_S), scene.watch.unfinished()
    after = await scene.deliver(key)
    if created_again:
        await scene.resize(4)
    assert scene.other.topic.layout_version < scene.layout.layout_version, "it must not know the new layout"
    scene.other.sees_metadata.set()
    assert await scene.until(lambda: scene.is_delivered_to("a", after))
    assert MARKED in scene.other.assignment, "it must not know that it was evicted"
    scene.other.belongs.set()


MergeScenario = Callable[[UnseenMerge], Awaitable[None]]


def violations(scenario: MergeScenario) -> list[str]:
    """The violations of the history checks in a scenario, as texts."""
    with pytest.MonkeyPatch.context() as patch:
        return run_deterministic(1, partial(_violations, scenario, patch))


async def _violations(scenario: MergeScenario, patch: Patch) -> list[str]:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, 1)
        scene = UnseenMerge(cluster, nursery)
        scene.hold_requests(patch)
        try:
            await scene.start(1, replication_factor=3 if scenario is merge_while_no_member_polls else 1)
            await scenario(scene)
            await scene.finish()
        finally:
            with trio.CancelScope(shield=True):
                await cluster.end()
            nursery.cancel_scope.cancel()
    assert not scene.is_unfinished()
    return [str(violation) for violation in check_history(scene.recorder.events)]


def no_owner_is_asked_to_flush(patch: Patch) -> None:
    for module in (position_poll, readers):
        patch.setattr(module, "ask_owners", lambda *_: None)


def members_without_a_poll_are_not_waited_for(patch: Patch) -> None:
    """Before any member of the group has polled, the removal does not wait for members."""
    ask = position_poll.ask_owners

    def ask_owners(turn: Any, group: Any, wanted: Any) -> None:
        if group.positions.without_poll is not None:
            ask(turn, group, wanted)

    for module in (position_poll, readers):
        patch.setattr(module, "ask_owners", ask_owners)


def a_removed_partition_needs_no_load(patch: Patch) -> None:
    """A lineage entry is dropped once its loser is removed."""
    on_lineage = Facts.on_lineage

    def prune(self: Any, *answer: Any) -> None:
        on_lineage(self, *answer)
        for partition, known in self.lineages.items():
            entries, _ = lineage.pruned(known.entries, known.floor, self.over)
            self.lineages[partition] = known._replace(entries=entries)

    patch.setattr(Facts, "on_lineage", prune)


def an_assignment_counts_as_a_load(patch: Patch) -> None:
    """An assignment counts as a load of all lineage entries that are satisfied at the gate's first look."""
    assign, look = Gate.assign, Gate.look
    not_loaded: set[tuple[Gate, int]] = set()

    def note_new(self: Gate, partitions: Iterable[int]) -> None:
        wanted = set(partitions)
        not_loaded.update((self, partition) for partition in wanted - self.owned)
        assign(self, wanted)

    def look_first(self: Gate, partition: int, epoch: int) -> Any:
        if (self, partition) in not_loaded and partition in self.facts.lineages:
            not_loaded.remove((self, partition))
            self.load_returned(partition, self.load_called(partition))
        return look(self, partition, epoch)

    patch.setattr(Gate, "assign", note_new)
    patch.setattr(Gate, "look", look_first)


def a_removed_partition_needs_no_flush(patch: Patch) -> None:
    take_revoked = TopicGates.take_revoked

    def take(self: Any) -> Any:
        self.removed = {}
        return take_revoked(self)

    patch.setattr(TopicGates, "take_revoked", take)


NO_FLUSH_BY_A, NO_FLUSH = "a did not flush its changes for", "b did not flush its changes for"
NO_LOAD = "a loaded before b had flushed its changes for"
RULES: tuple[tuple[MergeScenario, Callable[[Patch], None], str], ...] = (
    (merge, no_owner_is_asked_to_flush, NO_FLUSH),
    (merge, a_removed_partition_needs_no_load, NO_LOAD),
    (split_and_merge, no_owner_is_asked_to_flush, NO_FLUSH),
    (split_and_merge, a_removed_partition_needs_no_load, NO_LOAD),
    (merge_while_it_is_loaded, an_assignment_counts_as_a_load, NO_LOAD),
    (merge_while_another_is_loaded, rules.a_load_covers_entries_satisfied_when_it_returns, NO_LOAD),
    (split_after_an_unseen_merge, rules.pruned_entries_need_no_load, NO_LOAD),
    (merge_while_no_member_polls, members_without_a_poll_are_not_waited_for, NO_FLUSH),
    (merge_behind_a_member, a_removed_partition_needs_no_flush, NO_FLUSH_BY_A),
    (merge_and_split_behind_a_member, a_removed_partition_needs_no_flush, NO_FLUSH_BY_A),
)


@pytest.mark.parametrize("scenario", dict.fromkeys(scenario for scenario, _, _ in RULES))
def test_a_merge_that_no_member_saw_keeps_the_promise(scenario: MergeScenario) -> None:
    assert violations(scenario) == []


@pytest.mark.parametrize(("scenario", "switch_off", "what"), RULES)
@pytest.mark.mutation
def test_a_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: MergeScenario, switch_off: Callable[[Patch], None], what: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    (found,) = violations(scenario)
    assert what in found
