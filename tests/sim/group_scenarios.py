"""Scenarios of a group's members and its coordinator: counterexamples of ``docs/model/HandOver.tla`` for each rule.

Each of two members reads one half of the topic. The first record of a key is in the parent, and the second record is in
the child that was split off. The child's owner waits until the parent's owner has delivered, flushed and committed.
"""

from __future__ import annotations

from typing import Any

import trio

from anabranch.client import Consumer
from anabranch.client.group.assignors.range import RangeAssignor
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionRequest
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState
from tests.history.events import (
    Assigned,
    Committed,
    KeysFlushed,
    KeysLoaded,
    OrderedGroup,
    Polled,
    Positioned,
    PositionReported,
    Revoked,
)
from tests.sim.faults import BROKERS
from tests.sim.keeping_range import KeepingRange
from tests.sim.members import GROUP, generation_of
from tests.sim.recording import now_ms
from tests.sim.scenes import TOPIC, Scene
from tests.sim.sim_cluster import SimCluster

PARENT, CHILD = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
LITTLE_S = 4.0
"""Much longer than a hand-over, and shorter than the members' sessions."""
LONG_S = 15.0


def already() -> trio.Event:
    event = trio.Event()
    event.set()
    return event


class LateError(Exception):
    """The members have not begun to read in time."""


class Member:
    """A member that commits after each ``getmany``, also unflushed records.

    Its callbacks for assignments, flushes and loads wait until ``begins``, ``flushes`` and ``loads`` are set. While
    ``belongs`` is not set, the member and its coordinator exchange only requests of the types ``passing``. Keys count
    as loaded when the callback has returned.
    """

    def __init__(self, scene: GroupScene, name: str) -> None:
        self._scene = scene
        self._name = name
        self._scope = trio.CancelScope()
        self.consumer: Consumer | None = None
        self.begins, self.flushes, self.loads, self.belongs = already(), already(), already(), already()
        self.passing: tuple[type, ...] = ()
        self.keeps = ""
        """The record whose delivery unsets ``flushes``."""
        self.goes_back = False
        """Whether the member's user reads the parent from the start after the next assignment."""

    @property
    def assignment(self) -> set[TopicPartition]:
        return set() if self.consumer is None else self.consumer.assignment()

    @property
    def generation(self) -> int:
        """The generation of the member's partitions; -1 when the member has no generation, or another one begins."""
        assert self.consumer is not None and self.consumer._coordinator is not None
        coordinator = self.consumer._coordinator
        return -1 if coordinator.member.rejoin_needed else coordinator.settled_generation

    @property
    def is_asked(self) -> bool:
        """Whether the coordinator has asked this member to report, because another member waits for its partitions."""
        assert self.consumer is not None
        ordered = self.consumer._ordered
        return ordered is not None and bool(ordered._reports.asked)

    @property
    def is_blocked(self) -> bool:
        """Whether one of the member's partitions waits for another partition."""
        return self.consumer is not None and bool(self.consumer.explain_blocked())

    def go_back(self) -> None:
        """Read the parent from the start."""
        assert self.consumer is not None
        self.consumer.seek(PARENT, 0)
        self._scene.recorder.add(Positioned(now_ms(), GROUP, self._name, PARENT, 0))

    def leave(self) -> None:
        """Close the consumer, which leaves the group."""
        self._scope.cancel()

    async def run(self, **config: Any) -> None:
        scene, name = self._scene, self._name
        options = {
            "session_timeout_ms": 8000,
            "heartbeat_interval_ms": 500,
            "partition_assignment_strategy": [KeepingRange()],
            **config,
        }
        async with Consumer(
            bootstrap_servers=scene.cluster.bootstrap_servers,
            env=scene.cluster.client_env(name),
            client_id=name,  # ranges are assigned in the order of member ids, which begin with it
            group_id=GROUP,
            auto_offset_reset="earliest",
            auto_commit_interval_ms=1,
            metadata_max_age_ms=2000,
            **options,
        ) as consumer:
            self.consumer = consumer
            scene.recorder.spy_on(consumer, name)
            link = consumer._need_link()
            request = link.request

            async def request_when_it_belongs(body: Any, *args: Any, **kwargs: Any) -> Any:
                await self._pass(body)
                answer = await request(body, *args, **kwargs)
                await self._pass(body)
                return answer

            link.request = request_when_it_belongs  # type: ignore[method-assign]
            consumer.subscribe([TOPIC], listener=self, partition_key_listener=self)
            with self._scope:
                while True:
                    self._take(await consumer.getmany(timeout_ms=50))

    async def _pass(self, body: Any) -> None:
        while not (self.belongs.is_set() or isinstance(body, self.passing)):
            await trio.sleep(0.01)  # polls: virtual time

    def _take(self, batches: Any) -> None:
        assert self.consumer is not None
        scene, generation = self._scene, generation_of(self.consumer)
        for tp, records in batches.items():
            for record in records:
                value = (record.value or b"").decode()
                scene.recorder.add(Polled(now_ms(), GROUP, self._name, tp, record.offset, value, generation))
                scene.delivered[value] = None
                if value == self.keeps:
                    self.flushes = trio.Event()

    def _record(self, kind: Any, tps: list[TopicPartition], **more: Any) -> None:
        assert self.consumer is not None
        self._scene.recorder.add(kind(now_ms(), GROUP, self._name, generation_of(self.consumer), list(tps), **more))

    async def on_partitions_assigned(self, tps: list[TopicPartition]) -> None:
        self._record(Assigned, tps)
        if self.goes_back and PARENT in tps:
            self.goes_back = False
            self.go_back()
        await self.begins.wait()

    def on_partitions_revoked(self, tps: list[TopicPartition]) -> None:
        self._record(Revoked, tps)

    def on_partitions_lost(self, tps: list[TopicPartition]) -> None:
        self._record(Revoked, tps, lost=True)

    async def on_partition_key_maybe_revoked(self, tps: list[TopicPartition]) -> None:
        await self.flushes.wait()
        self._record(KeysFlushed, tps)

    async def on_partition_key_assigned(self, tps: list[TopicPartition]) -> None:
        await self.loads.wait()
        self._record(KeysLoaded, tps)


class GroupScene(Scene):
    """A scene with two members: ``a`` reads the first half of the topic, ``b`` the second. Scenarios may add ``c``."""

    def __init__(self, cluster: SimCluster, nursery: trio.Nursery) -> None:
        super().__init__(cluster, nursery)
        self._tasks = nursery
        self.a = Member(self, "a")
        self.b = Member(self, "b")
        self.c = Member(self, "c")
        self.delivered = self._group.delivered
        self.is_late = False
        """Whether an expected record was not delivered in time."""

    async def begin(self, **config: Any) -> None:
        """Start both members, and wait until they read in one generation. Raises ``LateError``."""
        self._reads = True
        self.recorder.add(OrderedGroup(now_ms(), GROUP))
        for member in (self.a, self.b):
            self.join(member, **config)
        for begun in (
            lambda: bool(self.a.assignment and self.b.assignment),
            lambda: self.a.generation == self.b.generation >= 0,
        ):
            if not await self.until(begun):
                raise LateError

    def join(self, member: Member, **config: Any) -> None:
        async def run() -> None:
            await member.run(**config)

        self._tasks.start_soon(run)

    async def write(self, key: str) -> str:
        """Write a record with the current layout, and return the record's value."""
        value = self.sends(key)
        error, _ = await self.produce(key, self.layout, value=value)
        assert not error, error
        return value

    async def expect_soon(self, value: str, limit_s: float = LITTLE_S) -> None:
        """Expect the record to be delivered in time; otherwise the scene fails with ``late``."""
        if not await self.until(lambda: value in self.delivered, limit_s):
            self.is_late = True

    def deliveries(self, value: str) -> int:
        return sum(isinstance(event, Polled) and event.value == value for event in self.recorder.events)

    def is_delivered_to(self, name: str, value: str) -> bool:
        polled = (event for event in self.recorder.events if isinstance(event, Polled))
        return any((event.member, event.value) == (name, value) for event in polled)

    def reports(self, name: str, position: int) -> int:
        """The number of times that a member has reported this position in the parent."""
        reports = (event for event in self.recorder.events if isinstance(event, PositionReported))
        return sum((event.member, event.tp, event.position) == (name, PARENT, position) for event in reports)

    def is_committed(self, name: str, tp: TopicPartition, offset: int) -> bool:
        committed = (event for event in self.recorder.events if isinstance(event, Committed))
        return any(
            (event.member, event.tp, event.offset, event.outcome) == (name, tp, offset, "ok") for event in committed
        )

    @property
    def coordinator(self) -> str:
        """The broker that leads the group's offsets; "" while there is none."""
        path = PartitionState.path("__consumer_offsets", 0)
        found = self.cluster.zk.tree.find(path)
        leader = -1 if found is None else PartitionState.decode(path, found.data).leader
        return f"broker{leader}" if leader >= 0 else ""

    async def replace_coordinator(self) -> str:
        """Kill the coordinator. Wait for the next coordinator and for all leaders. Returns the killed broker."""
        before = self.coordinator
        await self.cluster.kill(before)
        assert await self.until(lambda: self.coordinator not in ("", before))
        count = len(self.watch.tps())
        assert await self.until(lambda: all(self.leader_or_none(p) not in ("", before) for p in range(count)))
        return before

    async def evict(self, member: Member, other: Member) -> None:
        """Cut one member off from the coordinator until the other member has got all its partitions."""
        member.belongs = trio.Event()
        assert await self.until(lambda: len(other.assignment) == len(self.watch.tps())), other.assignment


async def split_unread(scene: GroupScene, partitions: int = 2) -> tuple[str, str]:
    """Write a key's record to the parent, split, and write the key's next record to the child."""
    key = scene.key(1, partitions)
    older = await scene.write(key)
    await scene.resize(partitions)
    return older, await scene.write(key)


# ---------------------------------------------------------------- callbacks


async def load_for_long(scene: GroupScene) -> None:
    """The child need not wait any more, but the user of its owner still loads the states of the child's keys."""
    _, newer = await split_unread(scene)
    scene.b.loads = trio.Event()
    await scene.begin()
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    scene.b.loads.set()


# ---------------------------------------------------------------- generations


async def leave_while_another_waits(scene: GroupScene) -> None:
    """One member leaves. The other member sends few heartbeats: only its parked poll reports the rebalance in time."""
    await scene.resize(2)
    await scene.begin(session_timeout_ms=90_000, heartbeat_interval_ms=30_000, request_timeout_ms=120_000)
    await scene.expect_soon(await scene.write(scene.key(1, 2)))
    await scene.until(lambda: scene.is_committed("b", CHILD, 1), LITTLE_S)
    scene.b.leave()
    await trio.sleep(1)  # pause: virtual time
    await scene.expect_soon(await scene.write(scene.key(1, 2)))


async def commit_after_an_eviction(scene: GroupScene) -> None:
    """An evicted member's last commit arrives after the member's successor has read further and left."""
    await scene.resize(2)
    await scene.begin()
    key = scene.key(0, 2)
    for known in (key, scene.key(1, 2)):  # once the child is read, no member waits for the parent's reports
        await scene.expect_soon(await scene.write(known))
    assert await scene.until(lambda: scene.is_committed("a", PARENT, 1))
    scene.a.belongs = trio.Event()
    last = await scene.write(key)
    assert await scene.until(lambda: scene.is_delivered_to("a", last))
    assert scene.a.consumer is not None
    scene.a.consumer.pause(PARENT)
    await scene.evict(scene.a, scene.b)
    for _ in range(3):
        last = await scene.write(key)
    assert await scene.until(lambda: scene.is_delivered_to("b", last) and scene.is_committed("b", PARENT, 5))
    scene.b.leave()
    await trio.sleep(1)  # pause: virtual time
    scene.a.passing = (OffsetCommitRequest,)
    await trio.sleep(1)  # pause: virtual time
    scene.a.belongs.set()
    assert await scene.until(lambda: scene.a.assignment == set(scene.watch.tps()))
    last = await scene.write(key)
    assert await scene.until(lambda: scene.is_delivered_to("a", last))


async def report_after_an_eviction(scene: GroupScene) -> None:
    """An evicted member reports a position. Its successor has read records below that position, but not flushed."""
    older, newer = await split_unread(scene)
    scene.a.keeps = scene.b.keeps = older
    scene.b.goes_back = True
    scene.b.begins = trio.Event()  # no member asks for the position before the commit
    scene.join(scene.c, partition_assignment_strategy=[RangeAssignor()])
    await scene.begin(partition_assignment_strategy=[RangeAssignor()])
    assert await scene.until(lambda: scene.is_committed("a", PARENT, 1))
    scene.b.begins.set()
    assert await scene.until(lambda: scene.a.is_asked)
    scene.a.belongs = trio.Event()
    scene.a.flushes.set()
    assert await scene.until(lambda: (scene.b.assignment, scene.c.assignment) == ({PARENT}, {CHILD}))
    assert await scene.until(lambda: scene.is_delivered_to("b", older))
    scene.a.passing = (ConsumerGroupPositionRequest,)
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    scene.b.flushes.set()
    scene.a.belongs.set()


async def deliver_behind_a_member_that_goes_back(scene: GroupScene) -> None:
    """After the child is read, the parent's owner reads the parent again, and does not flush the repeated records."""
    older, newer = await split_unread(scene)
    await scene.begin()
    assert await scene.until(lambda: newer in scene.delivered)
    scene.a.keeps = older
    scene.a.go_back()
    assert await scene.until(lambda: scene.deliveries(older) == 2)
    await scene.until(lambda: scene.b.is_blocked, LITTLE_S)
    newest = await scene.write(scene.key(1, 2))
    await scene.until(lambda: newest in scene.delivered, LITTLE_S)
    scene.a.flushes.set()
    await scene.expect_soon(newest)


async def deliver_behind_a_member_that_went_back_unseen(scene: GroupScene) -> None:
    """The parent's owner reads the parent again, flushes and reports, while the child's owner is unreachable."""
    older, newer = await split_unread(scene)
    await scene.begin()
    assert await scene.until(lambda: newer in scene.delivered)
    for broker in BROKERS:
        scene.cluster.fabric.cut(f"broker{broker}", "b")
    reports = scene.reports("a", 1)
    scene.a.go_back()
    assert await scene.until(lambda: scene.deliveries(older) == 2 and scene.reports("a", 1) > reports)
    await trio.sleep(1)  # pause: virtual time
    scene.cluster.fabric.reset(scene.coordinator, "b")  # responses in flight are lost
    scene.cluster.fabric.heal_all()
    await trio.sleep(1)  # pause: it polls again; virtual time
    await scene.expect_soon(await scene.write(scene.key(1, 2)))


async def deliver_behind_an_unflushed_commit(scene: GroupScene) -> None:
    """A member is evicted. Then it starts at an offset that its successor has committed without a flush."""
    older, newer = await split_unread(scene, 4)
    scene.a.begins, scene.b.keeps = trio.Event(), older
    await scene.begin()
    assert await scene.until(lambda: scene.a.is_asked)
    scene.a.passing = (OffsetFetchRequest,)
    await scene.evict(scene.a, scene.b)
    assert await scene.until(lambda: scene.is_committed("b", PARENT, 1))
    assert scene.is_delivered_to("b", older)
    scene.a.begins.set()
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    scene.b.flushes.set()
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    scene.a.belongs.set()


async def deliver_behind_a_refused_commit(scene: GroupScene) -> None:
    """An evicted member cannot commit its records. Its successor reads these records again, but does not flush yet."""
    older, newer = await split_unread(scene, 4)
    scene.a.keeps = scene.b.keeps = older
    await scene.begin(enable_auto_commit=False)
    assert await scene.until(lambda: scene.is_delivered_to("a", older))
    await scene.evict(scene.a, scene.b)
    assert await scene.until(lambda: scene.is_delivered_to("b", older))
    scene.a.passing = (OffsetCommitRequest,)
    scene.a.flushes.set()
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    scene.b.flushes.set()
    scene.a.belongs.set()


# ---------------------------------------------------------------- coordinators


async def wait_while_the_coordinator_dies(scene: GroupScene) -> None:
    """Only the coordinator has a report. The coordinator dies before it responds to the waiting member."""
    older, newer = await split_unread(scene)
    scene.a.keeps = older
    await scene.begin()
    assert await scene.until(lambda: scene.is_delivered_to("a", older))
    for broker in BROKERS:
        scene.cluster.fabric.cut(f"broker{broker}", "b")
    before, reports = scene.coordinator, scene.reports("a", 1)
    scene.a.flushes.set()
    assert await scene.until(lambda: scene.reports("a", 1) > reports and scene.is_committed("a", PARENT, 1))
    await trio.sleep(1)  # pause: virtual time
    scene.cluster.fabric.reset(before, "b")  # a response in flight is lost with its sender
    await scene.replace_coordinator()
    scene.cluster.fabric.heal_all()
    await scene.restart(before)
    await scene.expect_soon(newer, LONG_S)


async def die_before_a_commit_is_replicated(scene: GroupScene) -> None:
    """The coordinator dies with a commit that is not replicated, and the member that committed is cut off."""
    older, newer = await split_unread(scene)
    scene.a.keeps = older
    await scene.begin(enable_auto_commit=False)
    assert await scene.until(lambda: scene.is_delivered_to("a", older))
    before = scene.coordinator
    for broker in BROKERS:
        scene.cluster.fabric.cut(before, f"broker{broker}")
    await trio.sleep(1)  # pause: until no fetch is under way any more; virtual time
    scene.a.flushes.set()
    await scene.until(lambda: newer in scene.delivered, LITTLE_S)
    for broker in BROKERS:
        scene.cluster.fabric.cut("a", f"broker{broker}")
    await scene.replace_coordinator()
    await scene.until(lambda: scene.b.assignment == set(scene.watch.tps()), LONG_S)
    await scene.until(lambda: scene.is_delivered_to("b", older), LITTLE_S)
    scene.cluster.fabric.heal_all()
    await scene.restart(before)
