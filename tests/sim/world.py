"""One life of a simulated cluster: start, load and faults, healing, and the history of it all."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import trio

from protocol.types import TopicPartition
from runtime.sim_scheduler import run_deterministic
from tests.history.checks import check_history
from tests.history.events import Drained, Event
from tests.history.index import Violation
from tests.sim.faults import BROKERS, CONTROLLERS, Faults, missing_replicas, wait_until_whole
from tests.sim.recording import Recorder, log_end, now_ms, replica_events
from tests.sim.workload import GROUP, Load, Workload
from tests.sim_cluster import SimCluster

RUN_LIMIT_S = 3600.0
HEAL_LIMIT_S = 180.0


class NotHealedError(AssertionError):
    """The faults are over, and the cluster does not come back."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What one seed does; ``of`` draws it."""

    seed: int
    flush: str = "ack"
    replication_factor: int = 3
    min_insync_replicas: int = 2
    load: Load = field(default_factory=Load)
    faults: tuple[str, ...] = ()
    """Kinds; empty for all."""
    churn: bool = True

    @classmethod
    def of(cls, seed: int) -> Plan:
        rng = random.Random(f"plan {seed}")
        impatient = rng.random() < 0.3
        load = Load(
            delivery_timeout_ms=8_000 if impatient else 120_000, request_timeout_ms=3_000 if impatient else 10_000
        )
        return cls(seed=seed, flush=rng.choice(["ack", "ack", "os"]), load=load, churn=rng.random() < 0.5)


@dataclass
class Life:
    """What came of a run."""

    trace: str
    events: list[Event]
    acknowledged: int

    def violations(self) -> list[Violation]:
        return check_history(self.events)


def live(plan: Plan) -> Life:
    """The same plan gives the same life. Raises ``NotHealedError``."""
    return run_deterministic(plan.seed, _live, plan)


async def _live(plan: Plan) -> Life:
    with trio.fail_after(RUN_LIMIT_S):
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, plan.seed)
            try:
                return await _live_in(cluster, plan)
            finally:
                with trio.CancelScope(shield=True):
                    await cluster.end()


async def _live_in(cluster: SimCluster, plan: Plan) -> Life:
    recorder = Recorder(cluster)
    workload = Workload(cluster, recorder, plan.load)

    async def start_broker(broker_id: int) -> None:
        await cluster.start_broker(broker_id, **broker_keys(plan))

    for controller_id in CONTROLLERS:
        await cluster.start_controller(controller_id)
    for broker_id in BROKERS:
        await start_broker(broker_id)
    await workload.create_topic(plan.replication_factor, plan.min_insync_replicas)
    clients = (*plan.load.producers, *plan.load.members)
    faults = Faults(cluster, recorder, plan.flush, start_broker, clients, plan.faults)
    async with trio.open_nursery() as readers:
        readers.start_soon(workload.read)
        async with trio.open_nursery() as background:
            background.start_soon(workload.look_at_watermarks)
            if plan.churn:
                background.start_soon(workload.make_and_delete_topics, plan.replication_factor)
            async with trio.open_nursery() as trouble:
                trouble.start_soon(faults.run)
                await workload.produce_all()
                faults.stop.set()
            ends = await heal(cluster, workload)
            background.cancel_scope.cancel()
        await drain(workload, recorder, ends)
    for tp, end in ends.items():
        for broker_id in BROKERS:
            for event in replica_events(cluster.disks[f"broker{broker_id}"], broker_id, tp, end):
                recorder.add(event)
    return Life(cluster.trace(), recorder.events, workload.acknowledged)


def broker_keys(plan: Plan) -> dict[str, object]:
    return {
        "log_flush": plan.flush,
        "min_insync_replicas": plan.min_insync_replicas,
        "offsets_topic_num_partitions": 3,
        "offsets_topic_replication_factor": plan.replication_factor,
        "group_initial_rebalance_delay_ms": 100,
        "replica_lag_time_max_ms": 4000,
        "replica_socket_timeout_ms": 4000,
        "request_timeout_ms": 4000,
    }


async def heal(cluster: SimCluster, workload: Workload) -> dict[TopicPartition, int]:
    """Wait until every replica is in sync and has all; where the partitions end. Raises ``NotHealedError``."""
    if not await wait_until_whole(cluster, HEAL_LIMIT_S):
        raise NotHealedError(f"not in sync: {missing_replicas(cluster)}; running: {sorted(cluster.running)}")
    told: dict[TopicPartition, int] = {}
    on_disk: dict[TopicPartition, list[int]] = {}
    with trio.move_on_after(HEAL_LIMIT_S):
        while True:
            told = {}
            for broker in BROKERS:
                with trio.move_on_after(5):
                    found = await workload.listed_ends(broker)
                    told.update((tp, offset) for tp, (offset, _epoch, _asked) in found.items())
            on_disk = {
                tp: [log_end(cluster.disks[f"broker{broker}"], tp) for broker in BROKERS] for tp in workload.load.tps
            }
            if all(set(ends) == {told.get(tp)} for tp, ends in on_disk.items()):
                return told
            await trio.sleep(0.5)  # polls: virtual time
    raise NotHealedError(f"the leaders tell the ends {told}, the logs end at {on_disk}")


async def drain(workload: Workload, recorder: Recorder, ends: dict[TopicPartition, int]) -> None:
    """Have the group read everything. Raises ``NotHealedError``."""
    with trio.move_on_after(HEAL_LIMIT_S):
        while any(workload.read_up_to.get(tp, 0) < end for tp, end in ends.items()):
            await trio.sleep(0.2)  # polls: virtual time
        for tp, end in ends.items():
            recorder.add(Drained(now_ms(), GROUP, tp, end))
        workload.stop_reading.set()
        return
    raise NotHealedError(f"the group has read up to {workload.read_up_to}, the partitions end at {ends}")
