"""Decides which records retention by time keeps in topics with ``ordered.delivery.retention.waits`` (hole 22).

The controller sends a hold for each partition that another partition waits for: the first offset that some group has
not read, and the time for which the hold lasts. If the controller does not renew a hold, the hold ends, so no hold of a
crashed controller lasts for ever. At the beginning of each leader epoch the leader keeps all records for the time of a
lease, because the controller may have sent the hold to the previous leader, or a resize that begins with this epoch may
add waits. A follower removes no records by time: its log begins where the leader's log begins.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator

import structlog

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.retention import NOTHING_HELD, HeldBack, Hold, held_back
from anabranch.broker.log.segment_list import facts_of
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.generated.update_metadata import HeldRecords, UpdateMetadataTopicState
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock
from anabranch.runtime.metrics import LabelledGauge

logger = structlog.get_logger(__name__)
_EVERYTHING = 0


class RetentionHolds:
    """The holds of one broker. They are kept in its partitions, and end with the leader epoch."""

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
        """Store the controller's holds. If a hold is for another leader epoch than the present one, it is ignored."""
        for topic in topics:
            for state in topic.partition_states:
                if state.held is not None:
                    self._take_over(
                        TopicPartition(topic.topic_name, state.partition_index), state.leader_epoch, state.held
                    )

    def _take_over(self, key: TopicPartition, leader_epoch: int, held: HeldRecords) -> None:
        partition = self.hosted(key)
        if partition is not None and partition.is_leader and partition.leader_epoch == leader_epoch:
            partition.retention_hold = Hold(held.offset, self._clock.monotonic() + held.held_ms / 1000, held.group_id)

    def held_from(self, log: PartitionLog) -> int:
        """The first offset that retention by time keeps."""
        partition = self.hosted(log.partition)
        if not log.config.ordered_delivery_retention_waits:
            if partition is not None:
                partition.retention_hold = None
            return NOTHING_HELD
        if partition is None or not partition.is_leader:
            return _EVERYTHING
        now = self._clock.monotonic()
        if partition.retention_hold is None:
            partition.retention_hold = Hold(_EVERYTHING, now + self._lease_ms / 1000)
        return partition.retention_hold.offset if now < partition.retention_hold.until else NOTHING_HELD

    def expired(self, log: PartitionLog, start_offset: int) -> None:
        """Let followers remove the records that retention removed from ``start_offset`` on. Warn if some were held."""
        partition = self.hosted(log.partition)
        if partition is None or not partition.is_leader or not log.config.ordered_delivery_retention_waits:
            return
        partition.notify()
        first, end = max(start_offset, self.held_from(log)), log.log_start_offset
        if first >= end or partition.retention_hold is None or partition.retention_hold.group is None:
            return
        group = partition.retention_hold.group
        self._metrics.held_records_removed.add(log.partition.topic, group, by=end - first)
        logger.warning(
            "retention.removed_what_is_waited_for",
            partition=str(log.partition),
            group=group,
            first_offset=first,
            end_offset=end,
            waited_ms=log.config.ordered_delivery_retention_waits_max_ms,
            retention_bytes=log.config.retention_bytes,
        )

    def held_back(self, log: PartitionLog) -> tuple[Hold, HeldBack] | None:
        """The records older than ``retention.ms`` that a hold keeps in a log led here; None if none are known."""
        partition = self.hosted(log.partition)
        if partition is None or not partition.is_leader or log.is_broken:
            return None
        held_from = self.held_from(log)
        if held_from == NOTHING_HELD or partition.retention_hold is None:
            return None
        try:
            facts = facts_of(log.segments, log.log_end_offset)
        except OSError as error:
            logger.warning("retention.held_not_known", partition=str(log.partition), error=str(error))
            return None
        now_ms = self._clock.now_ms()
        found = held_back(facts, log.config, now_ms, log.high_watermark, log.log_start_offset, held_from)
        return None if found is None else (partition.retention_hold, found)

    def by_group(self, logs: Iterable[PartitionLog]) -> Iterator[tuple[tuple[str, str], HeldBack]]:
        """``((topic, group), held back)`` for each log; the group is "" if it is not known."""
        for log in logs:
            held = self.held_back(log) if log.config.ordered_delivery_retention_waits else None
            if held is not None:
                yield (log.partition.topic, held[0].group or ""), held[1]


def held_gauges(holds: RetentionHolds, logs: Callable[[], Iterable[PartitionLog]]) -> list[LabelledGauge]:
    """Gauges of the records held back in partitions led here, by topic and group."""

    def gauge(name: str, what: str, value: Callable[[HeldBack], float], join: Callable[..., float]) -> LabelledGauge:
        def compute() -> dict[tuple[str, ...], float]:
            found: dict[tuple[str, ...], float] = {}
            for labels, held in holds.by_group(logs()):
                found[labels] = join(found[labels], value(held)) if labels in found else value(held)
            return found

        return LabelledGauge(f"anabranch_retention_held_{name}", what, compute, "topic", "group")

    return [
        gauge(
            "records",
            "Offsets older than retention.ms that partitions led here keep, because the group has not read all of them",
            lambda held: held.end_offset - held.start_offset,
            operator.add,
        ),
        gauge(
            "bytes",
            "Bytes older than retention.ms that partitions led here keep, because the group has not read all of them",
            lambda held: held.size_bytes,
            operator.add,
        ),
        gauge(
            "since_seconds",
            "The time at which retention would have removed the oldest kept record, in seconds since 1970",
            lambda held: held.since_ms / 1000,
            min,
        ),
    ]
