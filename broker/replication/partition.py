"""One replica of a partition on this broker: its role, its in-sync replicas, its watermark and who watches it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from broker.log.partition_log import AppendOrigin, AppendResult, PartitionLog
from protocol.batch_layout import Buffer
from protocol.errors import ErrorCode, KafkaError
from protocol.types import TopicPartition

NO_EPOCH = -1


class Watcher(Protocol):
    """Somebody who wants to know when a partition has new records, a new watermark or a new role."""

    def partition_changed(self, key: TopicPartition) -> None:
        """Must not suspend and must not read: note the partition and look later."""
        ...


class Role(enum.Enum):
    LEADER = "leader"
    FOLLOWER = "follower"


@dataclass(frozen=True, slots=True)
class PartitionLayout:
    """KIP-253: which keys the partition takes; -1 where the controller does not say."""

    initial_partition_count: int = -1
    undeleted_partition_count: int = -1
    layout_version: int = -1


class Partition:
    """A hosted replica. Changed only by the controller's requests and by appends; no method suspends."""

    __slots__ = (
        "controller_epoch",
        "isr",
        "key",
        "layout",
        "leader_epoch",
        "leader_id",
        "local_id",
        "log",
        "min_insync_replicas",
        "partition_epoch",
        "remote_end_offsets",
        "replicas",
        "role",
        "watchers",
    )

    def __init__(self, key: TopicPartition, local_id: int, log: PartitionLog, min_insync_replicas: int) -> None:
        self.key = key
        self.local_id = local_id
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.role = Role.FOLLOWER
        self.leader_id = -1
        self.leader_epoch = NO_EPOCH
        self.controller_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        """zkVersion of the state znode."""
        self.isr: Sequence[int] = ()
        self.replicas: Sequence[int] = ()
        self.layout = PartitionLayout()
        self.remote_end_offsets: dict[int, int] = {}
        """End offset of each other replica, as its last fetch told."""
        self.watchers: dict[Watcher, None] = {}

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    # ------------------------------------------------------------ role

    def make_leader(self, leader_epoch: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
        """Lead from the log's end on in ``leader_epoch``."""
        self.role = Role.LEADER
        self.leader_id = self.local_id
        self.leader_epoch = leader_epoch
        self.isr = tuple(isr)
        self.replicas = tuple(replicas)
        self.remote_end_offsets = {}
        self.log.assign_epoch(leader_epoch)
        self._advance_high_watermark()
        self.notify()

    def make_follower(self, leader_id: int, leader_epoch: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
        """Stop leading; requests for the partition are refused from here on."""
        self.role = Role.FOLLOWER
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.isr = tuple(isr)
        self.replicas = tuple(replicas)
        self.notify()

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER 6, FENCED_LEADER_EPOCH 74 or UNKNOWN_LEADER_EPOCH 75 (KIP-320)."""
        if self.role is not Role.LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} is led by broker {self.leader_id}")
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.key}: the request has leader epoch {current_leader_epoch}, the broker {self.leader_epoch}",
        )

    # ------------------------------------------------------------ append

    def append(self, records: Buffer, *, all_in_sync: bool, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        """Append one batch as the leader and move the watermark when no other replica is waited for.

        ``all_in_sync``: acks=all, so ``min.insync.replicas`` counts. Raises ``KafkaError``, among them
        NOT_LEADER_OR_FOLLOWER 6 and NOT_ENOUGH_REPLICAS 19.
        """
        if self.role is not Role.LEADER:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key} is led by broker {self.leader_id}")
        if all_in_sync and len(self.isr) < self.min_insync_replicas:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.key}: {len(self.isr)} replicas in sync, min.insync.replicas is {self.min_insync_replicas}",
            )
        result = self.log.append_as_leader(records, self.leader_epoch, origin=origin)
        self._advance_high_watermark()
        if self.watchers:
            self.notify()
        return result

    def follower_fetched(self, replica_id: int, fetch_offset: int) -> None:
        """A follower has everything below ``fetch_offset``."""
        self.remote_end_offsets[replica_id] = fetch_offset
        if self._advance_high_watermark():
            self.notify()

    def _advance_high_watermark(self) -> bool:
        """The smallest log end among the in-sync replicas; with this one alone in sync, its own."""
        target = self.log.log_end_offset
        for replica in self.isr:
            if replica != self.local_id:
                target = min(target, self.remote_end_offsets.get(replica, 0))
        return self.log.advance_high_watermark(target)

    # ------------------------------------------------------------ watching

    def notify(self) -> None:
        """Tell every watcher that something about the partition changed."""
        for watcher in self.watchers:
            watcher.partition_changed(self.key)
