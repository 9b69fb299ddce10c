"""Runs a simulated cluster: start, load and faults, healing, and the history of the run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

import trio

from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY
from anabranch.protocol.types import TopicPartition
from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.history.events import Drained, Event
from tests.history.index import Violation
from tests.sim.faults import BROKERS, CONTROLLERS, Faults, missing_replicas, wait_until_whole
from tests.sim.members import GROUP, Group, GroupLoad
from tests.sim.recording import Recorder, log_end, now_ms, replica_events, stored_values
from tests.sim.resizing import Resizer, StaleProducer
from tests.sim.sim_cluster import SimCluster
from tests.sim.topic_watch import TopicWatch
from tests.sim.workload import Load, Workload

RESIZE_FAULTS: tuple[tuple[str, ...], ...] = (
    (),
    (),
    ("controller kill", "controller freeze", "controller session", "controller unknown write"),
    ("restart", "kill", "session", "controller kill"),
    ("freeze", "isolate", "cut", "slow", "freeze client"),
    ("nothing",),
)
"""The sets of faults for resizes. An empty set means all kinds; ``nothing`` is no fault."""
RUN_LIMIT_S = 3600.0
HEAL_LIMIT_S = 180.0


class NotHealedError(AssertionError):
    """The cluster did not recover after the faults."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The plan of a run. ``of`` draws a plan from a seed."""

    seed: int
    flush: str = "ack"
    replication_factor: int = 3
    min_insync_replicas: int = 2
    load: Load = field(default_factory=Load)
    faults: tuple[str, ...] = ()
    """The kinds of faults; empty for all kinds."""
    churn: bool = True
    resize: bool = False
    """Whether the topic grows and shrinks all the time."""
    expires: bool = False
    """Whether retention removes records, some of them unread."""

    @classmethod
    def resizing(cls, seed: int) -> Plan:
        """Draw a plan: a topic grows and shrinks, and a group that keeps the order of keys reads it."""
        rng = random.Random(f"resize {seed}")
        impatient = rng.random() < 0.2
        group = GroupLoad(
            members=("one", "two", "three")[: rng.randint(1, 3)],
            ordered=True,
            stateful=rng.random() < 0.5,
            crashes=rng.choice([0.0, 0.3, 0.7]),
            assignor=rng.choice(["", "range", "roundrobin", "cooperative-sticky"]),
        )
        load = Load(
            partitions=rng.randint(1, 3),
            records=150,
            keys=rng.choice([3, 8, 20]),
            delivery_timeout_ms=8_000 if impatient else 120_000,
            request_timeout_ms=3_000 if impatient else 10_000,
            topic_configs=((DRAIN_KEY, "true"),),
            group=group,
        )
        flush = rng.choice(["ack", "ack", "os"])
        plan = cls(seed=seed, flush=flush, load=load, churn=False, resize=True, faults=rng.choice(RESIZE_FAULTS))
        return plan._with_slow_users() if rng.random() < 0.4 else plan

    def _with_slow_users(self) -> Plan:
        """Return the plan with users that are often slow. Members keep their partitions: new ones must be loaded."""
        group = replace(
            self.load.group,
            slow=0.3,
            slow_flushes=0.05,
            members=("one", "two", "three"),
            assignor="cooperative-sticky",
        )
        return replace(self, load=replace(self.load, group=group))

    @classmethod
    def expiring(cls, seed: int) -> Plan:
        """Draw a plan like ``resizing``, with retention by time or size: some records expire unread, some unflushed."""
        rng = random.Random(f"expiring {seed}")
        plan = cls.resizing(seed)
        configs = {
            DRAIN_KEY: rng.choice(["true", "false"]),
            "retention.ms": rng.choice(["1000", "3000", "10000"]),
            "retention.bytes": rng.choice(["-1", "-1", "1000"]),
            "segment.bytes": rng.choice(["14", "300"]),
        }
        group = replace(plan.load.group, slow_flushes=rng.choice([0.0, 0.2, 0.5]))
        return replace(plan, expires=True, load=replace(plan.load, group=group, topic_configs=tuple(configs.items())))

    @classmethod
    def of(cls, seed: int) -> Plan:
        rng = random.Random(f"plan {seed}")
        impatient = rng.random() < 0.3
        load = Load(
            delivery_timeout_ms=8_000 if impatient else 120_000, request_timeout_ms=3_000 if impatient else 10_000
        )
        return cls(seed=seed, flush=rng.choice(["ack", "ack", "os"]), load=load, churn=rng.random() < 0.5)


@dataclass
class Run:
    """The result of a run."""

    trace: str
    events: list[Event]
    acknowledged: int
    resizes: int = 0

    def violations(self) -> list[Violation]:
        return check_history(self.events)


def run_plan(plan: Plan) -> Run:
    """Run a plan; the same plan gives the same result. Raises ``NotHealedError``."""
    return run_deterministic(plan.seed, _run_plan, plan)


async def _run_plan(plan: Plan) -> Run:
    with trio.fail_after(RUN_LIMIT_S):
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, plan.seed)
            try:
                return await _run_in(cluster, plan)
            finally:
                with trio.CancelScope(shield=True):
                    await cluster.end()


async def _run_in(cluster: SimCluster, plan: Plan) -> Run:
    recorder = Recorder(cluster)
    watch = TopicWatch(cluster, recorder, plan.load.topic)
    with watch.on_log_starts():
        return await _run_watched(cluster, plan, recorder, watch)


async def _run_watched(cluster: SimCluster, plan: Plan, recorder: Recorder, watch: TopicWatch) -> Run:
    workload = Workload(cluster, recorder, plan.load, watch.tps)
    group = Group(cluster, recorder, plan.load.topic, plan.load.group, plan.load.request_timeout_ms)

    async def start_broker(broker_id: int) -> None:
        await cluster.start_broker(broker_id, **broker_keys(plan))

    for controller_id in CONTROLLERS:
        await cluster.start_controller(controller_id)
    for broker_id in BROKERS:
        await start_broker(broker_id)
    await workload.create_topic(plan.replication_factor, plan.min_insync_replicas)
    clients = (*plan.load.producers, *plan.load.group.members)
    faults = Faults(cluster, recorder, plan.flush, start_broker, clients, plan.faults, plan.resize)
    resizer = Resizer(cluster, recorder, watch, keeps=plan.load.group.slow > 0, expires=plan.expires)
    group.on_slow_load = resizer.mark_few_soon
    async with trio.open_nursery() as readers:
        readers.start_soon(group.read)
        if resizer.keeps or resizer.expires:
            readers.start_soon(resizer.let_go, group.stop)
        async with trio.open_nursery() as background:
            background.start_soon(workload.look_at_watermarks)
            if plan.churn:
                background.start_soon(workload.make_and_delete_topics, plan.replication_factor)
            async with trio.open_nursery() as trouble:
                trouble.start_soon(faults.run)
                if plan.resize:
                    trouble.start_soon(resizer.run)
                    background.start_soon(StaleProducer(cluster, recorder, watch).run)
                await workload.produce_all()
                faults.stop.set()
                resizer.stop.set()
                group.hurries = True  # slow members that crash may not finish in time
            ends = await heal(cluster, workload, watch)
            background.cancel_scope.cancel()
        await drain(cluster, group, watch, ends)
        if plan.resize:
            ends = await carry_out(cluster, workload, watch)
        group.stop.set()
    for tp, end in ends.items():
        recorder.add(Drained(now_ms(), GROUP, tp, end, watch.incarnation(tp)))
        for broker_id in BROKERS:
            for event in replica_events(cluster.disks[f"broker{broker_id}"], broker_id, tp, watch.incarnation(tp), end):
                recorder.add(event)
    for event in watch.archives(GROUP):
        recorder.add(event)
    return Run(cluster.trace(), recorder.events, workload.acknowledged, resizer.accepted)


def broker_keys(plan: Plan) -> dict[str, object]:
    return {
        "log_flush": plan.flush,
        "min_insync_replicas": plan.min_insync_replicas,
        "offsets_topic_num_partitions": 3,
        "offsets_topic_replication_factor": plan.replication_factor,
        "group_initial_rebalance_delay_ms": 100,
        "log_retention_check_interval_ms": 300 if plan.expires else 300_000,
        "replica_lag_time_max_ms": 4000,
        "replica_socket_timeout_ms": 4000,
        "request_timeout_ms": 4000,
    }


async def heal(cluster: SimCluster, workload: Workload, watch: TopicWatch) -> dict[TopicPartition, int]:
    """Wait until every replica is in sync and complete; returns the partitions' ends. Raises ``NotHealedError``."""
    if not await wait_until_whole(cluster, HEAL_LIMIT_S):
        raise NotHealedError(f"not in sync: {missing_replicas(cluster)}; running: {sorted(cluster.running)}")
    leader_ends: dict[TopicPartition, int] = {}
    on_disk: dict[TopicPartition, list[int]] = {}
    with trio.move_on_after(HEAL_LIMIT_S):
        while True:
            leader_ends = {}
            for broker in BROKERS:
                with trio.move_on_after(5):
                    found = await workload.listed_ends(broker)
                    leader_ends.update((tp, offset) for tp, (offset, _epoch, _asked) in found.items())
            on_disk = {tp: [log_end(cluster.disks[f"broker{broker}"], tp) for broker in BROKERS] for tp in watch.tps()}
            if on_disk and all(set(ends) == {leader_ends.get(tp)} for tp, ends in on_disk.items()):
                return leader_ends
            await trio.sleep(0.5)  # polls: virtual time
    raise NotHealedError(f"the leaders have the ends {leader_ends}, the logs end at {on_disk}")


async def drain(cluster: SimCluster, group: Group, watch: TopicWatch, ends: dict[TopicPartition, int]) -> None:
    """Wait until the group has read all unexpired records. Raises ``NotHealedError``."""
    missing: set[str] = set()
    with trio.move_on_after(HEAL_LIMIT_S):
        while True:
            disks = [cluster.disks[f"broker{broker}"] for broker in BROKERS]
            missing = watch.archived_values().union(*(stored_values(disk, tp) for disk in disks for tp in ends))
            missing -= group.delivered.keys() | watch.expired_values
            if not missing:
                return
            await trio.sleep(0.5)  # polls: virtual time
    raise NotHealedError(f"the group was not delivered {sorted(missing)}; the partitions end at {ends}")


async def carry_out(cluster: SimCluster, workload: Workload, watch: TopicWatch) -> dict[TopicPartition, int]:
    """Wait until the last resize is complete; returns the partitions' ends. Raises ``NotHealedError``."""
    with trio.move_on_after(HEAL_LIMIT_S):
        while watch.unfinished():
            await trio.sleep(0.5)  # polls: virtual time
    if left := watch.unfinished():
        raise NotHealedError(f"a resize is not carried out: {left}")
    return await heal(cluster, workload, watch)
