"""Runs short scenarios on a simulated cluster. Each scenario is a counterexample of the resize model without one rule.

A scenario has a producer that sends records by a given layout, and a group that reads all records at the end. The
history checks decide whether the scenario passes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import trio

from anabranch.client.admin.admin import Admin, NewTopic
from anabranch.client.admin.types import WithheldPartition
from anabranch.client.errors import KafkaError
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from sim.scheduler import run_deterministic
from tests.history.checks import check_history
from tests.history.events import Acked, Drained, LayoutAsked, NotWritten, Sent
from tests.sim.faults import BROKERS, CONTROLLERS, wait_until_whole
from tests.sim.members import GROUP, Group, GroupLoad
from tests.sim.recording import Recorder, log_end, now_ms, replica_events, stored_values
from tests.sim.sim_cluster import BROKER_PORT, SimCluster
from tests.sim.topic_watch import TopicWatch

TOPIC = "t"
LIMIT_S = 60.0
PRODUCER_ID = 9000
_PRODUCE_VERSION = 9
_CREATE_VERSION = 3
_ANSWER_LIMIT_S = 2.0
_ASK_LIMIT_S = 5.0
_NO_LEADER = "no leader"
_NOT_WRITTEN = (_NO_LEADER, ErrorCode.INVALID_PARTITION_METADATA.name, ErrorCode.NOT_LEADER_OR_FOLLOWER.name)
"""Results of an attempt after which the record is certainly not in the log."""
_BROKER_KEYS = {
    "min_insync_replicas": 1,
    "offsets_topic_num_partitions": 1,
    "offsets_topic_replication_factor": 3,
    "group_initial_rebalance_delay_ms": 100,
    "replica_lag_time_max_ms": 60_000,
}


class Scene:
    """The environment of a scenario. When the scenario begins, all servers run and the topic exists."""

    def __init__(self, cluster: SimCluster, nursery: trio.Nursery) -> None:
        self.cluster = cluster
        self._nursery = nursery
        self.recorder = Recorder(cluster)
        self.watch = TopicWatch(cluster, self.recorder, TOPIC)
        self._group = Group(cluster, self.recorder, TOPIC, GroupLoad(ordered=True))
        self._reads = False
        self._sequences: dict[TopicPartition, int] = {}
        self._epochs: dict[TopicPartition, int] = {}
        """The producer epochs: a record whose fate is unknown is the last one of its epoch (KIP-360)."""
        self._count = 0
        self.broker_keys: dict[str, Any] = dict(_BROKER_KEYS)
        """The configuration of every broker that is started later."""
        self._wanted = 0
        """The last accepted partition count; 0 when no count is expected."""

    async def start(self, partitions: int, replication_factor: int = 3) -> None:
        for controller in CONTROLLERS:
            await self.cluster.start_controller(controller)
        if replication_factor > 1:
            self.broker_keys["offsets_topic_replication_factor"] = replication_factor
        for broker in BROKERS:
            await self.restart(f"broker{broker}")
        async with self._admin() as admin:
            configs = {"delete.records.when.drained": "true"}
            await admin.create_topics([NewTopic(TOPIC, partitions, replication_factor, configs)])
        await self.until(lambda: len(self.watch.tps()) == partitions)

    def _admin(self) -> Admin:
        return Admin(
            bootstrap_servers=self.cluster.bootstrap_servers,
            env=self.cluster.client_env("admin"),
            request_timeout_ms=3000,
            default_api_timeout_ms=5000,
        )

    async def until(self, condition: Callable[[], bool], limit_s: float = LIMIT_S, interval_s: float = 0.05) -> bool:
        """Wait until the condition holds; False when that takes too long."""
        with trio.move_on_after(limit_s):
            while not condition():
                await trio.sleep(interval_s)  # polls: virtual time
            return True
        return False

    # ------------------------------------------------------------ the topic

    async def ask_for(self, count: int) -> str:
        """Request a partition count, without waiting for the resize. Returns the refusal; "" when it was accepted.

        The request goes to a broker whose requests the controllers answer. A broker that is cut off would deliver the
        request again when the cut heals. Then the last count would depend on the schedule.
        """
        self._wanted = 0
        refusal = "no response"
        with trio.move_on_after(_ASK_LIMIT_S):
            while True:
                refusal, is_final = await self._ask_once(count)
                if is_final:
                    break
                await trio.sleep(0.1)  # polls: virtual time
        return refusal

    async def _ask_once(self, count: int) -> tuple[str, bool]:
        """Send one CreatePartitions request. Returns the refusal, and whether another request cannot help."""
        running = [machine for machine in self.cluster.running if machine.startswith("broker")]
        reached = [machine for machine in running if not self._is_cut_off(machine)]
        wanted = CreatePartitionsTopic(name=TOPIC, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=0, validate_only=False)
        node = self.cluster.fabric.node("admin")
        try:
            async with Channel.open(node, min(reached), BROKER_PORT, "admin", timeout_s=1.0) as channel:
                answer = await channel.request(request, version=_CREATE_VERSION, timeout_s=_ANSWER_LIMIT_S)
        except (OSError, KafkaError, ValueError) as failure:
            return f"{failure}", False
        code = ErrorCode.of(answer.results[0].error_code)
        if code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT):
            return "", True
        return f"{code.name}: {answer.results[0].error_message}", code != ErrorCode.NOT_CONTROLLER

    def _is_cut_off(self, machine: str) -> bool:
        return any(self.cluster.fabric.is_cut(f"controller{controller}", machine) for controller in CONTROLLERS)

    def expect(self, count: int) -> None:
        """Expect this accepted count at the end of the run."""
        self._wanted = count

    async def ask_a_new_controller_for(self, count: int) -> None:
        """Request a count while a new controller takes over. A broker drops a request whose client has gone."""
        for _ in range(10):
            if await self.ask_for(count) == "":
                break
        self._wanted = count

    async def configure(self, **configs: str) -> None:
        """Set keys of the topic."""
        async with self._admin() as admin:
            await admin.incremental_alter_configs(
                topics={TOPIC: {key.replace("_", "."): value for key, value in configs.items()}}
            )

    async def withheld(self) -> dict[int, WithheldPartition]:
        """What is withheld from stock consumers, from the leaders' DescribeWithheld responses."""
        async with self._admin() as admin:
            return await admin.withheld_partitions((await admin.describe_topics([TOPIC]))[TOPIC])

    async def resize(self, count: int) -> None:
        """Request a count, and wait until the resize is complete except for the draining."""
        await self.ask_for(count)
        layout = self.layout
        assert layout.undeleted_partition_count == count, f"{count} was requested, and the layout is {layout}"
        self._wanted = count
        assert await self.until(lambda: all(self.has_layout(p) for p in range(count))), self.watch.unfinished()

    def state(self, partition: int) -> PartitionState:
        state = self.watch.state(partition)
        assert state is not None
        return state

    @property
    def znode(self) -> TopicZnode:
        znode = self.watch.znode()
        assert znode is not None
        return znode

    @property
    def layout(self) -> PartitionLayout:
        return PartitionLayout(self.znode.undeleted_partition_count, self.znode.layout_version)

    def has_layout(self, partition: int) -> bool:
        """Whether a partition has a leader and the topic's layout in ZooKeeper."""
        state = self.watch.state(partition)
        return state is not None and state.leader >= 0 and state.layout == self.layout

    def leader(self, partition: int) -> str:
        found = self.leader_or_none(partition)
        assert found
        return found

    def leader_or_none(self, partition: int) -> str:
        """The leader of a partition; "" while there is none."""
        state = self.watch.state(partition)
        return f"broker{state.leader}" if state is not None and state.leader >= 0 else ""

    def in_sync(self, partition: int) -> list[str]:
        state = self.watch.state(partition)
        return [] if state is None else [f"broker{broker}" for broker in sorted(state.isr)]

    async def restart(self, broker: str) -> None:
        """Start a broker, also after a kill."""
        await self.cluster.start_broker(int(broker.removeprefix("broker")), **self.broker_keys)

    async def elect_preferred(self, partition: int) -> None:
        """Elect the first replica. The request is repeated, because it may go to a broker without a controller."""
        first = f"broker{self.znode.partitions[partition][0]}"
        with trio.fail_after(LIMIT_S):
            while self.leader(partition) != first:
                with suppress(KafkaError):
                    async with self._admin() as admin:
                        await admin.elect_leaders()

    def cut_from_controllers(self, machine: str) -> None:
        """Cut a machine off from the controllers' requests. The machine continues to serve clients."""
        for controller in CONTROLLERS:
            self.cluster.fabric.cut(f"controller{controller}", machine)

    # ------------------------------------------------------------ records

    def key(self, partition: int, undeleted: int, *, of: int = -1, before: int = -1) -> str:
        """Find a key that is in ``partition`` at the count ``undeleted``, and in ``of`` at the count ``before``."""
        initial = self.initial

        def fits(key: str) -> bool:
            hashed = positive_hash(key.encode())
            was = before < 0 or place(hashed, initial, before) == of
            return was and place(hashed, initial, undeleted) == partition

        return next(key for number in range(10_000) if fits(key := f"key-{number}"))

    @property
    def initial(self) -> int:
        return self.znode.initial_partition_count

    def sends(self, key: str) -> str:
        """Record that the key's next record is sent, before it is written. Returns its value."""
        self._count += 1
        value = f"scenario:{self._count}"
        self.recorder.add(Sent(now_ms(), "scenario", TOPIC, key, value))
        return value

    async def produce(
        self,
        key: str,
        layout: PartitionLayout,
        *,
        acks: int = -1,
        broker: str = "",
        limit_s: float = 10.0,
        insist: bool = False,
        value: str = "",
    ) -> tuple[str, int]:
        """Write the key's next record by ``layout``; returns the last error's name, "" for none, and the offset.

        Errors are retried until ``limit_s``. A refusal for the layout is retried only with ``insist``: then the record
        is written as soon as the leader accepts it. ``value`` was returned by ``sends`` before.
        """
        tp = TopicPartition(TOPIC, place(positive_hash(key.encode()), self.initial, layout[0]))
        value = value or self.sends(key)
        sequence = self._sequences.get(tp, 0)
        error, offset, is_known = "no response", -1, True
        with trio.move_on_after(limit_s):
            while True:
                before, is_known = is_known, False
                error, offset = await self.ask(tp, layout, key, value, sequence, acks, broker)
                is_known = before and error in _NOT_WRITTEN
                if error == "" or (error == ErrorCode.INVALID_PARTITION_METADATA.name and not insist):
                    break
                await trio.sleep(0.001 if insist else 0.1)  # polls: virtual time
        self.recorder.add(LayoutAsked(now_ms(), tp, *layout, error or ErrorCode.NONE.name, value))
        if error == "":
            self._sequences[tp] = sequence + 1
            if acks == -1:
                self.recorder.add(Acked(now_ms(), "scenario", tp, offset, value))
        else:
            self.recorder.add(NotWritten(now_ms(), "scenario", value, "unknown", error))
            if not is_known:
                self._epochs[tp], self._sequences[tp] = self._epochs.get(tp, 0) + 1, 0
        return error, offset

    async def ask(
        self,
        tp: TopicPartition,
        layout: PartitionLayout,
        key: str,
        value: str,
        sequence: int,
        acks: int = -1,
        broker: str = "",
    ) -> tuple[str, int]:
        """Send one Produce request; returns the error's name, "" for none, and the offset."""
        server = broker or self.leader_or_none(tp.partition)
        if not server:
            return _NO_LEADER, -1
        records = [(key.encode(), value.encode(), [], self.cluster.clock.now_ms())]
        batch = build_batch(
            records, producer_id=PRODUCER_ID, producer_epoch=self._epochs.get(tp, 0), base_sequence=sequence
        )
        data = TopicProduceData(
            name=TOPIC,
            partition_data=[PartitionProduceData(index=tp.partition, records=batch)],
            undeleted_partition_count=layout.undeleted_partition_count,
            layout_version=layout.layout_version,
        )
        request = ProduceRequest(transactional_id=None, acks=acks, timeout_ms=1500, topic_data=[data])
        node = self.cluster.fabric.node("scenario")
        try:
            async with Channel.open(node, server, BROKER_PORT, "scenario", timeout_s=1.0) as channel:
                answer = await channel.request(request, version=_PRODUCE_VERSION, timeout_s=_ANSWER_LIMIT_S)
        except (OSError, KafkaError) as failure:
            return f"{failure}", -1
        (found,) = answer.responses[0].partition_responses
        return ("" if found.error_code == ErrorCode.NONE else ErrorCode(found.error_code).name), found.base_offset

    def has(self, broker: str, partition: int, value: str) -> bool:
        """Whether the record is in this broker's log, committed or not."""
        return value in stored_values(self.cluster.disks[broker], TopicPartition(TOPIC, partition))

    # ------------------------------------------------------------ the group

    def read(self) -> None:
        """Start the group, unless it runs already."""
        if not self._reads:
            self._reads = True
            self._nursery.start_soon(self._group.read)

    def is_delivered(self, value: str) -> bool:
        """Whether any member has polled this record."""
        return value in self._group.delivered

    def stop(self) -> None:
        """Stop the group."""
        self._group.stop.set()

    # ------------------------------------------------------------ the end

    async def finish(self) -> None:
        """End all faults, let a group read all records, and record the disks' contents."""
        self.cluster.fabric.heal_all()
        await wait_until_whole(self.cluster, LIMIT_S)
        self.read()
        # Both conditions must hold together, because a request whose response was lost may begin a resize only now.
        await self.until(lambda: not self.is_unfinished() and self._group.delivered.keys() >= self._stored(), LIMIT_S)
        for tp in self.watch.tps():
            incarnation = self.watch.incarnation(tp)
            end = max(log_end(self.cluster.disks[f"broker{broker}"], tp) for broker in BROKERS)
            self.recorder.add(Drained(now_ms(), GROUP, tp, end, incarnation))
            for broker in self.znode.partitions.get(tp.partition, BROKERS):
                for event in replica_events(self.cluster.disks[f"broker{broker}"], broker, tp, incarnation, end):
                    self.recorder.add(event)
        for event in self.watch.archives(GROUP):
            self.recorder.add(event)

    def is_unfinished(self) -> bool:
        """Whether a resize is not complete."""
        return bool(self.watch.unfinished()) or self._wanted not in (0, self.layout.undeleted_partition_count)

    def _stored(self) -> set[str]:
        disks = [self.cluster.disks[f"broker{broker}"] for broker in BROKERS]
        found = self.watch.archived_values()
        return found.union(*(stored_values(disk, tp) for disk in disks for tp in self.watch.tps()))


Scenario = Callable[[Scene], Awaitable[None]]


def stage(scenario: Scenario, partitions: int, seed: int = 0, *, replication_factor: int = 3) -> list[str]:
    """Run a scenario. Returns the failed checks, with ``unfinished`` if a resize did not complete."""
    return run_deterministic(seed, partial(_stage, scenario, partitions, seed, replication_factor))


async def _stage(scenario: Scenario, partitions: int, seed: int, replication_factor: int) -> list[str]:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        scene = Scene(cluster, nursery)
        try:
            await scene.start(partitions, replication_factor)
            await scenario(scene)
            await scene.finish()
        finally:
            with trio.CancelScope(shield=True):
                scene.stop()
                await cluster.end()
        found = dict.fromkeys(violation.check for violation in check_history(scene.recorder.events))
        return [*found, *(["unfinished"] if scene.is_unfinished() else [])]
