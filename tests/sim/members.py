"""The group of a simulated cluster: members that join, leave and crash, and their states of keys."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import trio

from anabranch.client import Consumer
from anabranch.client.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from tests.history.events import Assigned, Fault, KeysFlushed, KeysLoaded, OrderedGroup, Polled, Revoked
from tests.history.key_states import KeyStates
from tests.sim.recording import Recorder, now_ms
from tests.sim.sim_cluster import SimCluster

GROUP = "readers"
HEARTBEAT_S = 2.0


@dataclass(frozen=True, kw_only=True)
class GroupLoad:
    """The settings of the group.

    ``ordered``: the members have key listeners, and the order of keys is checked across resizes. ``stateful``: each
    member keeps a state for each key, and commits by hand after flushing. ``crashes`` is the share of members that
    crash. ``slow`` is the share of the users' loads that outlast heartbeats, and ``slow_flushes`` the share of such
    flushes.
    """

    members: tuple[str, ...] = ("one", "two")
    ordered: bool = False
    stateful: bool = False
    crashes: float = 0.0
    slow: float = 0.0
    slow_flushes: float = 0.0
    assignor: str = ""


@dataclass
class Group:
    """The members of the group. ``read`` runs them until ``stop`` is set."""

    cluster: SimCluster
    recorder: Recorder
    topic: str
    load: GroupLoad
    request_timeout_ms: int = 30_000
    delivered: dict[str, None] = field(default_factory=dict)
    """The records that were delivered to any member."""
    states: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The flushed states of stateful members."""
    stop: trio.Event = field(default_factory=trio.Event)
    hurries: bool = False
    """Set when members must not be slow any more."""
    on_slow_load: Callable[[], None] = lambda: None

    async def read(self) -> None:
        if self.load.ordered:
            self.recorder.add(OrderedGroup(now_ms(), GROUP))
        async with trio.open_nursery() as nursery:
            for name in self.load.members:
                nursery.start_soon(self.cluster.run_client, name, self._membership, name)

    async def _membership(self, machine: str) -> None:
        """Run one member after the other on one machine, each for some seconds."""
        number, rng = 0, self.cluster.rng
        while not self.stop.is_set():
            number += 1
            member = f"{machine}.{number}"
            ends_at = trio.current_time() + rng.uniform(5, 40)
            crashes = self.load.crashes > 0 and rng.random() < self.load.crashes
            try:
                with trio.CancelScope() as power:
                    async with trio.open_nursery() as nursery:
                        if crashes:
                            nursery.start_soon(self._crash, machine, member, ends_at, power)
                        await self._be_member(machine, member, lambda until=ends_at: trio.current_time() >= until)  # type: ignore[misc]
                        nursery.cancel_scope.cancel()
            except* KafkaError as errors:
                self.cluster.happened("member failed", member, str(errors.exceptions[0]))
                await trio.sleep(1)  # pause: virtual time

    async def _crash(self, machine: str, member: str, at_s: float, power: trio.CancelScope) -> None:
        await trio.sleep_until(at_s - self.cluster.rng.uniform(0, 4))
        self.recorder.add(Fault(now_ms(), "member crash", member))
        self.cluster.fabric.kill(machine)
        power.cancel()

    async def _be_member(self, machine: str, member: str, is_over: Callable[[], bool]) -> None:
        rng, load = self.cluster.rng, self.load
        by_hand = load.stateful or (not load.ordered and rng.random() < 0.5)
        options: dict[str, Any] = {"partition_assignment_strategy": [load.assignor]} if load.assignor else {}
        async with Consumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            env=self.cluster.client_env(machine),
            group_id=GROUP,
            auto_offset_reset="earliest",
            enable_auto_commit=not by_hand,
            auto_commit_interval_ms=500,
            session_timeout_ms=8000,
            heartbeat_interval_ms=int(HEARTBEAT_S * 1000),
            request_timeout_ms=self.request_timeout_ms,
            **options,
        ) as consumer:
            self.recorder.spy_on(consumer, member)
            states = KeyStates(self.states)
            listener = _Listener(self.recorder, consumer, member, states)
            key_listener = _KeyListener(listener, self._work)
            keys: dict[str, Any] = {"partition_key_listener": key_listener} if load.ordered else {}
            consumer.subscribe([self.topic], listener=listener, **keys)
            while not (self.stop.is_set() or is_over()):
                batches = await consumer.getmany(timeout_ms=200, max_records=rng.randint(1, 20))
                for tp, records in batches.items():
                    for record in records:
                        self._take(listener, tp, record)
                if by_hand and (batches or load.stateful) and rng.random() < 0.5:
                    await self._commit(consumer, listener)

    def _take(self, listener: _Listener, tp: TopicPartition, record: Any) -> None:
        value = (record.value or b"").decode()
        state, generation = None, listener.generation
        if self.load.stateful:
            producer = value.partition(":")[0]
            state = listener.states.apply(tp, f"{producer} {(record.key or b'').decode()}", value, generation)
        member = listener.member
        self.recorder.add(Polled(now_ms(), GROUP, member, tp, record.offset, value, generation, state=state))
        self.delivered[value] = None

    async def _work(self, *, is_load: bool) -> None:
        """Sleep for the duration of a flush or a load, perhaps so long that the group and the topic change."""
        rng, slow = self.cluster.rng, self.load.slow if is_load else self.load.slow_flushes
        if slow > 0 and not self.hurries and rng.random() < slow:
            if is_load:
                self.on_slow_load()
            await trio.sleep(rng.uniform(1, 4) * HEARTBEAT_S)  # pause: virtual time
        else:
            await trio.sleep(rng.choice([0.0, 0.0, 0.01, 0.2]))  # pause: virtual time

    async def _commit(self, consumer: Consumer, listener: _Listener) -> None:
        try:
            if self.load.stateful:
                listener.flush(sorted(consumer.assignment()))
            await consumer.commit()
        except KafkaError as error:
            self.cluster.happened("not committed", listener.member, str(error))


def generation_of(consumer: Consumer) -> int:
    assert consumer._coordinator is not None
    return consumer._coordinator.member.generation_id


class _Listener:
    """Records the assignments of a member, and keeps its states accordingly."""

    def __init__(self, recorder: Recorder, consumer: Consumer, member: str, states: KeyStates) -> None:
        self.recorder = recorder
        self.consumer = consumer
        self.member = member
        self.states = states
        self._assigned_in = -1

    @property
    def generation(self) -> int:
        """The consumer's generation. After an eviction this is the last generation, until the next assignment."""
        known = generation_of(self.consumer)
        return known if known >= 0 else self._assigned_in

    def flush(self, tps: list[TopicPartition]) -> None:
        self.states.flush(tps)

    def on_partitions_assigned(self, tps: list[TopicPartition]) -> None:
        self.states.load(tps)
        self._assigned_in = generation_of(self.consumer)
        self.recorder.add(Assigned(now_ms(), GROUP, self.member, self._assigned_in, tps))

    def on_partitions_revoked(self, tps: list[TopicPartition]) -> None:
        self.states.flush(tps)
        self.states.drop(tps)
        self.recorder.add(Revoked(now_ms(), GROUP, self.member, generation_of(self.consumer), tps))

    def on_partitions_lost(self, tps: list[TopicPartition]) -> None:
        self.states.drop(tps)
        self.recorder.add(Revoked(now_ms(), GROUP, self.member, generation_of(self.consumer), tps, lost=True))


class _KeyListener:
    """Flushes and loads states when keys move between partitions. ``work`` sleeps for the duration.

    A flush takes effect only when its ``work`` has returned. A load does not include states that are flushed during its
    ``work``.
    """

    def __init__(self, listener: _Listener, work: Callable[..., Awaitable[None]]) -> None:
        self._listener = listener
        self._work = work

    def _event(self, kind: type[KeysFlushed] | type[KeysLoaded], tps: list[TopicPartition]) -> None:
        on = self._listener
        on.recorder.add(kind(now_ms(), GROUP, on.member, generation_of(on.consumer), list(tps)))

    async def on_partition_key_maybe_revoked(self, tps: list[TopicPartition]) -> None:
        await self._work(is_load=False)
        self._listener.states.flush(tps)
        self._event(KeysFlushed, tps)

    async def on_partition_key_assigned(self, tps: list[TopicPartition]) -> None:
        self._listener.states.load(tps)
        self._event(KeysLoaded, tps)
        await self._work(is_load=True)
