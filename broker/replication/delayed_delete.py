"""A DeleteRecords that waits until every live replica has raised its log start (KIP-107)."""

from __future__ import annotations

from anabranch.broker.deferred import Deferred
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_records import DeleteRecordsPartitionResult, DeleteRecordsResponse
from anabranch.protocol.types import TopicPartition

Waiting = list[tuple[Partition, int, DeleteRecordsPartitionResult]]
"""Partition, the log start every replica must reach, the answer for it."""


class DelayedDelete(DelayedOperation):
    """Answers once the records are deleted everywhere, the leader changes, or the request times out."""

    __slots__ = ("_answer", "_purgatory", "_response", "_waiting")

    def __init__(
        self, purgatory: Purgatory, deadline: float, waiting: Waiting, response: DeleteRecordsResponse
    ) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = waiting
        self._response = response
        self._answer: Deferred[DeleteRecordsResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, waiting: Waiting, response: DeleteRecordsResponse
    ) -> Deferred[DeleteRecordsResponse]:
        """Watch the partitions of ``waiting``; the answer is filled later, at once if there is nothing to wait for."""
        operation = cls(purgatory, deadline, waiting, response)
        for partition, _, _ in waiting:
            partition.watchers[operation] = None
        operation.try_complete()
        if not operation.completed:
            purgatory.park(operation)
        return operation._answer

    def partition_changed(self, _key: TopicPartition) -> None:
        self._purgatory.changed(self)

    def try_complete(self) -> None:
        self._waiting = [item for item in self._waiting if not self._settle(*item)]
        if not self._waiting:
            self._complete()

    def _settle(self, partition: Partition, offset: int, result: DeleteRecordsPartitionResult) -> bool:
        result.low_watermark = partition.low_watermark
        if not partition.is_leader:
            result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            result.low_watermark = -1
        elif result.low_watermark < offset:
            return False
        partition.watchers.pop(self, None)
        return True

    def expire(self) -> None:
        for partition, offset, result in self._waiting:
            if not self._settle(partition, offset, result):
                partition.watchers.pop(self, None)
                result.error_code = ErrorCode.REQUEST_TIMED_OUT
                result.low_watermark = -1
        self._complete()

    def _complete(self) -> None:
        self.completed = True
        self._answer.fill(self._response)
