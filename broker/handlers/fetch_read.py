"""The reading part of a fetch: it reads the partitions within the limits and builds the response."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, NamedTuple

from anabranch.broker.log.cold_reads import TRIES, ColdError
from anabranch.broker.log.partition_log import LogRead
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.fetch_session import FetchedPartition, FetchTarget
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.broker.replication.throttle import ReplicationQuota
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)
from anabranch.protocol.sentinels import DEBUGGING_CONSUMER_REPLICA_ID, INVALID_SESSION_ID, NO_OFFSET
from anabranch.protocol.types import TopicPartition


class ReadLimits(NamedTuple):
    """The limits of a fetch. ``full``: whether the response has every partition, not only the changed partitions."""

    replica_id: int
    replica_epoch: int
    max_bytes: int
    read_committed: bool
    full: bool
    reports_divergence: bool
    is_stock: bool = False
    """Whether the reader is a consumer that does not keep the order of keys itself."""

    @property
    def is_follower(self) -> bool:
        return self.replica_id >= 0


class FetchRead:
    """One fetch: ``run`` reads the dirty partitions, and may be called again when there are more records."""

    __slots__ = (
        "_diverges",
        "_is_follower",
        "_metrics",
        "_offset_counts",
        "_replicas",
        "_results",
        "_throttle",
        "_unwatched",
        "limits",
        "must_answer",
        "size_bytes",
        "target",
        "withheld",
    )

    def __init__(
        self,
        replicas: ReplicaManager,
        throttle: ReplicationQuota,
        metrics: BrokerMetrics,
        target: FetchTarget,
        limits: ReadLimits,
    ) -> None:
        self._replicas = replicas
        self._throttle = throttle
        self._metrics = metrics
        self.limits = limits
        self._is_follower = limits.is_follower
        self._results: dict[TopicPartition, PartitionData | ErrorCode] = {}
        """A refused partition has only its error here: a request may name very many that do not exist."""
        self._offset_counts: dict[TopicPartition, int] = {}
        """The number of offsets in the records of each result."""
        self.target = target
        target.read_up_to(log_end=limits.is_follower or limits.replica_id == DEBUGGING_CONSUMER_REPLICA_ID)
        self.withheld: set[TopicPartition] = set()
        """Partitions whose records are withheld from the consumer, to keep the order of keys."""
        self._unwatched: list[Partition] = []
        """The partitions that were read while the target did not watch any."""
        self.size_bytes = 0
        self.must_answer = False
        """Whether there is an error or a diverging epoch, so that the fetch does not wait."""
        self._diverges = False

    @property
    def has_only_errors(self) -> bool:
        """Whether the response has an error and nothing for which the reader waits."""
        return self.must_answer and not self._diverges and not self.size_bytes

    @property
    def is_mostly_refused(self) -> bool:
        """Whether more than half of the partitions have an error."""
        refused = sum(isinstance(result, ErrorCode) for result in self._results.values())
        return 2 * refused > len(self.target.partitions)

    def run(self, *, waits: bool = True) -> None:
        """Read every dirty partition again. The first partition with records gives at least one batch of any size.

        Raises ``ColdError`` unless it ``waits``: the fetch may be read again.
        """
        for key in self._begin():
            self._look_at(key, waits)

    def run_in_steps(self) -> Generator[ColdError | None, None, None]:
        """Like ``run``, but one partition a step. A partition that changes in between is dirty again.

        If a partition's look-ups would have to wait for the disk, yields a ``ColdError``: await its ``warm`` before the
        next step.
        """
        for key in self._begin():
            for tried in range(TRIES + 1):
                try:
                    self._look_at(key, tried == TRIES)
                    break
                except ColdError as cold:
                    yield cold
            yield None

    def _begin(self) -> list[TopicPartition]:
        dirty = self.target.dirty
        self.target.has_changed = False
        results = self._results
        self.size_bytes = sum([_size(results[key]) for key in results if key not in dirty]) if results else 0
        return list(dirty)

    def _look_at(self, key: TopicPartition, waits: bool) -> None:
        state = self.target.partitions.get(key)
        if state is None:
            self.target.dirty.pop(key, None)
            return
        result = self.read_partition(key, state, waits)
        self._results[key] = result
        size = _size(result)
        self.size_bytes += size
        if isinstance(result, ErrorCode):
            self.must_answer = True
        elif result.diverging_epoch is not None:
            self.must_answer = self._diverges = True
        elif not size and not state.is_cut_short:
            self.target.dirty.pop(key, None)  # the result stays in the response: the watermark may have changed

    def read_partition(self, key: TopicPartition, state: FetchedPartition, waits: bool) -> PartitionData | ErrorCode:
        try:
            partition = self._replicas.leader(key, state.current_leader_epoch)
            replica_id = self.limits.replica_id
            if self._is_follower and replica_id not in partition.replicas:
                raise KafkaError(
                    ErrorCode.REPLICA_NOT_AVAILABLE,
                    f"{partition.key}: broker {replica_id} is not among the replicas {list(partition.replicas)}",
                )
            diverging = self._diverging(partition, state)
            end = self._end_for_reader(partition, state)
            read = self.read_log(partition, state, end, waits) if diverging is None else None
            if read is not None:
                self._offset_counts[key] = read.offset_count
            self._watch(partition)  # comes last: this result has the watermark that this fetch moved
            return self._result(key, partition, end, read, diverging)
        except KafkaError as error:
            partition_or_none = self._replicas.hosted(key)
            if partition_or_none is not None:
                self._watch(partition_or_none)
                if partition_or_none.log.is_broken:
                    partition_or_none.fail()  # so that another replica leads it
            return error.code

    def _watch(self, partition: Partition) -> None:
        if self.target.watches:
            self.target.watch(partition)
        else:
            self._unwatched.append(partition)

    def watch(self) -> None:
        """Watch the partitions that were read, and those that will be, because other work follows before the answer."""
        self.target.watches = True
        for partition in self._unwatched:
            self.target.watch(partition)
        self._unwatched.clear()

    def read_log(self, partition: Partition, state: FetchedPartition, end: int | None, waits: bool) -> LogRead:
        log = partition.log
        limits = self.limits
        offset = state.fetch_offset
        max_bytes = max(0, min(state.max_bytes, limits.max_bytes - self.size_bytes))
        at_least_one = self.size_bytes == 0
        is_throttled = False
        if self._is_follower:
            upper_bound = log.log_end_offset
            if not log.log_start_offset <= offset <= upper_bound:
                outside = f"fetch offset {offset} is outside [{log.log_start_offset}, {upper_bound}]"
                raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition.key}: {outside}")
            if state.is_new:
                self._note_progress(partition, state)
            in_sync = limits.replica_id in partition.isr
            is_throttled = not in_sync and self._throttle.is_throttled(partition.key)
            if is_throttled:
                max_bytes, at_least_one = 0, False
        elif limits.replica_id == DEBUGGING_CONSUMER_REPLICA_ID:
            upper_bound = log.log_end_offset
        else:
            offset = partition.readable_offset(offset)
            # A new leader's watermark lags: a consumer above the watermark has to wait.
            upper_bound = log.last_stable_offset if limits.read_committed else log.high_watermark
            if end is not None:
                upper_bound = min(upper_bound, end)
            self._note_withheld(
                partition.key, is_withheld=end is not None and upper_bound <= offset < log.high_watermark
            )
        read = log.read(
            offset,
            max_bytes,
            upper_bound=upper_bound,
            at_least_one=at_least_one,
            include_aborted=limits.read_committed,
            waits=waits,
        )
        state.is_cut_short = is_throttled or (offset < upper_bound and not at_least_one and not read.records)
        return read

    def _end_for_reader(self, partition: Partition, state: FetchedPartition) -> int | None:
        """The offset at which the log ends for a stock consumer; None if nothing is withheld from this reader.

        If a reader is above the first withheld offset, the log ends at its fetch offset.
        """
        withheld_from = partition.end_for_stock() if self.limits.is_stock else None
        return None if withheld_from is None else max(withheld_from, state.fetch_offset)

    def _note_withheld(self, key: TopicPartition, *, is_withheld: bool) -> None:
        if is_withheld:
            self.withheld.add(key)
        else:
            self.withheld.discard(key)

    def _note_progress(self, partition: Partition, state: FetchedPartition) -> None:
        """Note a follower's fetch offset as its log end, unless the follower diverges (KAFKA-13141)."""
        state.is_new = False
        limits = self.limits
        partition.follower_fetched(
            limits.replica_id, limits.replica_epoch, state.fetch_offset, state.follower_log_start_offset
        )

    def _diverging(self, partition: Partition, state: FetchedPartition) -> EpochEndOffset | None:
        if state.last_fetched_epoch < 0 or not self.limits.reports_divergence:
            return None
        epoch, end_offset = partition.log.end_offset_for_epoch(state.last_fetched_epoch)
        if epoch < 0 or end_offset < 0:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{partition.key}: the last fetched epoch {state.last_fetched_epoch} is above the log's latest epoch "
                f"{partition.log.leader_epoch_cache.latest_epoch}",
            )
        if epoch < state.last_fetched_epoch or end_offset < state.fetch_offset:
            return EpochEndOffset(epoch=epoch, end_offset=end_offset)
        return None

    def _result(
        self,
        key: TopicPartition,
        partition: Partition,
        end: int | None,
        read: LogRead | None,
        diverging: EpochEndOffset | None,
    ) -> PartitionData:
        log, aborted = partition.log, None
        if read is not None and read.aborted_transactions is not None:
            aborted = [
                AbortedTransaction(producer_id=txn.producer_id, first_offset=txn.first_offset)
                for txn in read.aborted_transactions
            ]
        high_watermark, last_stable_offset = log.high_watermark, log.last_stable_offset
        if end is not None:
            high_watermark, last_stable_offset = min(high_watermark, end), min(last_stable_offset, end)
        return PartitionData(
            partition_index=key.partition,
            high_watermark=high_watermark,
            last_stable_offset=last_stable_offset,
            log_start_offset=log.log_start_offset,
            diverging_epoch=diverging,
            aborted_transactions=aborted,
            records=b"" if read is None else read.records,
        )

    def response(self) -> FetchResponse:
        """The response. Partitions with records move to the end of the session's queue, so that each gets its turn."""
        topics: dict[str, list[PartitionData]] = {}
        for key, found in self._results.items():
            self._respond(key, found, topics)
        return self._whole(topics)

    def response_in_steps(self) -> Generator[None, None, FetchResponse]:
        """Like ``response``, but one partition a step. What is not needed any more is freed in the same steps."""
        topics: dict[str, list[PartitionData]] = {}
        keys = list(reversed(self._results))
        while keys:
            key = keys.pop()
            self._respond(key, self._results.pop(key), topics)
            yield
        return self._whole(topics)

    def _respond(self, key: TopicPartition, found: PartitionData | ErrorCode, topics: dict[str, list[Any]]) -> None:
        """Add the result of a partition to the response, if the response has to have it."""
        target, metrics = self.target, self._metrics
        state = target.partitions.get(key)
        if state is None:
            return
        is_session = target.session_id != INVALID_SESSION_ID
        if not is_session and target.watches:
            target.forget([key])
        size = _size(found)
        result = _refused(key, found) if isinstance(found, ErrorCode) else found
        news = size or result.error_code or result.diverging_epoch is not None
        if not (self.limits.full or news or _is_news(state, result)):
            return
        topics.setdefault(key.topic, []).append(result)
        metrics.note_fetched(key.topic, result.error_code, size, is_follower=self._is_follower)
        state.high_watermark = result.high_watermark
        state.log_start_offset = result.log_start_offset
        if size:
            if self._is_follower:
                self._throttle.used(key, size)
            else:
                metrics.note_consumed(key.topic, self._offset_counts[key])
            if is_session:
                target.dirty.pop(key, None)
                target.dirty[key] = None

    def _whole(self, topics: dict[str, list[PartitionData]]) -> FetchResponse:
        target = self.target
        if target.session_id == INVALID_SESSION_ID and target.watches:
            target.close()
        return FetchResponse(
            session_id=target.session_id,
            responses=[FetchableTopicResponse(topic=topic, partitions=results) for topic, results in topics.items()],
        )


def _refused(key: TopicPartition, error: ErrorCode) -> PartitionData:
    return PartitionData(
        partition_index=key.partition,
        error_code=error,
        high_watermark=NO_OFFSET,
        aborted_transactions=None,
        records=b"",
    )


def _size(result: PartitionData | ErrorCode) -> int:
    return 0 if isinstance(result, ErrorCode) or result.records is None else len(result.records)


def _is_news(state: FetchedPartition, result: PartitionData) -> bool:
    """Whether the watermark or the log start differs from the session's last answer."""
    return result.high_watermark != state.high_watermark or result.log_start_offset != state.log_start_offset
