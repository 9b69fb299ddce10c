"""Simulates a cluster whose replicas move all the time, while copies of controllers' requests arrive late (KIP-570)."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import trio

from anabranch.broker.node import Node
from anabranch.client import NewTopic, Producer
from anabranch.client.admin.admin import Admin
from anabranch.client.errors import KafkaError
from anabranch.controller.senders import Senders
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.sim.faults import BROKERS, CONTROLLERS, Faults, partition_states, wait_until_whole
from tests.sim.recording import Recorder, log_end, replica_events, stored_values
from tests.sim.sim_cluster import BROKER_PORT, SimCluster
from tests.sim.topic_watch import TopicWatch
from tests.sim.workload import Load, Workload, insist

TOPIC = "t"
RECREATED = "churn"
LATEST_S = 25.0
"""The longest delay of a copy of a request."""
LOST_WITH_CONTROLLER = 0.08
"""The share of StopReplica requests that are not sent because the controller ends first."""
FAULTS = ("controller kill", "controller session", "session", "restart", "kill", "cut", "slow", "nothing", "nothing")
HEAL_LIMIT_S = 120.0
RECORDS = 150
"""The number of records of each producer."""
_KEYS = {"log_flush": "ack", "min_insync_replicas": 1, "replica_lag_time_max_ms": 4000, "request_timeout_ms": 4000}


@dataclass
class LateRequests:
    """Sends late copies of all LeaderAndIsr and StopReplica requests of controllers, on separate connections."""

    cluster: SimCluster
    nursery: trio.Nursery
    stop: trio.Event = field(default_factory=trio.Event)
    """Once it is set, no controller dies before it sends a StopReplica."""
    stops_lost: int = 0
    arrived: dict[str, int] = field(default_factory=dict)
    """By kind of request: the number of copies that got a response."""

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        original = Senders.send

        def send(senders: Senders, requests: dict[int, list[Any]]) -> int:
            return original(senders, self._seen(requests))

        patch.setattr(Senders, "send", send)

    def _seen(self, requests: dict[int, list[Any]]) -> dict[int, list[Any]]:
        rng, kept = self.cluster.rng, {broker: list(of_broker) for broker, of_broker in requests.items()}
        for broker in sorted(requests):
            for request in requests[broker]:
                if not isinstance(request, LeaderAndIsrRequest | StopReplicaRequest):
                    continue
                for _ in range(rng.choice((0, 1, 2))):
                    self.nursery.start_soon(self._again, broker, copy.deepcopy(request), rng.uniform(0, LATEST_S))
                lost = isinstance(request, StopReplicaRequest) and rng.random() < LOST_WITH_CONTROLLER
                if lost and not self.stop.is_set():
                    self.stops_lost += 1
                    kept[broker].remove(request)
                    self.nursery.start_soon(self._end_controller, request.controller_id)
        return kept

    async def _again(self, broker: int, request: Any, delay_s: float) -> None:
        await trio.sleep(delay_s)  # pause: it is late; virtual time
        with suppress(OSError, KafkaError):
            network = self.cluster.fabric.node("late")
            async with Channel.open(network, f"broker{broker}", BROKER_PORT, "late", timeout_s=5.0) as channel:
                await channel.request(request, timeout_s=5.0)
                kind = type(request).__name__
                self.arrived[kind] = self.arrived.get(kind, 0) + 1

    async def _end_controller(self, controller_id: int) -> None:
        name = f"controller{controller_id}"
        if name in self.cluster.running:
            await self.cluster.kill(name)
            await self.cluster.start_controller(controller_id)


@dataclass
class Moves:
    """Moves replicas between brokers, and creates and deletes a topic again and again, until ``stop`` is set."""

    cluster: SimCluster
    stop: trio.Event = field(default_factory=trio.Event)
    begun: int = 0
    lost: list[str] = field(default_factory=list)
    """Records of the recreated topic that were acknowledged but are not stored."""

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.cluster.run_client, "mover", self._move)
            nursery.start_soon(self.cluster.run_client, "churn", self._make_again)

    async def _move(self) -> None:
        rng = self.cluster.rng
        async with self._admin("mover") as admin:
            while not self.stop.is_set():
                await trio.sleep(rng.uniform(0.3, 3))  # pause: virtual time
                tp = TopicPartition(TOPIC, rng.randrange(2))
                replicas = rng.sample(BROKERS, rng.choice((1, 1, 2, 3)))
                with suppress(KafkaError):
                    results = await admin.alter_partition_reassignments({tp: replicas})
                    self.begun += results[tp] is None

    def _admin(self, name: str) -> Admin:
        servers, env = self.cluster.bootstrap_servers, self.cluster.client_env(name)
        return Admin(bootstrap_servers=servers, env=env, request_timeout_ms=5000)

    async def _make_again(self) -> None:
        cluster, number = self.cluster, 0
        while not self.stop.is_set():
            number += 1
            async with self._admin("churn") as admin:
                wanted = NewTopic(RECREATED, 1, cluster.rng.choice((1, 3)), {"min.insync.replicas": "1"})
                await insist(partial(admin.create_topics, [wanted]), ErrorCode.TOPIC_ALREADY_EXISTS)
                value = f"{RECREATED}:{number}"
                if await self._is_acknowledged(value):
                    await trio.sleep(cluster.rng.uniform(0, 12))  # pause: for late requests; virtual time
                    self._look_for(value)
                await insist(partial(admin.delete_topics, [RECREATED]), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                while f"{RECREATED}-0" in partition_states(cluster):
                    await trio.sleep(0.2)  # polls: the deletion continues after its response

    async def _is_acknowledged(self, value: str) -> bool:
        options = {"request_timeout_ms": 5000, "delivery_timeout_ms": 10_000, "max_block_ms": 10_000}
        servers, env = self.cluster.bootstrap_servers, self.cluster.client_env("churn")
        try:
            async with Producer(bootstrap_servers=servers, env=env, **options) as producer:  # type: ignore[arg-type]
                await producer.send_and_wait(RECREATED, value=value.encode())
        except KafkaError:
            return False
        return True

    def _look_for(self, value: str) -> None:
        """Check that the log of each in-sync replica has the record; brokers that are down have their disks."""
        state, _ = partition_states(self.cluster)[f"{RECREATED}-0"]
        for broker in sorted(state.isr):
            if value not in stored_values(self.cluster.disks[f"broker{broker}"], TopicPartition(RECREATED, 0)):
                self.lost.append(f"{value} on broker {broker}")


@dataclass
class Moved:
    """The result of a run."""

    violations: list[str]
    """The names of failed history checks, and ``stray``, ``successor lost``, ``unhealed``."""
    details: list[str]
    acknowledged: int
    moves: int
    stops_lost: int
    arrived: dict[str, int]


def move_around(seed: int) -> Moved:
    """Run the cluster. The same seed gives the same run. With even seeds, only controllers fail."""
    faults = FAULTS if seed % 2 else ("nothing",)
    with pytest.MonkeyPatch.context() as patch:
        return run_deterministic(seed, _run, seed, faults, patch)


async def _run(seed: int, faults: tuple[str, ...], patch: pytest.MonkeyPatch) -> Moved:
    nodes: dict[int, Node] = {}
    _note_nodes(patch, nodes)
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, seed)
            try:
                return await _move_around(cluster, nursery, faults, patch, nodes)
            finally:
                with trio.CancelScope(shield=True):
                    await cluster.end()
                nursery.cancel_scope.cancel()


def _note_nodes(patch: pytest.MonkeyPatch, nodes: dict[int, Node]) -> None:
    original: Callable[..., None] = Node.__init__

    def init(node: Node, *arguments: Any) -> None:
        original(node, *arguments)
        nodes[node.config.broker_id] = node

    patch.setattr(Node, "__init__", init)


async def _move_around(
    cluster: SimCluster,
    nursery: trio.Nursery,
    kinds: tuple[str, ...],
    patch: pytest.MonkeyPatch,
    nodes: dict[int, Node],
) -> Moved:
    recorder = Recorder(cluster)
    watch = TopicWatch(cluster, recorder, TOPIC)
    load = Load(topic=TOPIC, partitions=2, records=RECORDS, request_timeout_ms=5000)
    workload, moves = Workload(cluster, recorder, load, watch.tps), Moves(cluster)
    late = LateRequests(cluster, nursery)
    for controller_id in CONTROLLERS:
        await cluster.start_controller(controller_id)

    async def start_broker(broker_id: int) -> None:
        await cluster.start_broker(broker_id, **_KEYS)

    for broker_id in BROKERS:
        await start_broker(broker_id)
    await workload.create_topic(2, 1)
    late.watch(patch)
    trouble = Faults(cluster, recorder, "ack", start_broker, load.producers, kinds)
    async with trio.open_nursery() as background:
        background.start_soon(moves.run)
        background.start_soon(trouble.run)
        await workload.produce_all()
        for of in (moves, trouble, late):
            of.stop.set()
    await trio.sleep(LATEST_S + 10)  # pause: until all late requests have arrived; virtual time
    healed = await _is_healed(cluster)
    found = _replicas_at_the_end(cluster, recorder, watch)
    violations = check_history(recorder.events)
    strays = [f"{key} on broker {broker}" for broker, key in _hosted(nodes) if (broker, str(key)) not in found]
    names = {violation.check for violation in violations}
    names |= {"stray"} if strays else set()
    names |= {"successor lost"} if moves.lost else set()
    names |= set() if healed else {"unhealed"}
    details = [*map(str, violations), *strays, *moves.lost]
    return Moved(sorted(names), details, workload.acknowledged, moves.begun, late.stops_lost, late.arrived)


async def _is_healed(cluster: SimCluster) -> bool:
    """Wait until all moves are complete and all replicas in sync, with equal logs. False if that takes too long."""
    if not await wait_until_whole(cluster, HEAL_LIMIT_S):
        return False
    with trio.move_on_after(HEAL_LIMIT_S):
        while True:
            ends = {
                name: {log_end(cluster.disks[f"broker{broker}"], _parsed(name)) for broker in replicas}
                for name, (_, replicas) in partition_states(cluster).items()
                if not name.startswith(RECREATED)
            }
            if ends and all(len(of_one) == 1 for of_one in ends.values()):
                return True
            await trio.sleep(0.5)  # polls: virtual time
    return False


def _replicas_at_the_end(cluster: SimCluster, recorder: Recorder, watch: TopicWatch) -> set[tuple[int, str]]:
    """Record the logs of all in-sync replicas. Returns the replicas that should exist."""
    assigned = set()
    for name, (state, replicas) in partition_states(cluster).items():
        assigned |= {(broker, name) for broker in replicas}
        if name.startswith(RECREATED):
            continue
        tp = _parsed(name)
        end = max(log_end(cluster.disks[f"broker{broker}"], tp) for broker in state.isr)
        for broker in sorted(state.isr):
            disk = cluster.disks[f"broker{broker}"]
            for event in replica_events(disk, broker, tp, watch.incarnation(tp), end):
                recorder.add(event)
    return assigned


def _parsed(name: str) -> TopicPartition:
    topic, _, index = name.rpartition("-")
    return TopicPartition(topic, int(index))


def _hosted(nodes: dict[int, Node]) -> list[tuple[int, TopicPartition]]:
    """The partitions that each broker leads or follows."""
    return [(broker, partition.key) for broker, node in sorted(nodes.items()) for partition in node.replicas.all()]
