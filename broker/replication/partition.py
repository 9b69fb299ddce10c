"""One replica of a partition on this broker: its role, its in-sync replicas, its high watermark and its watchers."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Sequence
from typing import Protocol

from anabranch.broker.log.append_validation import ReadBatch
from anabranch.broker.log.log_state import Examined
from anabranch.broker.log.partition_log import AppendOrigin, AppendResult, PartitionLog
from anabranch.broker.log.repeated_batches import ProducerConnection
from anabranch.broker.log.retention import RetainLease
from anabranch.broker.replication import isr
from anabranch.broker.replication.isr import REFUSED_REPLICA_WAITS_S, PendingIsr, ReplicaProgress
from anabranch.broker.replication.layout_admission import UNKNOWN, DeliveryRules, StockConsumerRule
from anabranch.ordered_resize.withheld_from_stock_consumers import NOTHING, StockCap
from anabranch.protocol.batch_layout import Buffer
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.sentinels import NO_EPOCH, NO_LEADER
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock


class Watcher(Protocol):
    """A fetch, a session of fetches or a waiting request. It checks a partition again after the partition changed."""

    def partition_changed(self, key: TopicPartition) -> None:
        """Note that the partition changed, and look at it later. Must not suspend and must not read."""
        ...


class LogEndReader(Watcher, Protocol):
    """A reader of records above the high watermark, as a follower is."""

    def high_watermark_moved(self, key: TopicPartition) -> None:
        """Note that the partition has a new high watermark and no new records. Must not suspend and must not read."""
        ...


class Role(enum.Enum):
    LEADER = "leader"
    FOLLOWER = "follower"


class PartitionServices(Protocol):
    """The services that a partition needs from its broker."""

    clock: Clock
    max_lag_s: float
    """``replica.lag.time.max.ms``."""
    flushes_on_ack: bool
    """Whether this replica counts only for records that are on its disk (``log.flush=ack``)."""

    def is_live(self, broker_id: int) -> bool:
        """Whether a broker is registered, as far as this broker knows."""
        ...

    def propose_isr(self, partition: Partition) -> None:
        """Request the ISR in ``partition.pending_isr`` from the controller."""
        ...

    def storage_failed(self) -> None:
        """Report to the controller that a replica here cannot be served any more."""
        ...

    def flush(self, partition: Partition) -> None:
        """Sync the log soon and call ``partition.flushed``, or ``partition.fail``."""
        ...


class Partition:
    """A hosted replica. The controller's requests, appends and fetches change it. No method suspends."""

    __slots__ = (
        "_refused_until",
        "base_offset",
        "controller_epoch",
        "delivery",
        "epoch_start_offset",
        "failed",
        "isr",
        "key",
        "layout",
        "leader_epoch",
        "leader_id",
        "local_id",
        "log",
        "log_end_readers",
        "min_insync_replicas",
        "ordered_delivery",
        "partition_epoch",
        "pending_isr",
        "progress",
        "readers",
        "replicas",
        "retain_lease",
        "role",
        "services",
        "stock_cap",
        "term",
        "watchers",
    )

    def __init__(
        self,
        key: TopicPartition,
        local_id: int,
        log: PartitionLog,
        min_insync_replicas: int,
        services: PartitionServices,
    ) -> None:
        self.key = key
        self.local_id = local_id
        self.log = log
        self.min_insync_replicas = min_insync_replicas
        self.services = services
        self.role = Role.FOLLOWER
        self.term = 0
        """Increases whenever this broker begins to lead: records that it appended in an earlier term may be lost."""
        self.base_offset = 0
        """The first offset of this incarnation, which has no records below: there is a gap, as after compaction."""
        self.leader_id = NO_LEADER
        self.leader_epoch = NO_EPOCH
        self.epoch_start_offset = 0
        """Log end offset at the start of this leader epoch."""
        self.controller_epoch = NO_EPOCH
        self.partition_epoch = NO_EPOCH
        """zkVersion of the state znode."""
        self.isr: Sequence[int] = ()
        """The ISR that the controller has committed."""
        self.pending_isr: PendingIsr | None = None
        self.replicas: Sequence[int] = ()
        self.layout = UNKNOWN
        """The partition's layout; changed only together with the leader epoch (KIP-253)."""
        self.ordered_delivery: bool | None = None
        """Whether keys keep their order; the first resize fixes it. Before, it is None: the configuration decides."""
        self.delivery = DeliveryRules()
        self.retain_lease: RetainLease | None = None
        """The records that retention by time keeps at this leader; None if not determined in this leader epoch yet."""
        self.stock_cap: StockCap = NOTHING
        """The limit for stock consumers, if the leader withholds records (``broker/stock_consumer_facts.py``)."""
        self.progress: dict[int, ReplicaProgress] = {}
        """The progress of the other replicas, as far as this leader knows; empty if this replica is a follower."""
        self._refused_until: dict[int, float] = {}
        self.failed = False
        """Whether the disk refused to sync the log. If so, the log accepts no records any more."""
        self.readers: dict[Watcher, None] = {}
        """Readers up to the high watermark. They are notified of the next change, except of records above it.
        A reader that reads the partition again is registered again. So an append does no work for sessions that do not
        read."""
        self.log_end_readers: dict[LogEndReader, None] = {}
        """Readers up to the log end. They are notified of the next change, also of new records. If only the high
        watermark moves, they note it and stay registered: a follower does not wait for it."""
        self.watchers: dict[Watcher, None] = {}
        """Watchers that are notified of every change, except of records above the high watermark."""

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    def leads_in(self, term: int) -> bool:
        """Whether this broker leads the partition, without interruption since ``term``."""
        return self.role is Role.LEADER and self.term == term

    # ------------------------------------------------------------ role

    def make_leader(self, leader_epoch: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
        """Become the leader in ``leader_epoch``, which begins at the log's end.

        If this broker led in the previous epoch, it keeps the progress of its followers. If it missed an epoch, another
        broker may have led then, and the followers may have truncated, so the progress is forgotten.
        """
        if not self.is_leader:
            self.term += 1
            self.stock_cap = NOTHING
        now = self.services.clock.monotonic()
        continues = self.is_leader and leader_epoch == self.leader_epoch + 1
        known = self.progress if continues else {}
        if not continues:
            self.log.begin_to_lead()
        self.role = Role.LEADER
        self._set_epoch(self.local_id, leader_epoch, isr, replicas)
        self.progress = {}
        for replica in self.replicas:
            if replica == self.local_id:
                continue
            progress = self.progress[replica] = known.get(replica) or ReplicaProgress()
            # For members of the ISR, the allowed lag begins now. Nothing is known about other replicas.
            progress.caught_up_at = now if replica in isr else -float("inf")
        self._refused_until.clear()
        self.epoch_start_offset = self.log.log_end_offset
        self.log.assign_epoch(leader_epoch)
        if self.services.flushes_on_ack and not self.log.is_synced:
            self.services.flush(self)
        self._advance_high_watermark()
        self.notify()
        if self.log.is_full:
            self.review_isr()

    def make_follower(self, leader_id: int, leader_epoch: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
        """Stop leading. From now on, requests for the partition are refused."""
        self.role = Role.FOLLOWER
        self._set_epoch(leader_id, leader_epoch, isr, replicas)
        self.progress = {}
        self.notify()

    def _set_epoch(self, leader_id: int, leader_epoch: int, isr: Sequence[int], replicas: Sequence[int]) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        self.retain_lease = None
        self.isr = tuple(isr)
        self.pending_isr = None
        self.replicas = tuple(replicas)

    def check_leader(self, current_leader_epoch: int = NO_EPOCH) -> None:
        """Raise NOT_LEADER_OR_FOLLOWER 6, FENCED_LEADER_EPOCH 74 or UNKNOWN_LEADER_EPOCH 75 (KIP-320)."""
        if self.role is not Role.LEADER:
            leader = f"broker {self.leader_id} is" if self.leader_id >= 0 else "and no leader is known"
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.key}: this broker is not the leader, {leader}")
        if current_leader_epoch == NO_EPOCH or current_leader_epoch == self.leader_epoch:
            return
        older = current_leader_epoch < self.leader_epoch
        raise KafkaError(
            ErrorCode.FENCED_LEADER_EPOCH if older else ErrorCode.UNKNOWN_LEADER_EPOCH,
            f"{self.key}: the request has leader epoch {current_leader_epoch}, the broker {self.leader_epoch}",
        )

    def readable_offset(self, position: int) -> int:
        """The offset from which a consumer at ``position`` reads.

        A consumer of the earlier incarnation may be below the base offset. It reads from the base offset, because after
        an out-of-range error ``auto.offset.reset=latest`` would skip records. Once records of this incarnation are
        deleted, such a position is out of range.
        """
        start = self.log.log_start_offset
        return start if 0 <= position < start == self.base_offset else position

    @property
    def withholds(self) -> bool:
        """Whether consumers that do not keep the order of keys themselves are withheld records here, after a resize."""
        if self.delivery.stock_consumers is not StockConsumerRule.WITHHOLD or self.layout.layout_version <= 0:
            return False
        return self.delivery.ordered if self.ordered_delivery is None else self.ordered_delivery

    def end_for_stock(self) -> int | None:
        """The first offset that is withheld from a stock consumer; None if nothing is."""
        if not self.withholds:
            return None
        cap = self.stock_cap.at(self.services.clock.monotonic())
        if cap >= self.leader_epoch:
            return None
        return self.log.log_start_offset if cap < 0 else self.log.end_offset_for_epoch(cap)[1]

    # ------------------------------------------------------------ append

    def append(
        self,
        records: Buffer,
        *,
        all_in_sync: bool,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        expected_leader_epoch: int = NO_EPOCH,
        connection: ProducerConnection | None = None,
    ) -> AppendResult:
        """Append one batch as the leader: ``examine`` and ``write`` it. Raises also the errors of ``check_leader``."""
        self.check_leader(expected_leader_epoch)
        examined = self.examine(records, all_in_sync=all_in_sync, origin=origin, connection=connection)
        return self.write(examined, origin)

    def examine(
        self,
        records: Buffer,
        *,
        all_in_sync: bool,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        connection: ProducerConnection | None = None,
        read: ReadBatch | None = None,
    ) -> Examined:
        """Check a batch that this leader gets, and look for an earlier append of it; see ``PartitionLog.examine``.

        ``all_in_sync``: acks=all, so ``min.insync.replicas`` counts, except for a batch that the log has already.
        ``read``: see ``validate_append``. Raises ``KafkaError``, among them NOT_ENOUGH_REPLICAS 19.
        """
        try:
            examined = self.log.examine(records, origin, connection, read)
        except KafkaError:
            if self.log.is_broken:
                self.fail()
            raise
        if all_in_sync and len(self.isr) < self.min_insync_replicas and examined.known is None:
            raise KafkaError(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.key}: {len(self.isr)} replicas in sync, min.insync.replicas is {self.min_insync_replicas}",
            )
        return examined

    def write(self, examined: Examined, origin: AppendOrigin = AppendOrigin.CLIENT) -> AppendResult:
        """Append a batch that was examined. If it needs no other replica, move the high watermark.

        Raises ``KafkaError`` as ``PartitionLog.write``.
        """
        end_before = self.log.log_end_offset
        try:
            result = self.log.write(examined, self.leader_epoch, origin)
        except KafkaError:
            if self.log.is_broken:
                self.fail()
            raise
        if self.progress:
            now = self.services.clock.monotonic()
            for progress in self.progress.values():
                progress.leader_appends(end_before, now)
        if self.services.flushes_on_ack:
            self.services.flush(self)
        if self._advance_high_watermark():
            self.notify()
        else:
            self._notify_log_end_readers()
        return result

    def keeps(self, end_offset: int, *, all_in_sync: bool) -> bool:
        """Whether records below ``end_offset`` are on all replicas that count (``all_in_sync``), or on this disk."""
        if all_in_sync:
            return self.log.high_watermark >= end_offset and len(self.isr) >= self.min_insync_replicas
        return self.durable_end_offset >= end_offset

    def require_in_sync(self, replicas: int) -> None:
        """Apply a changed ``min.insync.replicas``; requests may wait for it."""
        if replicas != self.min_insync_replicas:
            self.min_insync_replicas = replicas
            self.notify()

    @property
    def durable_end_offset(self) -> int:
        """The offset up to which this replica's records count: the log end, with ``log.flush=ack`` the end on disk."""
        return self.log.recovery_point if self.services.flushes_on_ack else self.log.log_end_offset

    def flushed(self) -> None:
        """Note that more of the log is on disk."""
        if self.is_leader:
            self._advance_high_watermark()
        self._notify_of_high_watermark()

    def fail(self) -> None:
        """Mark the disk as broken: unsynced records are not acknowledged, and another replica has to lead."""
        if not self.failed:
            self.failed = True
            self.services.storage_failed()
            self.notify()

    # ------------------------------------------------------------ followers and watermark

    def follower_fetched(self, replica_id: int, broker_epoch: int, fetch_offset: int, log_start_offset: int) -> None:
        """Note that a follower in this leader epoch has all records below ``fetch_offset``, after any truncation.

        A fetch with a lower broker epoch than the last fetch is ignored: it is from a process that has ended (KIP-903).
        """
        progress = self.progress.get(replica_id)
        if progress is None or broker_epoch < progress.broker_epoch:
            return
        progress.broker_epoch = broker_epoch
        log_start_moved = log_start_offset != progress.log_start_offset  # also at the first fetch
        now = self.services.clock.monotonic()
        progress.fetched(fetch_offset, log_start_offset, self.log.log_end_offset, now)
        if replica_id not in self.isr:
            self._consider_joining(replica_id, progress, now)
        if self._advance_high_watermark() or log_start_moved:
            self._notify_of_high_watermark()

    def follower_has_no_room(self, replica_id: int) -> None:
        """Note that a follower's log dir is full. It leaves the ISR once it lacks records, until it fetches again."""
        progress = self.progress.get(replica_id)
        if progress is not None:
            progress.has_no_room = True
            self.review_isr()
            self.recheck_high_watermark()

    @property
    def is_followed(self) -> bool:
        """Whether every in-sync replica has followed this leader, so that none has a record that the leader lacks.

        If an earlier leader was cut off and is still in the ISR, it may have uncommitted records that this leader
        lacks. With ``log.flush=ack`` a power cut does not bring such records back. Followers sync their truncations
        before they fetch. This leader has to sync its own truncations before the result is True.
        """
        known = self.progress
        if self.services.flushes_on_ack and not self.log.truncation_synced:
            return False
        return all(replica in known and known[replica].has_followed for replica in self._others_in_sync())

    @property
    def is_followed_to_its_end(self) -> bool:
        """Whether every in-sync replica has exactly the records of this leader."""
        end_offset = self.log.log_end_offset
        return self.is_followed and isr.high_watermark(end_offset, self._others_in_sync(), self.progress) >= end_offset

    @property
    def low_watermark(self) -> int:
        """The offset below which no live replica has records (KIP-107)."""
        starts = [known.log_start_offset for id, known in self.progress.items() if self.services.is_live(id)]
        return min([self.log.log_start_offset, *starts])

    def _consider_joining(self, replica_id: int, progress: ReplicaProgress, now: float) -> None:
        """Propose a replica that may join the ISR."""
        if self.pending_isr is not None or now < self._refused_until.get(replica_id, now):
            return
        may_join = progress.may_join(self.log.high_watermark, self.epoch_start_offset)
        if may_join and self.services.is_live(replica_id):
            self._propose([*self.isr, replica_id])

    def review_isr(self) -> None:
        """Propose an ISR without the replicas that lag, or with a replica that could join and was refused earlier.

        A leader whose disk is full proposes an ISR without itself, and the controller elects another member. If there
        is no other member, this broker continues to lead, so that its records can be read.
        """
        if not self.is_leader or self.pending_isr is not None:
            return
        if self.log.is_full and any(self.services.is_live(replica) for replica in self._others_in_sync()):
            self._propose(self._others_in_sync())
            return
        now, max_lag_s = self.services.clock.monotonic(), self.services.max_lag_s
        lagging = isr.lagging_replicas(self.isr, self.local_id, self.progress, self.log.log_end_offset, now, max_lag_s)
        if lagging:
            self._propose([replica for replica in self.isr if replica not in lagging])
            return
        for replica, progress in self.progress.items():
            if replica not in self.isr and progress.has_followed:
                self._consider_joining(replica, progress, now)

    def _propose(self, wanted: Iterable[int]) -> None:
        if self.failed:
            return  # it refuses the controller's orders, so it does not learn that another replica leads
        isr_wanted = tuple(wanted)
        epochs = (
            self.progress[replica].broker_epoch if replica in self.progress else NO_EPOCH for replica in isr_wanted
        )
        self.pending_isr = PendingIsr(isr_wanted, tuple(epochs), self.leader_epoch, self.partition_epoch)
        self.services.propose_isr(self)

    def isr_committed(self, committed: Sequence[int], partition_epoch: int) -> None:
        """Apply an ISR that the controller has committed. That may move the high watermark (KAFKA-13091)."""
        if partition_epoch <= self.partition_epoch:
            return
        self.isr = tuple(committed)
        self.partition_epoch = partition_epoch
        self.pending_isr = None
        if self.is_leader:
            self._advance_high_watermark()
        self.notify()
        if self.log.is_full:
            self.review_isr()

    def isr_refused(self, pending: PendingIsr) -> None:
        """Drop an ISR that the controller refused: the committed ISR stays. A refused replica may be proposed again."""
        if self.pending_isr is not pending:
            return
        self.pending_isr = None
        retry_at = self.services.clock.monotonic() + REFUSED_REPLICA_WAITS_S
        self._refused_until.update((replica, retry_at) for replica in pending.isr if replica not in self.isr)
        self.recheck_high_watermark()

    def recheck_high_watermark(self) -> None:
        """Check the high watermark again, because the set of awaited replicas may have changed."""
        if self.is_leader and self._advance_high_watermark():
            self._notify_of_high_watermark()

    def _advance_high_watermark(self) -> bool:
        if not self.progress:
            return self.log.advance_high_watermark(self.durable_end_offset)
        target = isr.high_watermark(self.durable_end_offset, self._waited_for(), self.progress)
        return self.log.advance_high_watermark(target)

    def _others_in_sync(self) -> list[int]:
        return [replica for replica in self.isr if replica != self.local_id]

    def _waited_for(self) -> Collection[int]:
        """The replicas that must have a record before it is committed: committed and pending ISR (KIP-497).

        A replica that is about to join the ISR is awaited too. Otherwise the high watermark of a leader that is alone
        in its ISR would move with every append, and under load no follower could ever reach it.
        """
        in_sync = self._others_in_sync()
        if self.pending_isr is None and len(in_sync) >= len(self.progress):
            return in_sync
        waited_for = dict.fromkeys(in_sync)
        if self.pending_isr is not None:
            waited_for.update((replica, None) for replica in self.pending_isr.isr if replica != self.local_id)
        if len(waited_for) < len(self.progress):
            services = self.services
            now = services.clock.monotonic()
            for replica, progress in self.progress.items():
                if (
                    replica not in waited_for
                    and not progress.has_no_room
                    and progress.was_caught_up(now, services.max_lag_s)
                    and now >= self._refused_until.get(replica, now)
                    and services.is_live(replica)
                ):
                    waited_for[replica] = None
        return waited_for

    # ------------------------------------------------------------ watching

    def notify(self) -> None:
        """Notify every reader and watcher of a change of the partition."""
        self._notify_log_end_readers()
        self._notify_of_high_watermark()

    def _notify_log_end_readers(self) -> None:
        readers, self.log_end_readers = self.log_end_readers, {}
        for reader in readers:
            reader.partition_changed(self.key)

    def _notify_of_high_watermark(self) -> None:
        """Notify of a change that gives no new records to readers up to the log end."""
        for log_end_reader in self.log_end_readers:
            log_end_reader.high_watermark_moved(self.key)
        readers, self.readers = self.readers, {}
        for reader in readers:
            reader.partition_changed(self.key)
        for watcher in self.watchers:
            watcher.partition_changed(self.key)
