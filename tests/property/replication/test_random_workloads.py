"""Random workloads of three replicas: acknowledged records stay, and replicas agree below the high watermark.

A simple controller keeps the ISR in ZooKeeper, raises the leader epoch for each change, and elects only members of the
ISR. Responses to AlterPartition may be lost, and LeaderAndIsr may reach replicas late. Any broker's process may die. A
whole machine dies only while its replica is out of the ISR.
"""

from __future__ import annotations

import os
import random
from itertools import pairwise
from typing import NamedTuple

import pytest
import trio

from anabranch.broker.delayed_produce import AwaitedAppend
from anabranch.broker.replication.isr import PendingIsr
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.produce import PartitionProduceResponse
from anabranch.protocol.sentinels import NO_EPOCH
from tests.support.broker.replica_cluster import LAG_S, ReplicaCluster

REPLICAS = (1, 2, 3)


class Sent(NamedTuple):
    value: bytes
    offset: int
    awaited: AwaitedAppend


class RandomWorkload:
    """The replicas, and a controller with a state znode."""

    def __init__(self, seed: int) -> None:
        self.cluster = ReplicaCluster(min_insync_replicas=2, seed=seed)
        self.leader, self.epoch, self.isr = 1, 0, [1, 2, 3]
        self.down: dict[int, None] = {}
        self.delivered: dict[int, int] = {}
        """The leader epoch of the last LeaderAndIsr that each replica received."""
        self.sent: list[Sent] = []
        self.acknowledged: dict[int, bytes] = {}
        self.exposed = 0
        """The highest offset up to which a consumer could have read."""
        self.number = 0
        self.cluster.elect(1, 0, self.isr)
        self.delivered = dict.fromkeys(REPLICAS, 0)

    # ------------------------------------------------------------ events

    def produce(self, _: int) -> None:
        if self.delivered.get(self.leader) != self.epoch or self.leader in self.down:
            return
        self.number += 1
        value = b"%d" % self.number
        try:
            offset = self.cluster.append(self.leader, value, all_in_sync=True)
        except KafkaError:
            return
        partition = self.cluster[self.leader].partition
        awaited = AwaitedAppend(partition, offset + 1, PartitionProduceResponse(), all_in_sync=True)
        self.sent.append(Sent(value, offset, awaited))

    def fetch(self, which: int) -> None:
        follower = REPLICAS[which % 3]
        leader = self.cluster[follower].partition.leader_id
        if follower in self.down or leader in self.down or leader in (-1, follower):
            return
        self.cluster.fetch(follower, leader)

    def shrink(self, which: int) -> None:
        self.cluster.clock.seconds += LAG_S + 1
        self.cluster[REPLICAS[which % 3]].partition.review_isr()

    def alter_partition(self, which: int) -> None:
        """Let the controller handle a leader's proposed ISR; the response may be lost."""
        broker = REPLICAS[which % 3]
        partition = self.cluster[broker].partition
        pending = partition.pending_isr
        if pending is None or broker in self.down:
            return
        if not self._write_isr(broker, pending):
            return  # stale: the leader continues to wait for a LeaderAndIsr
        if which < 6:
            partition.isr_committed(self.isr, self.cluster.version)

    def _write_isr(self, broker: int, pending: PendingIsr) -> bool:
        if broker != self.leader or pending.leader_epoch != self.epoch:
            return False
        if list(pending.isr) == self.isr:
            return True  # this request was applied before, and its response was lost
        if pending.partition_epoch != self.cluster.version or any(replica in self.down for replica in pending.isr):
            return False
        epochs = self.cluster.broker_epochs
        if any(epoch not in (NO_EPOCH, epochs[replica]) for replica, epoch in zip(pending.isr, pending.broker_epochs)):
            self.cluster[broker].partition.isr_refused(pending)  # a member has restarted since its last fetch (KIP-903)
            return False
        self.isr = list(pending.isr)
        self.cluster.version += 1
        return True

    def elect(self, which: int) -> None:
        """Elect any live member of the ISR."""
        candidates = [replica for replica in self.isr if replica not in self.down]
        if candidates:
            self._new_epoch(candidates[which % len(candidates)], self.isr)

    def deliver(self, which: int) -> None:
        """Deliver the newest LeaderAndIsr to a replica."""
        self._deliver(REPLICAS[which % 3])

    async def kill(self, which: int) -> None:
        """Kill a process. If its replica is not in the ISR, sometimes the machine fails too."""
        broker = REPLICAS[which % 3]
        if self.down:
            return
        await self.cluster[broker].restart(power_failure=which >= 6 and broker not in self.isr)
        self.down[broker] = None
        self.cluster.live.pop(broker)
        self.delivered.pop(broker, None)
        left = [replica for replica in self.isr if replica != broker]
        if left:
            self._new_epoch(left[0] if self.leader == broker else self.leader, left)

    def come_back(self, _: int) -> None:
        for broker in list(self.down):
            del self.down[broker]
            self.cluster.live[broker] = None
            self.cluster.broker_epochs[broker] += 1
            if self.isr == [broker] or self.leader == broker:
                self._new_epoch(broker, self.isr)
            self._deliver(broker)

    # ------------------------------------------------------------ consequences

    def _new_epoch(self, leader: int, isr: list[int]) -> None:
        self.leader, self.epoch, self.isr = leader, self.epoch + 1, list(isr)
        self.cluster.version += 1
        self._deliver(leader)

    def _deliver(self, broker: int) -> None:
        if broker not in self.down and self.delivered.get(broker) != self.epoch:
            self.cluster.deliver(broker, self.leader, self.epoch, self.isr)
            self.delivered[broker] = self.epoch

    def look(self) -> None:
        """Collect acknowledgements, and compare the replicas below the high watermark."""
        for sent in self.sent:
            if sent.awaited.settle() and not sent.awaited.answer.error_code:
                self.acknowledged[sent.offset] = sent.value
        self.sent = [sent for sent in self.sent if not sent.awaited.settle()]
        leader = self.cluster[self.leader]
        if (
            self.leader not in self.down
            and leader.partition.is_leader
            and self.delivered.get(self.leader) == self.epoch
        ):
            self.exposed = max(self.exposed, leader.log.high_watermark)
            assert leader.log.log_end_offset >= self.exposed, "the leader lacks records that consumers have read"
            found = {offset: value for offset, _, value in leader.records()}
            for offset, value in self.acknowledged.items():
                assert found.get(offset) == value, f"offset {offset} was acknowledged"
        up = [self.cluster[broker] for broker in REPLICAS if broker not in self.down]
        for one, other in pairwise(up):
            both = min(one.log.high_watermark, other.log.high_watermark)
            assert one.records(both) == other.records(both)

    def heal(self) -> None:
        """Start all replicas again and let them fetch; at the end all have the same records."""
        self.come_back(0)
        for broker in REPLICAS:
            self._deliver(broker)
        followers = [broker for broker in REPLICAS if broker != self.leader]
        self.cluster.catch_up(self.leader, *followers)
        self.look()
        whole = self.cluster[self.leader].records()
        assert all(self.cluster[broker].records() == whole for broker in followers)


ACTIONS = (
    *("produce", "fetch", "fetch", "fetch") * 3,
    *("alter_partition", "deliver", "shrink", "elect", "kill", "come_back", "alter_partition", "deliver"),
)
SEEDS = int(os.environ.get("ANABRANCH_REPLICA_SEEDS", "60"))
STEPS = 300


async def run_workload(seed: int, script: list[tuple[str, int]]) -> RandomWorkload:
    workload = RandomWorkload(seed)
    for action, which in script:
        step = getattr(workload, action)
        if action == "kill":
            await step(which)
        else:
            step(which)
        workload.look()
    workload.heal()
    return workload


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_acknowledged_record_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    script = [(rng.choice(ACTIONS), rng.randrange(9)) for _ in range(STEPS)]
    trio.run(run_workload, seed, script)


@pytest.mark.trio
async def test_a_workload_without_faults_acknowledges_records() -> None:
    """The other test also passes if no record is ever acknowledged. In this workload records are acknowledged."""
    script = [("produce", 0), ("fetch", 1), ("fetch", 2), ("fetch", 1), ("fetch", 2)] * 5
    workload = await run_workload(1, script)
    assert len(workload.acknowledged) == 5
