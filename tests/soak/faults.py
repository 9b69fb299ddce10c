"""The faults of a run: their schedule, and how they are caused and undone.

The schedule follows from the seed alone. Three replicas with two in sync keep every acknowledged record after **the
loss of one broker**. So at most one broker at a time has a fault: it is dead, stopped, cut off, without its session,
without a log or a log dir, or on a full disk. The next broker gets a fault only when every partition has its whole ISR
again. A torn tail (bytes that were never synced) counts as the loss of a broker as well. Faults of controllers, of
ZooKeeper, and slow or reset connections cost only time. So one such fault may happen together with a broker's fault.

``kill_schedule`` has a harsher rule for kill -9 alone. kill -9 loses no bytes of the page cache. So as soon as the last
killed broker runs again, the next broker is killed, even if ISRs are not whole.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import trio

from tests.soak import disks
from tests.soak.cluster import CLIENTS, SESSION_TIMEOUT_MS, ZOOKEEPER, SoakCluster
from tests.soak.hostile import send_frame
from tests.soak.observer import Observer
from tests.soak.recorder import Recorder
from tests.soak.workload import WRITERS
from tests.support.protocol.hostile_frames import HARMLESS_APIS, random_request

BROKERS = ("broker-1", "broker-2", "broker-3")
CONTROLLERS = ("controller-1000", "controller-1001")
SYNC_LIMIT_S = 90.0
MISSED_LIMIT_S = 30.0
HOSTILE_BYTES = 1 << 20
_CHECK_EVERY_S = 0.1
BEYOND_SESSION_S = (SESSION_TIMEOUT_MS / 1000 + 1, SESSION_TIMEOUT_MS / 1000 + 5)
SHORT_S = (0.2, 2.5)

BROKER_KINDS = {
    "kill_broker": ((0.0, 8.0), 4),
    "torn_tails": ((0.0, 6.0), 3),
    "pause_broker": (BEYOND_SESSION_S, 2),
    "pause_broker_shortly": (SHORT_S, 1),
    "broker_session": (BEYOND_SESSION_S, 2),
    "disk_full": ((1.0, 8.0), 2),
    "unreadable_log": ((1.0, 8.0), 2),
    "lost_directory": ((1.0, 8.0), 2),
    "cut_brokers": ((0.5, 10.0), 2),
    "one_way_brokers": ((0.5, 10.0), 2),
    "cut_clients": ((0.5, 5.0), 1),
    "one_way_clients": ((0.5, 5.0), 1),
    "stop_broker": ((0.0, 5.0), 1),
    "hostile_frames": ((1.0, 8.0), 2),
}
"""By kind of fault: the range of the duration in seconds, and the weight."""
SIDE_KINDS = {
    "kill_controller": ((0.0, 6.0), 3),
    "kill_controllers": ((0.0, 4.0), 1),
    "pause_controller": (BEYOND_SESSION_S, 2),
    "controller_session": (BEYOND_SESSION_S, 1),
    "restart_zookeeper": ((0.0, 2.0), 2),
    "reset_all": ((0.0, 0.1), 2),
    "delay": ((1.0, 5.0), 1),
    "stuck_producers": ((10.0, 16.0), 2),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """One fault: its kind, the processes it affects, its duration, the pause before it, and its random seed."""

    kind: str
    target: str
    other: str
    lasts_s: float
    pause_s: float
    seed: int


def _plan(rng: random.Random, kinds: dict[str, tuple[tuple[float, float], int]], pause_s: float) -> Plan:
    kind = rng.choices(list(kinds), [weight for _, weight in kinds.values()])[0]
    names = CONTROLLERS if "controller" in kind else BROKERS
    target, other = rng.sample(names, 2)
    return Plan(kind, target, other, rng.uniform(*kinds[kind][0]), pause_s, rng.getrandbits(32))


def mixed_schedule(seed: int) -> Iterator[tuple[Plan, ...]]:
    """An endless schedule of one or two faults at a time: one of ``BROKER_KINDS``, one of ``SIDE_KINDS``, or both."""
    rng = random.Random(seed)
    while True:
        pause_s, choice = rng.uniform(0.5, 4.0), rng.random()
        if choice < 0.55:
            yield (_plan(rng, BROKER_KINDS, pause_s),)
        elif choice < 0.75:
            yield (_plan(rng, SIDE_KINDS, pause_s),)
        else:
            yield _plan(rng, BROKER_KINDS, pause_s), _plan(rng, SIDE_KINDS, pause_s)


def kill_schedule(seed: int) -> Iterator[tuple[Plan, ...]]:
    """Every few seconds kill -9 a random process: in a quarter of the kills a controller, otherwise a broker."""
    rng = random.Random(seed)
    while True:
        names, kind = (CONTROLLERS, "kill_controller") if rng.random() < 0.25 else (BROKERS, "kill_broker")
        target, other = rng.sample(names, 2)
        yield (Plan(kind, target, other, rng.uniform(0.0, 1.0), rng.uniform(2.0, 5.0), rng.getrandbits(32)),)


def beyond_schedule(seed: int) -> Iterator[tuple[Plan, ...]]:
    """A single fault that the promise does not cover: every broker loses its unsynced bytes.

    A cluster survives this only if it syncs before it acknowledges.
    """
    yield (Plan("power_cut", "all brokers", "", 0.5, 8.0, seed),)


class Faults:
    """Causes and undoes the faults of a schedule. Every method returns after its fault is undone."""

    def __init__(
        self,
        cluster: SoakCluster,
        recorder: Recorder,
        observer: Observer,
        topics: list[str],
        created_again: Callable[[], int] = lambda: 0,
    ) -> None:
        self._cluster, self._recorder, self._observer, self._topics = cluster, recorder, observer, topics
        self._created_again = created_again
        """The number of partitions so far that were created with the number of a removed one."""
        self.excused: set[str] = set()
        """Processes whose end is expected now."""

    async def run(self, plans: Iterator[tuple[Plan, ...]], *, wait_for_isr: bool) -> None:
        """Cause the faults of the schedule, until cancelled or the schedule ends."""
        for together in plans:
            await trio.sleep(together[0].pause_s)  # pause: the one before the fault
            with trio.CancelScope(shield=True):  # a fault that has begun is always undone
                async with trio.open_nursery() as nursery:
                    for plan in together:
                        nursery.start_soon(self._do, plan)
            if wait_for_isr:
                await self.whole()
            self._observer.deposed.clear()

    async def whole(self) -> None:
        """Wait until every partition has its whole ISR."""
        if lacking := await self._observer.wait_until_in_sync(self._topics, len(BROKERS), SYNC_LIMIT_S):
            self._recorder.problem(f"not every ISR was whole after {SYNC_LIMIT_S:g} s: {lacking}")

    async def _do(self, plan: Plan) -> None:
        method: Callable[[Plan], Awaitable[None]] = getattr(self, f"_{plan.kind}")
        self._recorder.fault(plan.kind, f"{plan.target} for {plan.lasts_s:.1f} s")
        await method(plan)
        self._recorder.fault("mended", f"{plan.kind} of {plan.target}", count=False)

    # ------------------------------------------------------------ processes

    async def _down(self, name: str, lasts_s: float) -> None:
        await self._cluster.kill(name)
        await trio.sleep(lasts_s)  # pause: the fault itself
        self._cluster.start(name)

    async def _kill_broker(self, plan: Plan) -> None:
        await self._down(plan.target, plan.lasts_s)

    async def _kill_controller(self, plan: Plan) -> None:
        await self._down(plan.target, plan.lasts_s)

    async def _kill_controllers(self, plan: Plan) -> None:
        async with trio.open_nursery() as nursery:
            for name in CONTROLLERS:
                nursery.start_soon(self._down, name, plan.lasts_s)

    async def _restart_zookeeper(self, plan: Plan) -> None:
        await self._down(ZOOKEEPER, plan.lasts_s)

    async def _stop_broker(self, plan: Plan) -> None:
        if not await self._cluster.stop(plan.target):
            self._recorder.problem(f"{plan.target} did not stop on SIGTERM")
        await trio.sleep(plan.lasts_s)  # pause: the fault itself
        self._cluster.start(plan.target)

    async def _pause(self, name: str, lasts_s: float) -> None:
        node = self._cluster.nodes[name]
        self.excused.add(name)
        node.signal(signal.SIGSTOP)
        await trio.sleep(lasts_s)  # pause: the fault itself
        node.signal(signal.SIGCONT)
        await trio.sleep(1.0)  # pause: a watchdog that measured a long pause ends the process in this time
        self.excused.discard(name)

    async def _pause_broker(self, plan: Plan) -> None:
        self._observer.deposed.add(plan.target)
        await self._pause(plan.target, plan.lasts_s)

    async def _pause_broker_shortly(self, plan: Plan) -> None:
        await self._pause(plan.target, plan.lasts_s)

    async def _pause_controller(self, plan: Plan) -> None:
        await self._pause(plan.target, plan.lasts_s)

    # ------------------------------------------------------------ disks

    async def _torn_tails(self, plan: Plan) -> None:
        await self._cluster.kill(plan.target)
        rng = random.Random(plan.seed)
        torn = sum(disks.tear_tails(log_dir, rng) for log_dir in self._cluster.log_dirs(plan.target))
        self._recorder.fault("torn", f"{torn} bytes of {plan.target}", count=False)
        await trio.sleep(plan.lasts_s)  # pause: the fault itself
        self._cluster.start(plan.target)

    async def _power_cut(self, plan: Plan) -> None:
        for broker in BROKERS:
            await self._cluster.kill(broker)
        for number, broker in enumerate(BROKERS):
            for log_dir in self._cluster.log_dirs(broker):
                disks.tear_tails(log_dir, random.Random(plan.seed + number))
            self._cluster.start(broker)

    async def _disk_full(self, plan: Plan) -> None:
        """Fill a broker's disk. Other brokers lead meanwhile. Later the broker itself detects the free space."""
        pid = self._cluster.nodes[plan.target].child.pid
        with suppress(ProcessLookupError):
            limit = disks.fill_disk(pid, self._cluster.log_dirs(plan.target))
            await trio.sleep(plan.lasts_s)  # pause: the fault itself
            disks.empty_disk(pid, limit)

    async def _unreadable_log(self, plan: Plan) -> None:
        """A broker starts with a log that is unreadable, probably below the high watermark."""
        await self._cluster.kill(plan.target)
        hidden = disks.hide_a_log(self._cluster.log_dirs(plan.target), random.Random(plan.seed))
        await self._run_without(plan, hidden, "log.unreadable")

    async def _lost_directory(self, plan: Plan) -> None:
        """A broker starts without one of its log dirs (KIP-112)."""
        await self._cluster.kill(plan.target)
        lost = random.Random(plan.seed).choice(self._cluster.log_dirs(plan.target))
        disks.hide_log_dir(lost)
        await self._run_without(plan, lost, "log_dir.lost")

    async def _run_without(self, plan: Plan, hidden: Path | None, event: str) -> None:
        """Start the broker without ``hidden``. Some time after the broker logs the loss, restart it with ``hidden``."""
        size = self._cluster.log_size(plan.target)
        self._cluster.start(plan.target)
        if hidden is None:
            return
        self._recorder.fault("hidden", f"{hidden.parent.name}/{hidden.name} of {plan.target}", count=False)
        with trio.move_on_after(MISSED_LIMIT_S) as waiting:
            while event not in self._cluster.logged_since(plan.target, size):
                await trio.sleep(_CHECK_EVERY_S)  # polls: until the broker has logged the loss
        if waiting.cancelled_caught:
            self._recorder.problem(f"{plan.target} did not log {event} within {MISSED_LIMIT_S:g} s")
        await trio.sleep(plan.lasts_s)  # pause: the fault itself
        await self._cluster.kill(plan.target)
        disks.unhide(hidden)
        self._cluster.start(plan.target)

    # ------------------------------------------------------------ connections

    async def _cut(self, one: str, others: tuple[str, ...], lasts_s: float) -> None:
        network = self._cluster.network
        for other in others:
            network.cut(one, other)
        await trio.sleep(lasts_s)  # pause: the fault itself
        for other in others:
            network.heal(one, other)

    async def _stall(self, sender: str, receiver: str, lasts_s: float) -> None:
        self._cluster.network.stall(sender, receiver)
        await trio.sleep(lasts_s)  # pause: the fault itself
        self._cluster.network.heal(sender, receiver)

    async def _broker_session(self, plan: Plan) -> None:
        self._observer.deposed.add(plan.target)
        await self._cut(plan.target, (ZOOKEEPER,), plan.lasts_s)

    async def _controller_session(self, plan: Plan) -> None:
        await self._cut(plan.target, (ZOOKEEPER,), plan.lasts_s)

    async def _cut_brokers(self, plan: Plan) -> None:
        """Cut a broker from the other brokers and the controllers, but not from ZooKeeper and the clients."""
        others = tuple(name for name in (*BROKERS, *CONTROLLERS) if name != plan.target)
        await self._cut(plan.target, others, plan.lasts_s)

    async def _one_way_brokers(self, plan: Plan) -> None:
        await self._stall(plan.target, plan.other, plan.lasts_s)

    async def _cut_clients(self, plan: Plan) -> None:
        await self._cut(CLIENTS, (plan.target,), plan.lasts_s)

    async def _one_way_clients(self, plan: Plan) -> None:
        ends = (CLIENTS, plan.target) if plan.seed % 2 else (plan.target, CLIENTS)
        await self._stall(*ends, plan.lasts_s)

    async def _hostile_frames(self, plan: Plan) -> None:
        """Send frames of a hostile client to a broker. They name topics and groups of their own."""
        rng = random.Random(plan.seed)
        port = self._cluster.direct[int(plan.target.removeprefix("broker-"))]
        with trio.move_on_after(plan.lasts_s):
            while True:
                await send_frame(port, random_request(rng, HOSTILE_BYTES, HARMLESS_APIS)[1])

    async def _reset_all(self, plan: Plan) -> None:
        for broker in BROKERS:
            for other in (*BROKERS, *CONTROLLERS, CLIENTS):
                self._cluster.network.reset(broker, other)

    async def _delay(self, plan: Plan) -> None:
        pairs = [(CLIENTS, broker) for broker in BROKERS] + [(BROKERS[0], BROKERS[1]), (BROKERS[1], BROKERS[2])]
        rng = random.Random(plan.seed)
        for one, other in pairs:
            self._cluster.network.delay(one, other, rng.uniform(0.0, 0.1))
            self._cluster.network.delay(other, one, rng.uniform(0.0, 0.1))
        await trio.sleep(plan.lasts_s)  # pause: the fault itself
        for one, other in pairs:
            self._cluster.network.heal(one, other)

    async def _stuck_producers(self, plan: Plan) -> None:
        """Keep what producers sent until they have sent it again on other connections; then deliver the late copies.

        A copy may belong to a partition that was removed meanwhile. If a partition was created again, the copies are
        dropped: the new partition does not know the producer's earlier batches.
        """
        before = self._created_again()
        stuck = self._cluster.network.stick(WRITERS, plan.target)
        await trio.sleep(plan.lasts_s)  # pause: the fault itself
        deliver = self._created_again() == before
        count = self._cluster.network.release(stuck, deliver=deliver)
        what = "copies delivered" if deliver else "copies dropped"
        if count:
            self._recorder.fault(what, f"of {count} connections to {plan.target}")
