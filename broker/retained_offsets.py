"""Decides which records retention by time keeps in topics with ``ordered.delivery.retention.waits`` (hole 22).

The controller sends an order for each partition that another partition waits for: the first offset that some group has
not read, and the time for which the order lasts. If the controller does not renew an order, the order ends, so no order
of a crashed controller lasts for ever. At the beginning of each leader epoch the leader keeps all records for the time
of a lease, because the controller may have sent the order to the previous leader, or a resize that begins with this
epoch may add waits. A follower removes no records by time: its log begins where the leader's log begins.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator

import structlog

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.retention import NOTHING_RETAINED, RetainedSegments, RetainLease, retained
from anabranch.broker.log.segment_list import facts_of
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.generated.update_metadata import RetainedFrom, UpdateMetadataTopicState
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.metrics import LabelledGauge

logger = structlog.get_logger(__name__)
_EVERYTHING = 0


class RetainedOffsets:
    """The orders of one broker. They are kept in its partitions, and end with the leader epoch."""

    def __init__(
        self,
        hosted: Callable[[TopicPartition], Partition | None],
        clock: Clock,
        lease_ms: int,
        metrics: BrokerMetrics,
    ) -> None:
        self.hosted = hosted
        self._clock = clock
        self._lease_ms = lease_ms
        self._metrics = metrics

    def take_over(self, topics: Iterable[UpdateMetadataTopicState]) -> None:
        """Store the controller's orders. An order for another leader epoch than the present one is ignored."""
        for topic in topics:
            for state in topic.partition_states:
                if state.retained is not None:
                    self._take_over(
                        TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.retained
                    )

    def _take_over(self, key: TopicPartition, leader_epoch: int, retained: RetainedFrom) -> None:
        partition = self.hosted(key)
        if partition is not None and partition.is_leader and partition.leader_epoch == leader_epoch:
            partition.retain_lease = RetainLease(
                retained.offset, self._clock.monotonic() + retained.retained_ms / 1000, retained.group_id
            )

    def retained_from(self, log: PartitionLog) -> int:
        """The first offset that retention by time keeps."""
        partition = self.hosted(log.partition)
        if not log.config.ordered_delivery_retention_waits:
            if partition is not None:
                partition.retain_lease = None
            return NOTHING_RETAINED
        if partition is None or not partition.is_leader:
            return _EVERYTHING
        now = self._clock.monotonic()
        if partition.retain_lease is None:
            partition.retain_lease = RetainLease(_EVERYTHING, now + self._lease_ms / 1000)
        return partition.retain_lease.offset if now < partition.retain_lease.until else NOTHING_RETAINED

    def expired(self, log: PartitionLog, start_offset: int) -> None:
        """Let followers remove the records that retention removed from ``start_offset`` on. Warn of awaited ones."""
        partition = self.hosted(log.partition)
        if partition is None or not partition.is_leader or not log.config.ordered_delivery_retention_waits:
            return
        partition.notify()
        first, end = max(start_offset, self.retained_from(log)), log.log_start_offset
        if first >= end or partition.retain_lease is None or partition.retain_lease.group is None:
            return
        group = partition.retain_lease.group
        self._metrics.retained_records_removed.add(log.partition.topic, group, by=end - first)
        logger.warning(
            "retention.removed_what_is_waited_for",
            partition=str(log.partition),
            group=group,
            first_offset=first,
            end_offset=end,
            waited_ms=log.config.ordered_delivery_retention_waits_max_ms,
            retention_bytes=log.config.retention_bytes,
        )

    def retained(self, log: PartitionLog) -> tuple[RetainLease, RetainedSegments] | None:
        """The records older than ``retention.ms`` that an order keeps in a log led here; None if none are known."""
        partition = self.hosted(log.partition)
        if partition is None or not partition.is_leader or log.is_broken:
            return None
        retained_from = self.retained_from(log)
        if retained_from == NOTHING_RETAINED or partition.retain_lease is None:
            return None
        try:
            facts = facts_of(log.segments, log.log_end_offset)
        except OSError as error:
            logger.warning("retention.retained_not_known", partition=str(log.partition), error=str(error))
            return None
        now_ms = self._clock.now_ms()
        found = retained(facts, log.config, now_ms, log.high_watermark, log.log_start_offset, retained_from)
        return None if found is None else (partition.retain_lease, found)

    def by_group(self, logs: Iterable[PartitionLog]) -> Iterator[tuple[tuple[str, str], RetainedSegments]]:
        """``((topic, group), retained)`` for each log; the group is "" if it is not known."""
        for log in logs:
            kept = self.retained(log) if log.config.ordered_delivery_retention_waits else None
            if kept is not None:
                yield (log.partition.topic, kept[0].group or ""), kept[1]


def retained_gauges(offsets: RetainedOffsets, logs: Callable[[], Iterable[PartitionLog]]) -> list[LabelledGauge]:
    """Gauges of the records retained in partitions led here, by topic and group."""

    def gauge(name: str, value: Callable[[RetainedSegments], float], join: Callable[..., float]) -> LabelledGauge:
        def compute() -> dict[tuple[str, ...], float]:
            found: dict[tuple[str, ...], float] = {}
            for labels, records in offsets.by_group(logs()):
                found[labels] = join(found[labels], value(records)) if labels in found else value(records)
            return found

        return LabelledGauge(BROKER_METRICS[f"anabranch_retained_{name}"], compute)

    return [
        gauge(
            "records",
            lambda retained: retained.end_offset - retained.start_offset,
            operator.add,
        ),
        gauge(
            "bytes",
            lambda retained: retained.size_bytes,
            operator.add,
        ),
        gauge(
            "since_seconds",
            lambda retained: retained.since_ms / 1000,
            min,
        ),
    ]
