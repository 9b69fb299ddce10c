"""Metrics that are read from a broker's state when Prometheus requests them (ADR 39).

The metrics of a partition come from its leader, the metrics of a log from each replica, and the metrics of a group from
its coordinator. ``SeriesLimits`` bounds the number of partitions and groups that have series of their own.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from typing import NamedTuple

from prometheus_client.core import Metric

from anabranch.broker.coordinator.durable import StoredOffset
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.position_owners import owner_of
from anabranch.broker.coordinator.shard import Shard
from anabranch.broker.delayed_produce import DelayedProduce
from anabranch.broker.log.cleaner import LogCleaner
from anabranch.broker.log.log_manager import LogManager
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.broker.net.server import Server
from anabranch.broker.node import Node
from anabranch.broker.observed.group_lag import GroupLag
from anabranch.broker.replication.delayed_fetch import DelayedFetch
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.metrics import OTHERS, ShownTopics

AT_ONCE = 256
"""The number of partitions, or of groups' offsets, that are read before other tasks may run."""
RUNNING = 3
"""Kafka's ``BrokerState.RUNNING``."""


class SeriesLimits(NamedTuple):
    """The largest number of partitions, and of groups, that have series of their own."""

    partitions: int
    groups: int


class _Rows:
    """Families with the same labels, filled row by row. The rows above the limit are summed in one row."""

    def __init__(self, most: int, *names: str) -> None:
        self._families = [BROKER_METRICS.family(name) for name in names]
        self._rest = [0.0] * len(names)
        self._others = (OTHERS,) * len(BROKER_METRICS[names[0]].labels)
        self._left = most
        self._has_rest = False

    def add(self, labels: tuple[str, ...], *values: float, is_shown: bool = True) -> None:
        if is_shown and self._left > 0:
            self._left -= 1
            for family, value in zip(self._families, values):
                family.add_metric(labels, value)
            return
        self._has_rest = True
        self._rest = [known + value for known, value in zip(self._rest, values)]

    def families(self) -> Iterator[Metric]:
        for family, rest in zip(self._families, self._rest):
            if self._has_rest:
                family.add_metric(self._others, rest)
            yield family


# ---------------------------------------------------------------- partitions


class PartitionMetrics:
    """The metrics of the partitions that this broker hosts or leads."""

    def __init__(self, node: Node, shown: ShownTopics, limits: SeriesLimits) -> None:
        self._node = node
        self._shown = shown
        self._limits = limits

    def __call__(self) -> Iterator[Metric | None]:
        node = self._node
        partitions = sorted(node.replicas.all(), key=lambda partition: partition.key)
        yield None
        yield from _counts(node, partitions)
        yield None
        yield from self._of_leaders([partition for partition in partitions if partition.is_leader])
        yield from self._of_logs(partitions)

    def _of_leaders(self, led: list[Partition]) -> Iterator[Metric | None]:
        rows = _Rows(
            self._limits.partitions,
            "kafka_topic_partition_current_offset",
            "kafka_topic_partition_oldest_offset",
            "kafka_topic_partition_in_sync_replica",
            "kafka_topic_partition_replicas",
            "kafka_topic_partition_under_replicated_partition",
            "kafka_topic_partition_leader_is_preferred",
            "kafka_topic_partition_leader",
            "kafka_cluster_partition_underminisr",
            "kafka_cluster_partition_atminisr",
            "kafka_cluster_partition_replicascount",
            "kafka_cluster_partition_insyncreplicascount",
            "anabranch_partition_leader_epoch",
        )
        for number, partition in enumerate(led):
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
            log, in_sync, replicas = partition.log, len(partition.isr), len(partition.replicas)
            rows.add(
                _labels(partition.key),
                log.high_watermark,
                log.log_start_offset,
                in_sync,
                replicas,
                float(in_sync < replicas),
                float(bool(partition.replicas) and partition.replicas[0] == partition.local_id),
                partition.local_id,
                float(in_sync < partition.min_insync_replicas),
                float(in_sync == partition.min_insync_replicas),
                replicas,
                in_sync,
                partition.leader_epoch,
                is_shown=partition.key.topic in self._shown,
            )
        for family in rows.families():
            yield family
            yield None

    def _of_logs(self, partitions: list[Partition]) -> Iterator[Metric | None]:
        rows = _Rows(
            self._limits.partitions,
            "kafka_log_log_size",
            "kafka_log_log_numlogsegments",
            "kafka_log_log_logstartoffset",
            "kafka_log_log_logendoffset",
        )
        for number, partition in enumerate(partitions):
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
            log = partition.log
            rows.add(
                _labels(partition.key),
                log.size_bytes,
                len(log.segments),
                log.log_start_offset,
                log.log_end_offset,
                is_shown=partition.key.topic in self._shown,
            )
        for family in rows.families():
            yield family
            yield None


def _labels(key: TopicPartition) -> tuple[str, str]:
    return key.topic, str(key.partition)


def _counts(node: Node, partitions: list[Partition]) -> Iterator[Metric]:
    led = [partition for partition in partitions if partition.is_leader]
    prefix = "kafka_server_replicamanager"
    yield BROKER_METRICS.value(f"{prefix}_partitioncount", len(partitions))
    yield BROKER_METRICS.value(f"{prefix}_leadercount", len(led))
    yield BROKER_METRICS.value(
        f"{prefix}_underreplicatedpartitions",
        sum(len(partition.isr) < len(partition.replicas) for partition in led),
    )
    yield BROKER_METRICS.value(
        f"{prefix}_underminisrpartitioncount",
        sum(len(partition.isr) < partition.min_insync_replicas for partition in led),
    )
    yield BROKER_METRICS.value(
        f"{prefix}_atminisrpartitioncount",
        sum(len(partition.isr) == partition.min_insync_replicas for partition in led),
    )
    yield BROKER_METRICS.value(
        f"{prefix}_offlinereplicacount",
        sum(partition.failed or partition.log.is_broken for partition in partitions),
    )
    yield BROKER_METRICS.value(
        "anabranch_logs_ahead_of_clock",
        node.logs.maintenance.logs_ahead,
    )
    changes = node.hosted.isr_changes
    yield BROKER_METRICS.value(f"{prefix}_isrshrinks", changes.shrinks)
    yield BROKER_METRICS.value(f"{prefix}_isrexpands", changes.expands)
    yield BROKER_METRICS.value(f"{prefix}_failedisrupdates", changes.refusals)
    yield BROKER_METRICS.value(
        "kafka_server_replicafetchermanager_maxlag",
        max((lag for partition in partitions if (lag := _follower_lag(partition)) > 0), default=0),
    )
    yield BROKER_METRICS.value("kafka_server_kafkaserver_brokerstate", RUNNING)
    waiting: Tally[str] = Tally(_kind(operation) for operation in node.purgatory.waiting())
    family = BROKER_METRICS.family("kafka_server_delayedoperationpurgatory_purgatorysize")
    for kind in ("Produce", "Fetch", *sorted(waiting.keys() - {"Produce", "Fetch"})):
        family.add_metric((kind,), waiting[kind])
    yield family


def _follower_lag(partition: Partition) -> int:
    return 0 if partition.is_leader else partition.log.high_watermark - partition.log.log_end_offset


def _kind(operation: object) -> str:
    if isinstance(operation, DelayedProduce):
        return "Produce"
    return "Fetch" if isinstance(operation, DelayedFetch) else "Other"


# ---------------------------------------------------------------- logs


def log_metrics(logs: LogManager, now: Callable[[], float]) -> Callable[[], Iterator[Metric | None]]:
    """A source of metrics about disks and the cleaner."""

    def collect() -> Iterator[Metric | None]:
        total = BROKER_METRICS.family("anabranch_log_dir_bytes")
        free = BROKER_METRICS.family("anabranch_log_dir_free_bytes")
        lost = BROKER_METRICS.family("kafka_log_logmanager_logdirectoryoffline")
        for path, total_bytes, free_bytes in logs.disk_usage():
            lost.add_metric((path,), float(total_bytes is None))
            if total_bytes is not None and total_bytes >= 0:
                total.add_metric((path,), total_bytes)
                free.add_metric((path,), free_bytes)
        yield total
        yield free
        yield lost
        yield None
        yield from _cleaner(logs.cleaner, now())

    return collect


def _cleaner(cleaner: LogCleaner, now: float) -> Iterator[Metric]:
    looked = cleaner.last_look_at
    yield BROKER_METRICS.value(
        "kafka_log_logcleanermanager_time_since_last_run_ms",
        0 if looked is None else max(0.0, now - looked) * 1000,
    )
    yield BROKER_METRICS.value(
        "kafka_log_logcleanermanager_max_dirty_percent",
        cleaner.largest_ratio * 100,
    )
    yield BROKER_METRICS.value("anabranch_log_cleaner_runs", cleaner.runs)
    yield BROKER_METRICS.value("anabranch_log_cleaner_read_bytes", cleaner.bytes_before)
    yield BROKER_METRICS.value("anabranch_log_cleaner_kept_bytes", cleaner.bytes_after)


# ---------------------------------------------------------------- network


def network_metrics(node: Node, server: Server) -> Callable[[], Iterator[Metric | None]]:
    """A source of metrics about connections, and about the memory that requests take."""

    def collect() -> Iterator[Metric | None]:
        prefix = "kafka_server_socket_server_metrics"
        open_now = BROKER_METRICS.family(f"{prefix}_connection_count")
        created = BROKER_METRICS.family(f"{prefix}_connection_creation")
        closed = BROKER_METRICS.family(f"{prefix}_connection_close")
        for entry in node.config.listeners:
            accepted, ended = server.accepted[entry.name], server.closed[entry.name]
            open_now.add_metric((entry.name,), accepted - ended)
            created.add_metric((entry.name,), accepted)
            closed.add_metric((entry.name,), ended)
        yield from (open_now, created, closed)
        yield BROKER_METRICS.value("anabranch_connections_refused", server.refused)
        budget = node.request_memory
        prefix = "kafka_network_socketserver"
        yield BROKER_METRICS.value(f"{prefix}_memorypoolused", budget.taken_bytes)
        yield BROKER_METRICS.value(f"{prefix}_memorypoolavailable", budget.free_bytes)
        yield BROKER_METRICS.value("anabranch_waiting_fetches_bytes", node.hosted.waiting_fetches.parked_bytes)
        yield BROKER_METRICS.value("anabranch_waiting_fetches_ended", node.hosted.waiting_fetches.ended)

    return collect


# ---------------------------------------------------------------- groups


class GroupMetrics:
    """The metrics of groups that this broker coordinates."""

    def __init__(self, node: Node, lag: GroupLag, shown: ShownTopics, limits: SeriesLimits) -> None:
        self._node = node
        self._lag = lag
        self._shown = shown
        self._limits = limits

    def __call__(self) -> Iterator[Metric | None]:
        shards = self._node.groups.shards()
        yield from self._counts(shards)
        yield None
        groups = sorted(
            ((group_id, shard, group) for shard in shards for group_id, group in shard.groups.items()),
            key=lambda entry: entry[0],
        )
        shown = {group_id for group_id, _, _ in groups[: self._limits.groups]}
        yield from self._members(groups, shown)
        yield from self._offsets(groups, shown)
        yield from self._waits(groups, shown)

    def _counts(self, shards: list[Shard]) -> Iterator[Metric]:
        prefix = "kafka_coordinator_group_groupmetadatamanager"
        states: Tally[GroupState] = Tally(group.state for shard in shards for group in shard.groups.values())
        yield BROKER_METRICS.value(f"{prefix}_numgroups", sum(states.values()))
        for state in GroupState:
            name = f"{prefix}_numgroups{state.value.lower()}"
            yield BROKER_METRICS.value(name, states[state])
        yield BROKER_METRICS.value(
            f"{prefix}_numoffsets",
            sum(len(offsets) for shard in shards for offsets in shard.durable.offsets.values()),
        )
        groups = self._node.groups
        yield BROKER_METRICS.value("anabranch_group_members_bytes", sum(shard.memory.taken_bytes for shard in shards))
        yield BROKER_METRICS.value("anabranch_refused_joins", groups.refused_joins)
        yield BROKER_METRICS.value("anabranch_offset_commits", groups.commits)
        yield BROKER_METRICS.value(
            "anabranch_committed_offsets",
            groups.committed_offsets,
        )

    def _members(self, groups: list[tuple[str, Shard, Group]], shown: set[str]) -> Iterator[Metric | None]:
        rows = _Rows(self._limits.groups, "kafka_consumergroup_members")
        for group_id, _, group in groups:
            rows.add((group_id,), len(group.members), is_shown=group_id in shown)
        yield from rows.families()
        yield None

    def _offsets(self, groups: list[tuple[str, Shard, Group]], shown: set[str]) -> Iterator[Metric | None]:
        most = self._limits.partitions
        offsets = _Rows(most, "kafka_consumergroup_current_offset")
        lags = _Rows(
            most,
            "kafka_consumergroup_lag",
            "kafka_consumergroup_lag_seconds",
            "anabranch_consumergroup_expired_unread",
        )
        sums: dict[tuple[str, str], list[float]] = {}
        number = 0
        for group_id, shard, _ in groups:
            for tp, committed in list(shard.durable.offsets_of(group_id).items()):
                number += 1
                if number % AT_ONCE == 0:
                    yield None
                self._add(group_id, tp, committed, offsets, lags, sums, group_id in shown)
        yield from offsets.families()
        yield None
        yield from lags.families()
        yield None
        totals = _Rows(
            most,
            "kafka_consumergroup_current_offset_sum",
            "kafka_consumergroup_lag_sum",
        )
        for (group_id, topic), values in sums.items():
            totals.add((group_id, topic), *values, is_shown=OTHERS not in (group_id, topic))
        yield from totals.families()
        yield None

    def _add(
        self,
        group_id: str,
        tp: TopicPartition,
        committed: StoredOffset,
        offsets: _Rows,
        lags: _Rows,
        sums: dict[tuple[str, str], list[float]],
        is_group_shown: bool,
    ) -> None:
        is_shown = is_group_shown and tp.topic in self._shown
        labels = (group_id, *_labels(tp))
        offsets.add(labels, committed.offset, is_shown=is_shown)
        total = sums.setdefault((group_id, tp.topic) if is_shown else (OTHERS, OTHERS), [0.0, 0.0])
        total[0] += committed.offset
        found = self._lag.of(tp, committed.offset)
        if found is not None:
            lags.add(labels, *found, is_shown=is_shown)
            total[1] += found.records

    def _waits(self, groups: list[tuple[str, Shard, Group]], shown: set[str]) -> Iterator[Metric | None]:
        rows = _Rows(
            self._limits.partitions,
            "anabranch_consumergroup_wait_seconds",
        )
        now_ms = self._node.env.clock.monotonic() * 1000
        waits: dict[tuple[str, ...], tuple[float, bool]] = {}
        for group_id, shard, group in groups:
            for member_id, poller in group.positions.pollers.items():
                waiting = group.members.get(member_id)
                if waiting is None:
                    continue
                for tp, wait in poller.awaited.items():
                    owner_id = owner_of(shard, group, tp)
                    owner = group.members.get(owner_id) if owner_id is not None else None
                    clients = (waiting.client_id, "" if owner is None else owner.client_id)
                    labels: tuple[str, ...] = (group_id, *_labels(tp), *clients)
                    is_shown = group_id in shown and tp.topic in self._shown
                    waited_s = max(0.0, now_ms - wait.since_ms) / 1000
                    waits[labels] = (max(waited_s, waits.get(labels, (0.0, True))[0]), is_shown)
        for labels, (waited_s, is_shown) in waits.items():
            rows.add(labels, waited_s, is_shown=is_shown)
        yield from rows.families()
        yield None
