"""The replicas that this broker hosts. Requests look them up; LeaderAndIsr and StopReplica change them."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import NamedTuple, Protocol

import structlog
import trio

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.replication.layout_admission import DeliveryRules
from anabranch.broker.replication.partition import Partition, PartitionServices
from anabranch.broker.replication.standing import Standing, ahead, standing_of
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.stop_replica import StopReplicaPartitionState
from anabranch.protocol.sentinels import EPOCH_DURING_DELETE, NO_EPOCH, NO_INCARNATION, NO_LEADER, NO_OFFSET
from anabranch.protocol.types import ZERO_UUID, TopicPartition
from anabranch.runtime.background import Background
from anabranch.runtime.turns import pause

REVIEWED_AT_ONCE = 256
"""The number of partitions whose ISR is reviewed before other tasks run."""
logger = structlog.get_logger(__name__)

_AFTER_ALL_EPOCHS = 2**31
_MAX_ENDED_KNOWN = 100_000


class Stopped(NamedTuple):
    """The answer to a StopReplica. ``log_end_offset`` is the log end of a deleted replica, -1 if it is not known."""

    error_code: ErrorCode
    log_end_offset: int = NO_OFFSET


class Ended(NamedTuple):
    """The incarnation and leader epoch of a replica's last StopReplica, and the log end if the replica was deleted."""

    incarnation: int = NO_INCARNATION
    leader_epoch: int = NO_EPOCH
    log_end_offset: int = NO_OFFSET


class Term(NamedTuple):
    """The source of the controller's requests; a later term is greater.

    A term has the controller's epoch, the epoch of the broker registration that the requests are meant for, and the
    number of times that this controller has read the cluster. The first LeaderAndIsr of a term names every replica that
    this broker has to have. All other requests of the term come after that request.
    """

    controller_epoch: int
    broker_epoch: int
    image_number: int = 0


class TopicSettings(Protocol):
    """The source of a topic's configuration."""

    def log_config(self, topic: str) -> LogConfig: ...
    def min_insync_replicas(self, topic: str) -> int: ...
    def delivery_rules(self, topic: str) -> DeliveryRules: ...


class Followers(Protocol):
    """The fetchers that follow other brokers (``FetcherPerLeader``)."""

    def follow(self, partition: Partition) -> None: ...
    def stop(self, key: TopicPartition) -> None: ...


class RoleListener(Protocol):
    """A listener for the partitions that this broker leads, such as the group coordinator."""

    def on_leader(self, key: TopicPartition, leader_epoch: int) -> None: ...
    def on_not_leader(self, key: TopicPartition, leader_epoch: int | None) -> None: ...


class ReplicaManager:
    """The partitions by name. No method suspends, so a request of the controller is applied as a whole."""

    def __init__(
        self,
        local_id: int,
        logs: LogManager,
        metadata: MetadataCache,
        settings: TopicSettings,
        listener: RoleListener,
        services: PartitionServices,
        followers: Followers,
        background: Background | None = None,
    ) -> None:
        self._background = background or Background()
        self._local_id = local_id
        self._logs = logs
        self._metadata = metadata
        self._settings = settings
        self._listener = listener
        self._services = services
        self._followers = followers
        self._partitions: dict[TopicPartition, Partition] = {}
        self.ended: dict[TopicPartition, Ended] = {}
        self._terms: dict[TopicPartition, Term] = {}
        """The term in which the role of a partition was assigned last."""
        self._named_in = Term(NO_EPOCH, NO_EPOCH)
        """The last term whose first LeaderAndIsr was applied."""
        self.controller_epoch = NO_EPOCH
        self._closed = False
        logs.on_switched = self._log_switched
        logs.on_room_changed = self._room_changed

    def _log_switched(self, log: PartitionLog) -> None:
        """Use the log of a partition that was moved to another log dir."""
        partition = self._partitions.get(log.partition)
        if partition is not None:
            partition.log = log

    def _room_changed(self, is_full: bool) -> None:
        """If a log dir is full, let other brokers lead. If it has room, make the controller send all requests again."""
        if not is_full:
            self._services.storage_failed()
            return
        for partition in self.all():
            if partition.log.is_full:
                partition.review_isr()

    # ------------------------------------------------------------ look-up

    def hosted(self, key: TopicPartition) -> Partition | None:
        return self._partitions.get(key)

    def all(self) -> list[Partition]:
        return list(self._partitions.values())

    def leader(self, key: TopicPartition, current_leader_epoch: int = NO_EPOCH) -> Partition:
        """The partition, if this broker leads it in the epoch that the client knows.

        Raises UNKNOWN_TOPIC_OR_PARTITION 3, NOT_LEADER_OR_FOLLOWER 6, FENCED_LEADER_EPOCH 74, UNKNOWN_LEADER_EPOCH 75.
        """
        partition = self._partitions.get(key) or self.replica(key)
        partition.check_leader(current_leader_epoch)
        return partition

    def replica(self, key: TopicPartition) -> Partition:
        """The partition, if this broker leads or follows it.

        Raises UNKNOWN_TOPIC_OR_PARTITION 3, NOT_LEADER_OR_FOLLOWER 6.
        """
        partition = self._partitions.get(key)
        if partition is not None:
            return partition
        if self._metadata.contains(*key) or not self._metadata.brokers:
            # Before the first UpdateMetadata, an unknown partition may still exist.
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{key} has no replica on this broker")
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{key} does not exist")

    def is_to_lead(self, key: TopicPartition) -> bool:
        """Whether the partition never had a leader, and this broker will be its first leader."""
        return self._metadata.coming_leader(key) == self._local_id

    # ------------------------------------------------------------ LeaderAndIsr

    def controller_elected(self, controller_epoch: int) -> None:
        """Remember a controller that is in office, unless a newer one is known."""
        self.controller_epoch = max(controller_epoch, self.controller_epoch)

    def apply(self, topic: str, topic_id: uuid.UUID, state: LeaderAndIsrPartitionState) -> ErrorCode:
        """Take the role that the controller assigns in one partition. NONE only if this broker has the role then."""
        key = TopicPartition(topic, state.partition_index)
        if self._closed:
            return ErrorCode.REPLICA_NOT_AVAILABLE
        if self._local_id not in state.replicas:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        partition = self._partitions.get(key)
        log = self._logs.get(key)
        if log is not None and is_behind(log, topic_id, state):
            return ErrorCode.STALE_CONTROLLER_EPOCH
        if state.incarnation >= 0 and (state.incarnation, state.leader_epoch) <= self.ended.get(key, Ended())[:2]:
            # A request that was sent before the StopReplica would revive the replica, with an old layout.
            return ErrorCode.STALE_CONTROLLER_EPOCH
        is_same = partition is not None and state.incarnation in (NO_INCARNATION, partition.log.identity.incarnation)
        if partition is not None and is_same:
            if partition.failed:
                return ErrorCode.KAFKA_STORAGE_ERROR
            if state.leader_epoch < partition.leader_epoch:
                return ErrorCode.STALE_CONTROLLER_EPOCH
            if state.leader_epoch == partition.leader_epoch:
                if _layout(state) != partition.layout:
                    logger.error(
                        "replica.layout_changed_without_epoch", partition=str(key), leader_epoch=state.leader_epoch
                    )
                    return ErrorCode.INVALID_REQUEST
                if partition.leader_id == state.leader:
                    return self._refresh(partition, topic_id, state)
        try:
            partition = self._with_log(key, topic_id, state)
        except KafkaError as error:
            logger.error("replica.log_not_usable", partition=str(key), error=str(error))
            return error.code
        self._take_role(partition, state)
        return ErrorCode.NONE

    def standing(self, key: TopicPartition) -> Standing | None:
        """What this broker knows of a partition, from its log and its role; None without a log."""
        log, partition = self._logs.get(key), self._partitions.get(key)
        if log is None:
            return None
        known = standing_of(log)
        if partition is None:
            return known
        return known._replace(leader_epoch=max(known.leader_epoch, partition.leader_epoch))

    def refuse(self, key: TopicPartition) -> None:
        """Stop leading and following a partition. The log stays."""
        self._drop(key)

    def _refresh(self, partition: Partition, topic_id: uuid.UUID, state: LeaderAndIsrPartitionState) -> ErrorCode:
        """Apply a request with the same leader epoch and layout: store a newer partition epoch and the identity."""
        if state.zk_version > partition.partition_epoch:
            partition.replicas = tuple(state.replicas)
            partition.isr_committed(state.isr, state.zk_version)
        _identify(partition.log, topic_id, state.incarnation)
        return ErrorCode.NONE

    def _with_log(self, key: TopicPartition, topic_id: uuid.UUID, state: LeaderAndIsrPartitionState) -> Partition:
        """Return the partition. Its log is new if it had none of the requested incarnation; another log is deleted."""
        log = self._logs.get(key)
        if log is not None and not _same_incarnation(log, topic_id, state.incarnation):
            logger.warning("replica.replaced", partition=str(key), incarnation=state.incarnation)
            self._drop(key)
            self._logs.delete(key)
            log = None
        if log is None:
            config = self._settings.log_config(key.topic)
            log = self._logs.create(
                key, topic_id, state.incarnation, config, is_new=state.is_new, start_offset=state.base_offset
            )
        elif log.failure:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log is broken: {log.failure}")
        elif log.rebuild is not None and state.leader == self._local_id:
            # A leader needs the producer state for the last stable offset. The controller sends the request again.
            raise KafkaError(ErrorCode.REPLICA_NOT_AVAILABLE, "the producer state of the log is being rebuilt")
        else:
            _identify(log, topic_id, state.incarnation)
            if log.size_bytes == 0 and log.log_end_offset < state.base_offset:
                log.truncate_fully_and_start_at(state.base_offset)  # a crash left the directory without its segment
        partition = self._partitions.get(key)
        if partition is None:
            min_insync_replicas = self._settings.min_insync_replicas(key.topic)
            partition = Partition(key, self._local_id, log, min_insync_replicas, self._services)
            self._partitions[key] = partition
        partition.base_offset = state.base_offset
        return partition

    def _take_role(self, partition: Partition, state: LeaderAndIsrPartitionState) -> None:
        partition.controller_epoch = state.controller_epoch
        partition.partition_epoch = state.zk_version
        self._set_layout(partition, state)
        if state.leader == self._local_id:
            self._followers.stop(partition.key)
            partition.make_leader(state.leader_epoch, state.isr, state.replicas)
            self._listener.on_leader(partition.key, state.leader_epoch)
        else:
            partition.make_follower(state.leader, state.leader_epoch, state.isr, state.replicas)
            self._followers.follow(partition)
            self._listener.on_not_leader(partition.key, state.leader_epoch)

    def _set_layout(self, partition: Partition, state: LeaderAndIsrPartitionState) -> None:
        """Set the layout together with the leader epoch, before any client sees that epoch.

        The topic's delivery rules are set too. They were read for this request, because the notification of an
        alteration may arrive later.
        """
        partition.ordered_delivery = None if state.ordered_delivery < 0 else state.ordered_delivery == 1
        self._set_rules(partition)
        layout = _layout(state)
        if layout != partition.layout and layout.layout_version > 0:  # no line for each topic that was never resized
            logger.info("replica.layout", partition=str(partition.key), leader_epoch=state.leader_epoch, layout=layout)
        partition.layout = layout
        if layout.undeleted_partition_count >= 0:
            entry = LayoutEntry(
                state.leader_epoch,
                layout.initial_partition_count,
                layout.undeleted_partition_count,
                layout.layout_version,
            )
            partition.log.assign_layout(entry)

    def check_term(self, term: Term) -> bool:
        """Whether a LeaderAndIsr has the last known term or a later term: an earlier one would revive a stray."""
        return term >= self._named_in

    def note_term(self, key: TopicPartition, term: Term) -> None:
        """Note that the role of a partition was assigned, or confirmed, in this term."""
        self._terms[key] = term

    def retire_strays(self, named: Iterable[TopicPartition], term: Term) -> None:
        """Stop leading and following partitions that the first LeaderAndIsr of a term does not name; the logs stay.

        The StopReplica for such a partition was lost: its controller died, the registration of this broker ended, or
        the controller read the cluster again. The first request of a term may arrive twice. So a partition that got its
        role in this term is no stray.

        The logs stay, because a topic is also missing when its znode was removed by mistake, and a deleted log cannot
        be restored. If a topic was created again, its id and incarnation differ (KAFKA-10548, KAFKA-12257,
        KAFKA-14616).
        """
        self._named_in = term
        here = {log.partition for log in self._logs.logs()} | self._partitions.keys()
        for key in sorted(here.difference(named)):
            if self._terms.get(key) == term:
                continue
            logger.warning("replica.stray", partition=str(key))
            self._drop(key)

    # ------------------------------------------------------------ StopReplica

    def stop(self, topic: str, state: StopReplicaPartitionState) -> Stopped:
        """Stop, and perhaps delete, one replica (KIP-570). If the replica does not exist here, it counts as stopped."""
        key = TopicPartition(topic, state.partition_index)
        if self._closed:
            return Stopped(ErrorCode.REPLICA_NOT_AVAILABLE)
        partition = self._partitions.get(key)
        log = self._logs.get(key)
        meant = state.incarnation
        if log is not None and 0 <= meant < log.identity.incarnation:
            return Stopped(ErrorCode.NONE)  # the requested incarnation was removed; a later one is kept (hole 20)
        # Epochs of two incarnations cannot be compared: a log of an earlier incarnation is deleted as well.
        is_same = log is None or meant == NO_INCARNATION or log.identity.incarnation in (NO_INCARNATION, meant)
        known = self.standing(key)
        if known is not None and is_same and is_fenced(state.leader_epoch, known.leader_epoch):
            return Stopped(ErrorCode.FENCED_LEADER_EPOCH)
        epoch = _last_epoch(state.leader_epoch, partition if is_same else None)
        self._drop(key)
        if not state.delete_partition:
            self.remember_end(key, meant, epoch)
            return Stopped(ErrorCode.NONE)
        end = log.log_end_offset if log is not None and is_same else NO_OFFSET
        ended = self.remember_end(key, meant, epoch, end)
        try:
            self._logs.delete(key, meant)
        except KafkaError as error:
            logger.error("replica.not_deleted", partition=str(key), error=str(error))
            return Stopped(error.code)
        return Stopped(ErrorCode.NONE, ended.log_end_offset)

    def remember_end(self, key: TopicPartition, incarnation: int, epoch: int, end: int = NO_OFFSET) -> Ended:
        """Remember a replica's last StopReplica. If the replica is assigned again, its leader epoch is higher.

        If the response is lost, the request arrives again after the log was deleted, and is answered with the same log
        end. If an older StopReplica arrives late, it does not count as the last one.
        """
        before = self.ended.pop(key, Ended())
        ended = Ended(incarnation, epoch, end)
        if before.incarnation == incarnation:
            ended = Ended(incarnation, max(epoch, before.leader_epoch), max(end, before.log_end_offset))
        self.ended[key] = before if before.incarnation > incarnation else ended
        if len(self.ended) > _MAX_ENDED_KNOWN:
            del self.ended[next(iter(self.ended))]
        return ended

    def _drop(self, key: TopicPartition) -> None:
        partition = self._partitions.pop(key, None)
        self._terms.pop(key, None)
        if partition is not None:
            self._followers.stop(key)
            partition.make_follower(NO_LEADER, partition.leader_epoch, (), ())
            self._listener.on_not_leader(key, None)

    def close(self) -> None:
        """Stop leading and following, because records appended while logs are closed would not be synced."""
        self._closed = True
        for key in list(self._partitions):
            self._drop(key)

    # ------------------------------------------------------------ in-sync replicas

    async def watch_lag(self, interval_s: float) -> None:
        """Remove replicas that fall behind from the ISR; checks every ``interval_s`` until cancelled."""
        while True:
            await trio.sleep(interval_s)
            for number, partition in enumerate(self.all(), start=1):
                if number % REVIEWED_AT_ONCE == 0:
                    await pause()
                with self._background.guard("isr-review", partition.key):
                    partition.review_isr()

    def brokers_changed(self) -> None:
        """Check the high watermarks after brokers started or stopped: one may have waited for a broker that stopped."""
        for partition in self._partitions.values():
            partition.recheck_high_watermark()

    # ------------------------------------------------------------ configuration

    def settings_changed(self, key: TopicPartition) -> None:
        """Apply the present configuration of the topic to a partition, if the partition is hosted here."""
        partition = self._partitions.get(key)
        if partition is not None:
            self._set_rules(partition)
            partition.require_in_sync(self._settings.min_insync_replicas(key.topic))

    def _set_rules(self, partition: Partition) -> None:
        """Set the configured rules. The first resize fixes ``ordered``: a later edit by hand does not change it."""
        rules, settled = self._settings.delivery_rules(partition.key.topic), partition.ordered_delivery
        partition.delivery = rules if settled is None else rules._replace(ordered=settled)


def is_fenced(leader_epoch: int, known: int) -> bool:
    """Whether a StopReplica is of an older leader epoch than the ``known`` epoch of the replica or its log.

    An equal epoch is not older, because a StopReplica does not raise the epoch (KAFKA-13972).
    """
    return leader_epoch not in (NO_EPOCH, EPOCH_DURING_DELETE) and leader_epoch < known


def _last_epoch(leader_epoch: int, partition: Partition | None) -> int:
    """The later of two leader epochs: the requested and the replica's. If the topic is deleted, above all epochs."""
    if leader_epoch == EPOCH_DURING_DELETE:
        return _AFTER_ALL_EPOCHS
    return leader_epoch if partition is None else max(leader_epoch, partition.leader_epoch)


def is_behind(log: PartitionLog, topic_id: uuid.UUID, state: LeaderAndIsrPartitionState) -> bool:
    """Whether a LeaderAndIsr knows less of the partition than its log: it is late, or ZooKeeper's data went back."""
    are_known = log.identity.incarnation != NO_INCARNATION and state.incarnation != NO_INCARNATION
    if not are_known and not _same_incarnation(log, topic_id, state.incarnation):
        return False
    return bool(ahead(standing_of(log), Standing(state.incarnation, state.leader_epoch, state.layout_version)))


def _layout(state: LeaderAndIsrPartitionState) -> Layout:
    return Layout(state.undeleted_partition_count, state.layout_version, state.initial_partition_count)


def _identify(log: PartitionLog, topic_id: uuid.UUID, incarnation: int) -> None:
    """Store the log's identity. If a log has no incarnation, it is deleted when the topic gets a new id.

    If the disk refuses the write, the replica takes its role all the same.
    """
    known = log.identity.metadata
    meant = LogIdentity(topic_id if topic_id != ZERO_UUID else known.topic_id, max(known.incarnation, incarnation))
    if meant == known and not log.identity.unwritten:
        return
    try:
        log.identity.replace(meant)
    except OSError as error:
        logger.warning("replica.metadata_not_written", partition=str(log.partition), error=str(error))


def _same_incarnation(log: PartitionLog, topic_id: uuid.UUID, incarnation: int) -> bool:
    """Whether the log has the requested incarnation. If an incarnation is not known, the topic id decides."""
    if incarnation != NO_INCARNATION and log.identity.incarnation != NO_INCARNATION:
        return log.identity.incarnation == incarnation
    return topic_id == ZERO_UUID or log.identity.topic_id in (ZERO_UUID, topic_id)
