"""A whole cluster in one trio loop: controllers, brokers and clients on a simulated network, disks and ZooKeeper.

Use ``sim.scheduler.run_deterministic`` for a run. All randomness follows from the seed, so a run is repeatable.
"""

from __future__ import annotations

import dataclasses
import hashlib
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.process import run as run_broker
from anabranch.controller.config import ControllerConfig
from anabranch.controller.process import run as run_controller
from anabranch.runtime.env import Env, SessionState
from anabranch.zk_schemas import paths
from sim.clock import SimClock
from sim.network import SimFabric
from sim.scheduler import SimTasks
from sim.storage import SimDisk, SimStorage
from sim.zk import FakeSession, FakeZk

BROKER_PORT = 9092
CONTROLLER_PORT = 9090
SESSION_TIMEOUT_MS = 6000
START_LIMIT_S = 120.0


class SimProcess:
    """A running controller or broker."""

    def __init__(self, name: str, config: Any, session: FakeSession, storage: SimStorage | None = None) -> None:
        self.name = name
        self.config = config
        self.session = session
        self.storage = storage
        self.dead = False
        self.tasks = SimTasks()
        self.scope = trio.CancelScope()
        self.ready = trio.Event()
        self.ended = trio.Event()


class SimCluster:
    """The cluster. Its machines are ``controller1000``, ``broker1`` and so on. A client's machine may have any name."""

    def __init__(self, nursery: trio.Nursery, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = SimClock()
        self.zk = FakeZk(delay_s=partial(self.rng.uniform, 0, 0.003))
        self.fabric = SimFabric(self.rng, delay_s=partial(self.rng.uniform, 0, 0.005), split_probability=0.2)
        self.disks: dict[str, SimDisk] = {}
        self.running: dict[str, SimProcess] = {}
        self.clients: dict[str, SimTasks] = {}
        self._nursery = nursery
        self._trace = hashlib.sha256()

    # ------------------------------------------------------------ trace

    def happened(self, *what: object) -> None:
        """Add an event with its virtual time to the trace."""
        self._trace.update(repr((trio.current_time(), *what)).encode())

    def trace(self) -> str:
        """A hash of all events so far and of every byte on the disks."""
        whole = self._trace.copy()
        for name, disk in sorted(self.disks.items()):
            for path in sorted(disk.files):
                whole.update(f"{name}{path}".encode())
                whole.update(disk.files[path].content)
        return whole.hexdigest()

    # ------------------------------------------------------------ processes

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{name}:{BROKER_PORT}" for name in sorted(self.disks))

    def client_env(self, name: str) -> Env:
        """The environment of a client on a machine of its own."""
        return Env(self.clock, self.fabric.node(name), random.Random(self.rng.getrandbits(64)))

    async def run_client(self, name: str, async_fn: Callable[..., Awaitable[Any]], *arguments: Any) -> None:
        """Run ``async_fn`` as a process of its own, which ``pause`` can stop."""
        self.clients[name] = SimTasks()
        try:
            await self.clients[name].run(async_fn, *arguments)
        finally:
            del self.clients[name]

    async def start_controller(self, controller_id: int, **keys: object) -> None:
        """Start a controller; returns once its listener is bound. ``keys`` of the config have underscores for dots."""
        name = f"controller{controller_id}"
        config = ControllerConfig.parse(
            {
                "controller.id": controller_id,
                "controller.listener": f"PLAINTEXT://{name}:{CONTROLLER_PORT}",
                "zookeeper.connect": "simulated",
                **{key.replace("_", "."): value for key, value in keys.items()},
            }
        )
        process = SimProcess(name, config, self.zk.session(SESSION_TIMEOUT_MS))
        env = Env(
            self.clock,
            self.fabric.node(name),
            random.Random(self.rng.getrandbits(64)),
            zk=process.session,
            propagate_bugs=True,
        )
        await self._start(process, run_controller, config, env)

    async def start_broker(self, broker_id: int, **keys: object) -> None:
        """Start a broker, on the disk of a previous broker with this id; returns once the broker is registered."""
        name = f"broker{broker_id}"
        given = {
            "broker.id": broker_id,
            "zookeeper.connect": "simulated",
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "listeners": f"PLAINTEXT://{name}:{BROKER_PORT}",
            "log.dirs": "/logs",
            "log.flush": "ack",
            **{key.replace("_", "."): value for key, value in keys.items()},
        }
        config = BrokerConfig.from_given({key: str(value) for key, value in given.items()})
        if name not in self.disks:
            self.disks[name] = SimDisk(self.rng, clock=self.clock, sync_delay_s=partial(self.rng.uniform, 0, 0.01))
        storage = self.disks[name].mount()
        process = SimProcess(name, config, self.zk.session(SESSION_TIMEOUT_MS), storage)
        rng = random.Random(self.rng.getrandbits(64))
        env = Env(self.clock, self.fabric.node(name), rng, storage, process.session, propagate_bugs=True)
        await self._start(process, run_broker, config, env)

    async def _start(self, process: SimProcess, run: Any, config: Any, env: Env) -> None:
        def on_ready(*_address: object) -> None:
            process.ready.set()

        async def live() -> None:
            try:
                with process.scope:
                    await process.tasks.run(partial(run, config, env, on_ready=on_ready))
            except Exception:
                if not process.dead:
                    raise
            finally:
                process.ended.set()

        assert process.name not in self.running
        self.running[process.name] = process
        self._nursery.start_soon(live)
        with trio.fail_after(START_LIMIT_S):
            await process.ready.wait()
        self.happened("ready", process.name)

    # ------------------------------------------------------------ ends and pauses of processes

    async def crash(self, name: str, *, silent: bool = False) -> None:
        """The machine loses its power: unsynced bytes are lost, and its session expires by its timeout.

        With ``silent`` its peers get no notice: their connections are silent until the machine has power again.
        """
        process = self.running.pop(name)
        self.happened("crash", name)
        if process.storage is not None:
            self.disks[name].crash(process.storage)
        if silent:
            self.fabric.power_off(name)
        else:
            self.fabric.crash(name)
        await self._bury(process)

    async def kill(self, name: str) -> None:
        """The process ends as by SIGKILL: its page cache survives, and its session expires by its timeout."""
        process = self.running.pop(name)
        self.happened("kill", name)
        if process.storage is not None:
            self.disks[name].kill(process.storage)
        self.fabric.kill(name)
        await self._bury(process)

    async def _bury(self, process: SimProcess) -> None:
        """End a process whose storage and network are fenced, so that its last actions have no effect."""
        process.dead = True
        if process.storage is not None:
            values = dataclasses.replace(process.config.values, controlled_shutdown_enable=False)
            object.__setattr__(process.config, "values", values)
        process.session.crash()
        process.tasks.resume()
        process.scope.cancel()
        await process.ended.wait()

    async def end(self) -> None:
        """Kill all processes, at the end of a run."""
        for name in sorted(self.running):
            await self.kill(name)

    async def stop(self, name: str) -> None:
        """Request the process to end, as by SIGTERM, and wait for its end."""
        process = self.running[name]
        self.happened("stop", name)
        process.scope.cancel()
        await process.ended.wait()
        del self.running[name]
        process.session.close()
        self.fabric.kill(name)

    def pause(self, name: str) -> None:
        """Stop a process or a client, as by SIGSTOP; its session's timeout still runs."""
        self.happened("pause", name)
        self._tasks(name).stop()
        if name in self.running:
            self.running[name].session.freeze()

    def resume(self, name: str) -> None:
        """Continue a paused process, unless it has ended meanwhile."""
        self.happened("resume", name)
        with suppress(KeyError):
            self._tasks(name).resume()
        if name in self.running:
            self.running[name].session.thaw()

    def _tasks(self, name: str) -> SimTasks:
        return self.running[name].tasks if name in self.running else self.clients[name]

    # ------------------------------------------------------------ ZooKeeper

    def expire(self, name: str) -> None:
        """Expire a process's ZooKeeper session; the process gets a new session."""
        self.happened("expire", name)
        self.running[name].session.expire()

    def reconnect(self, name: str) -> None:
        """Reconnect a process that has lost its connection to ZooKeeper."""
        process = self.running.get(name)
        if process is not None and process.session.state is SessionState.SUSPENDED:
            process.session.reconnect()

    async def active_controller(self) -> str:
        """Wait for an active controller, and return its machine."""
        while True:
            for name in sorted(self.running):
                process = self.running[name]
                found = self.zk.tree.find(paths.CONTROLLER) if process.storage is None else None
                if found is not None and found.ephemeral_owner == process.session.session_id:
                    return name
            await trio.sleep(0.1)  # pause: virtual time
