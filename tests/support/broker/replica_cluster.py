"""The replicas of one partition without a network: real logs on simulated disks, real leaders and followers.

The test acts as the controller, and decides when each follower fetches. Between leader and follower, the broker's own
fetch handler reads and its fetcher appends.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

from anabranch.broker.handlers.fetch_read import FetchRead, ReadLimits
from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_creation import create_log
from anabranch.broker.log.log_loader import Checkpoints, open_log
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.fetch_plan import FetchPlan
from anabranch.broker.replication.fetch_session import FetchTarget
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.follower import FetchOutcome, FollowedPartition
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.broker.replication.throttle import UNLIMITED, ReplicationQuota
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.generated.fetch import FetchResponse, PartitionData
from anabranch.protocol.records import iter_batches
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.real_trio import TrioNetwork
from sim.storage import SimDisk
from tests.support.log.log_fixture import START_MS, ManualClock

KEY = TopicPartition("t", 0)
LAG_S = 30.0


class Services:
    """``PartitionServices`` that record the calls."""

    def __init__(self, cluster: ReplicaCluster, flushes_on_ack: bool) -> None:
        self.clock = cluster.clock
        self.max_lag_s = LAG_S
        self.flushes_on_ack = flushes_on_ack
        self._cluster = cluster
        self.proposed: list[Partition] = []
        self.storage_failures = 0
        self.to_flush: list[Partition] = []

    def is_live(self, broker_id: int) -> bool:
        return broker_id in self._cluster.live

    def propose_isr(self, partition: Partition) -> None:
        self.proposed.append(partition)

    def storage_failed(self) -> None:
        self.storage_failures += 1

    def flush(self, partition: Partition) -> None:
        self.to_flush.append(partition)


class Replica:
    """One broker's replica. ``partition`` exists while the broker runs."""

    def __init__(self, cluster: ReplicaCluster, broker_id: int, flushes_on_ack: bool) -> None:
        self.id = broker_id
        self._cluster = cluster
        self.disk = SimDisk(cluster.rng, clock=cluster.clock)
        self.storage = self.disk.mount()
        self.services = Services(cluster, flushes_on_ack)
        self.followed: FollowedPartition | None = None
        log = create_log(self._env(), "/t-0", KEY, LogIdentity(uuid.UUID(int=1), 1), cluster.config, ProducerState())
        self.partition = Partition(KEY, broker_id, log, cluster.min_insync_replicas, self.services)

    def _env(self) -> Env:
        return Env(self._cluster.clock, TrioNetwork(), self._cluster.rng, self.storage)

    @property
    def log(self) -> PartitionLog:
        return self.partition.log

    # ``FetchRead`` finds replicas with these methods.

    def leader(self, _key: TopicPartition, current_leader_epoch: int = NO_EPOCH) -> Partition:
        self.partition.check_leader(current_leader_epoch)
        return self.partition

    def hosted(self, _key: TopicPartition) -> Partition:
        return self.partition

    def values(self, below: int | None = None) -> list[bytes | None]:
        """The values of the records below an offset (default: the log end), in order."""
        return [value for _, _, value in self.records(below)]

    def records(self, below: int | None = None) -> list[tuple[int, int, bytes | None]]:
        """(offset, leader epoch, value) of the records below an offset (default: the log end)."""
        end = self.log.log_end_offset if below is None else below
        found: list[tuple[int, int, bytes | None]] = []
        offset = self.log.log_start_offset
        while offset < end:
            read = self.log.read(offset, 1 << 20, upper_bound=self.log.log_end_offset).records
            for batch in iter_batches(read if isinstance(read, bytes) else read.read()):
                epoch = batch.partition_leader_epoch
                found += [(record.offset, epoch, record.value) for record in batch if offset <= record.offset < end]
                offset = batch.next_offset
        return found

    async def restart(self, *, power_failure: bool) -> None:
        """Restart after the death of the process or the machine. The new process has received no LeaderAndIsr yet."""
        if power_failure:
            self.disk.crash(self.storage)
        else:
            self.disk.kill(self.storage)
        self.storage = self.disk.mount()
        checkpoints = Checkpoints(0, 0, 0)
        log = await open_log(self._env(), "/t-0", KEY, self._cluster.config, checkpoints, clean=False)
        self.partition = Partition(KEY, self.id, log, self._cluster.min_insync_replicas, self.services)
        self.services.proposed.clear()
        self.services.to_flush.clear()
        self.followed = None


class ReplicaCluster:
    """The replicas of one partition. ``replicas`` are by broker id, the preferred leader first."""

    def __init__(
        self, count: int = 3, *, min_insync_replicas: int = 1, flushes_on_ack: bool = False, seed: int = 1
    ) -> None:
        self.clock = ManualClock()
        self.rng = random.Random(seed)
        self.config = LogConfig(segment_bytes=2000)
        self.min_insync_replicas = min_insync_replicas
        self.live = dict.fromkeys(range(1, count + 1))
        self.replicas = {id: Replica(self, id, flushes_on_ack) for id in self.live}
        self.broker_epochs = dict.fromkeys(self.live, 1)
        self.version = 0
        self.metrics = BrokerMetrics()
        self.throttle = ReplicationQuota(0, self.clock, lambda: UNLIMITED, lambda _topic: [])

    @classmethod
    def led_by(cls, leader: int, isr: Sequence[int]) -> ReplicaCluster:
        """Three replicas, and a leader in epoch 0."""
        cluster = cls()
        cluster.elect(leader, 0, isr)
        return cluster

    def __getitem__(self, broker_id: int) -> Replica:
        return self.replicas[broker_id]

    # ------------------------------------------------------------ the controller

    def elect(self, leader: int, epoch: int, isr: Sequence[int], *, deliver: Sequence[int] | None = None) -> None:
        """Send LeaderAndIsr to the brokers ``deliver`` (default: all live ones)."""
        self.version += 1
        for id in self.live if deliver is None else deliver:
            self.deliver(id, leader, epoch, isr)

    def deliver(self, broker_id: int, leader: int, epoch: int, isr: Sequence[int]) -> None:
        replica = self.replicas[broker_id]
        replica.partition.partition_epoch = self.version
        if leader == broker_id:
            replica.followed = None
            replica.partition.make_leader(epoch, isr, list(self.replicas))
        else:
            replica.partition.make_follower(leader, epoch, isr, list(self.replicas))
            replica.followed = FollowedPartition(replica.partition)

    def commit_isr(self, leader: int) -> None:
        """The controller accepts the ISR that the leader proposed."""
        partition = self[leader].partition
        assert partition.pending_isr is not None
        self.version += 1
        partition.isr_committed(partition.pending_isr.isr, self.version)

    # ------------------------------------------------------------ records

    def append(self, leader: int, *values: bytes, all_in_sync: bool = False, **fields: Any) -> int:
        """Append one batch, and return its last offset."""
        batch = bytearray(build_batch([(b"k", value, (), START_MS) for value in values], **fields))
        return self[leader].partition.append(memoryview(batch), all_in_sync=all_in_sync).last_offset

    def ask(self, follower: int, leader: int) -> PartitionData:
        """Return the leader's response to the follower's next fetch. The fetch is a full fetch of a session."""
        followed = self[follower].followed
        assert followed is not None
        plan = FetchPlan()
        plan.want(KEY)
        config = FetcherConfig(follower, 1 << 20, 1, 1 << 20, 0, 1.0, 30.0, flushes=False)
        request = plan.request({KEY: followed}, config, self.broker_epochs[follower], 0)
        target = FetchTarget(Purgatory(self.clock))
        target.add(request)
        limits = ReadLimits(
            follower, request.replica_epoch, 1 << 20, read_committed=False, full=True, reports_divergence=True
        )
        read = FetchRead(self[leader], self.throttle, self.metrics, target, limits)  # type: ignore[arg-type]
        read.run()
        # Encode and decode the response, because the follower gets bytes.
        parts = read.response().encode_parts(12)
        sent = b"".join(
            bytes(part) if isinstance(part, bytes | bytearray | memoryview) else part.read() for part in parts
        )
        response = FetchResponse.decode(sent, 12)
        return response.responses[0].partitions[0]

    def fetch(self, follower: int, leader: int, times: int = 1) -> FetchOutcome:
        """Fetch, and append the response."""
        outcome = FetchOutcome.NOTHING_NEW
        for _ in range(times):
            followed = self[follower].followed
            assert followed is not None
            offset = self[follower].log.log_end_offset
            outcome = followed.take(offset, self.ask(follower, leader))
            if outcome is FetchOutcome.OUT_OF_RANGE:
                log = self[leader].log
                producers = log.producers.below(log.log_start_offset)
                followed.reset_to_range(log.log_start_offset, log.log_end_offset, producers)
        return outcome

    def catch_up(self, leader: int, *followers: int) -> None:
        """Fetch until each follower has all records and the resulting high watermark."""
        for follower in followers:
            for _ in range(20):
                if self.fetch(follower, leader) is FetchOutcome.NOTHING_NEW:
                    break
            else:
                raise AssertionError(f"replica {follower} does not catch up")
        for follower in followers:
            self.fetch(follower, leader)  # brings the high watermark, which the earlier fetches have raised
