"""The faults of a simulated cluster, drawn from the seed; at most two at the same time.

With three replicas and ``min.insync.replicas`` 2, a cluster must survive these faults without losing an acknowledged
record:

- ``log.flush=ack``: all faults, in any number and at the same time. Acknowledged records are on the disk of every
  member of the ISR, and only members of the ISR are elected.
- ``log.flush=os``: the same with one limit. A machine loses power only while every replica is in sync, and no other
  fault happens until every replica is in sync again. Acknowledged records are then in the page cache of the two other
  replicas, which are in the ISR. Without this limit, the machine that lost power could be the last member of the ISR,
  and be elected although it lost records.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import trio

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.history.events import Fault
from tests.sim.recording import Recorder, now_ms
from tests.sim.sim_cluster import SESSION_TIMEOUT_MS, SimCluster

BROKERS = (1, 2, 3)
CONTROLLERS = (1000, 1001)
MOST_AT_ONCE = 2
WHOLE_LIMIT_S = 60.0


@dataclass
class Faults:
    """Injects faults. ``run`` injects them until ``stop`` is set, and then ends all of them."""

    cluster: SimCluster
    recorder: Recorder
    flush: str
    start_broker: Callable[[int], Awaitable[None]]
    clients: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    """The kinds of faults; empty for all kinds."""
    partitions_come: bool = False
    """Whether replicas are created during the faults."""
    stop: trio.Event = field(default_factory=trio.Event)
    _troubled: dict[str, None] = field(default_factory=dict)
    """The machines that have a fault now."""

    async def run(self) -> None:
        rng = self.cluster.rng
        kinds = self.kinds or tuple(sorted(_FAULTS))
        async with trio.open_nursery() as nursery:
            while not self.stop.is_set():
                await self._pause(rng.uniform(0.2, 4))
                kind = rng.choice(kinds)
                if self.stop.is_set() or len(self._troubled) >= MOST_AT_ONCE:
                    continue
                if kind == "nothing":
                    continue
                if kind == "power" and self.flush == "os":
                    await self._power_alone()
                    continue
                machine = rng.choice([f"broker{broker}" for broker in BROKERS])
                if kind.startswith("controller"):
                    machine = await self.cluster.active_controller()
                if machine not in self._troubled:
                    self._troubled[machine] = None
                    nursery.start_soon(self._one, kind, machine)
        for broker in BROKERS:
            disk = self.cluster.disks[f"broker{broker}"]
            disk.write_errno = disk.sync_errno = None
        self.cluster.fabric.heal_all()

    async def _one(self, kind: str, machine: str) -> None:
        self._note(kind, machine)
        await _FAULTS[kind](self, machine)
        self._note(f"{kind} is over", machine)
        del self._troubled[machine]

    def _note(self, kind: str, what: str) -> None:
        self.recorder.add(Fault(now_ms(), kind, what))

    async def _pause(self, seconds: float) -> None:
        """Wait until the time has passed or ``stop`` is set."""
        with trio.move_on_after(seconds):
            await self.stop.wait()

    async def _restart(self, machine: str) -> None:
        if machine.startswith("broker"):
            await self.start_broker(int(machine.removeprefix("broker")))
        else:
            await self.cluster.start_controller(int(machine.removeprefix("controller")))

    async def _power_alone(self) -> None:
        """A power failure with ``log.flush=os``: every replica is in sync before it, and again before other faults."""
        while self._troubled:
            await trio.sleep(0.1)  # polls: the other faults are over
        machine = f"broker{self.cluster.rng.choice(BROKERS)}"
        if not await wait_until_whole(self.cluster, WHOLE_LIMIT_S):
            return
        self._troubled[machine] = None
        await self._one("power", machine)
        await wait_until_whole(self.cluster, WHOLE_LIMIT_S)

    # ------------------------------------------------------------ processes and machines

    async def power(self, machine: str) -> None:
        silent = self.cluster.rng.random() < 0.5
        await self.cluster.crash(machine, silent=silent)
        await self._pause(self.cluster.rng.uniform(0, 12))
        await self._restart(machine)

    async def kill(self, machine: str) -> None:
        await self.cluster.kill(machine)
        await self._pause(self.cluster.rng.uniform(0, 12))
        await self._restart(machine)

    async def restart(self, machine: str) -> None:
        await self.cluster.stop(machine)
        await self._pause(self.cluster.rng.uniform(0, 3))
        await self._restart(machine)

    async def freeze(self, machine: str) -> None:
        self.cluster.pause(machine)
        await self._pause(self.cluster.rng.uniform(0.1, 2.5) * SESSION_TIMEOUT_MS / 1000)
        self.cluster.resume(machine)

    async def freeze_client(self, machine: str) -> None:
        client = self.cluster.rng.choice(self.clients)
        if client in self.cluster.clients and not self.cluster.clients[client].stopped:
            self.cluster.pause(client)
            await self._pause(self.cluster.rng.uniform(0.1, 15))
            self.cluster.resume(client)

    # ------------------------------------------------------------ ZooKeeper

    async def session(self, machine: str) -> None:
        self.cluster.expire(machine)

    async def suspended(self, machine: str) -> None:
        self.cluster.running[machine].session.disconnect()
        await self._pause(self.cluster.rng.uniform(0, 1.5) * SESSION_TIMEOUT_MS / 1000)
        self.cluster.reconnect(machine)

    async def unknown_write(self, machine: str) -> None:
        session = self.cluster.running[machine].session
        if self.cluster.rng.random() < 0.5:
            session.lose_next_answer()
        else:
            session.lose_next_request()
        for _ in range(10):
            await self._pause(0.5)
            self.cluster.reconnect(machine)
        session.lose_nothing()
        self.cluster.reconnect(machine)

    async def zookeeper(self, machine: str) -> None:
        self.cluster.zk.stop()
        await self._pause(self.cluster.rng.uniform(0, 10))
        self.cluster.zk.start()

    # ------------------------------------------------------------ network

    def _other_machine(self, machine: str) -> str:
        others = [*(f"broker{broker}" for broker in BROKERS), *(f"controller{id}" for id in CONTROLLERS), *self.clients]
        return self.cluster.rng.choice([other for other in others if other != machine])

    async def cut(self, machine: str) -> None:
        """Cut the connection of any two machines, in one direction or both."""
        other, fabric = self._other_machine(machine), self.cluster.fabric
        ways = [(machine, other), (other, machine)]
        if self.cluster.rng.random() < 0.6:
            ways.pop(self.cluster.rng.randrange(2))
        for source, target in ways:
            self._note("cut", f"{source} to {target}")
            fabric.cut(source, target)
        await self._pause(self.cluster.rng.uniform(0, 15))
        for source, target in ways:
            fabric.heal(source, target)

    async def isolate(self, machine: str) -> None:
        """Cut a machine off from all other machines except ZooKeeper."""
        others = [*(f"broker{broker}" for broker in BROKERS), *(f"controller{id}" for id in CONTROLLERS), *self.clients]
        ways = [way for other in others if other != machine for way in ((machine, other), (other, machine))]
        for source, target in ways:
            self.cluster.fabric.cut(source, target)
        await self._pause(self.cluster.rng.uniform(0, 15))
        for source, target in ways:
            self.cluster.fabric.heal(source, target)

    async def reset(self, machine: str) -> None:
        self.cluster.fabric.reset(machine, self._other_machine(machine))

    async def refuse(self, machine: str) -> None:
        other = self._other_machine(machine)
        self.cluster.fabric.refuse(machine)
        self.cluster.fabric.reset(machine, other)
        await self._pause(self.cluster.rng.uniform(0, 5))
        self.cluster.fabric.accept(machine)

    async def slow(self, machine: str) -> None:
        other = self._other_machine(machine)
        self.cluster.fabric.slow_down(machine, other, self.cluster.rng.uniform(0, 2))
        await self._pause(self.cluster.rng.uniform(0, 10))
        self.cluster.fabric.slow_down(machine, other, 0)

    # ------------------------------------------------------------ disks

    async def disk_full(self, machine: str) -> None:
        """Fill the disk. A replica that could not be created counts as lost until the process is restarted."""
        disk = self.cluster.disks[machine]
        disk.write_errno = errno.ENOSPC
        await self._pause(self.cluster.rng.uniform(0, 5))
        disk.write_errno = None
        if self.partitions_come:
            await self.cluster.kill(machine)
            await self._restart(machine)

    async def sync_fails(self, machine: str) -> None:
        """Make syncs fail. A log with a failed sync is unusable until the process is restarted."""
        disk = self.cluster.disks[machine]
        disk.sync_errno = errno.EIO
        await self._pause(self.cluster.rng.uniform(0, 3))
        disk.sync_errno = None
        await self.cluster.kill(machine)
        await self._restart(machine)


_FAULTS: dict[str, Callable[[Faults, str], Awaitable[None]]] = {
    "power": Faults.power,
    "kill": Faults.kill,
    "restart": Faults.restart,
    "freeze": Faults.freeze,
    "freeze client": Faults.freeze_client,
    "session": Faults.session,
    "suspended": Faults.suspended,
    "unknown write": Faults.unknown_write,
    "zookeeper": Faults.zookeeper,
    "cut": Faults.cut,
    "isolate": Faults.isolate,
    "reset": Faults.reset,
    "refuse": Faults.refuse,
    "slow": Faults.slow,
    "disk full": Faults.disk_full,
    "sync fails": Faults.sync_fails,
    "controller kill": Faults.kill,
    "controller freeze": Faults.freeze,
    "controller session": Faults.session,
    "controller unknown write": Faults.unknown_write,
    "controller suspended": Faults.suspended,
}


# ---------------------------------------------------------------- the state of the cluster, as ZooKeeper has it


def partition_states(cluster: SimCluster) -> dict[str, tuple[PartitionState, list[int]]]:
    """``{partition: (its state, its replicas)}`` of all partitions with a state."""
    found = {}
    tree = cluster.zk.tree
    for topic in tree.children(paths.TOPICS):
        path = TopicZnode.path(topic)
        for index, replicas in TopicZnode.decode(path, tree.read(path).data).partitions.items():
            state = tree.find(PartitionState.path(topic, index))
            if state is not None:
                decoded = PartitionState.decode(PartitionState.path(topic, index), state.data)
                found[f"{topic}-{index}"] = (decoded, replicas)
    return found


def missing_replicas(cluster: SimCluster) -> dict[str, list[int]]:
    """The replicas that are not in sync. If a partition has no leader, all of its replicas count."""
    missing = {}
    for name, (state, replicas) in partition_states(cluster).items():
        out = [replica for replica in replicas if replica not in state.isr or state.leader < 0]
        if out and not name.startswith("churn"):
            missing[name] = out
    return missing


async def wait_until_whole(cluster: SimCluster, limit_s: float) -> bool:
    """Wait until every replica is in sync; False when that takes too long."""
    with trio.move_on_after(limit_s):
        while len(cluster.running) < len(BROKERS) + len(CONTROLLERS) or missing_replicas(cluster):
            await trio.sleep(0.2)  # polls: virtual time
        return True
    return False
