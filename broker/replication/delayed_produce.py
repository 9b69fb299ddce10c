"""A produce with acks=all that waits for the high watermark of its partitions."""

from __future__ import annotations

from broker.deferred import Deferred
from broker.replication.partition import Partition
from broker.replication.purgatory import DelayedOperation, Purgatory
from protocol.errors import ErrorCode
from protocol.generated.produce import PartitionProduceResponse, ProduceResponse
from protocol.types import TopicPartition

Waiting = list[tuple[Partition, int, PartitionProduceResponse]]
"""Partition, the offset its high watermark must reach, the answer for it."""


class DelayedProduce(DelayedOperation):
    """Answers once every partition has reached its offset, lost its leader here, or the request's time is over."""

    __slots__ = ("_answer", "_purgatory", "_response", "_waiting")

    def __init__(self, purgatory: Purgatory, deadline: float, waiting: Waiting, response: ProduceResponse) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = waiting
        self._response = response
        self._answer: Deferred[ProduceResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, waiting: Waiting, response: ProduceResponse
    ) -> Deferred[ProduceResponse]:
        """Watch the partitions of ``waiting``; the answer comes later."""
        operation = cls(purgatory, deadline, waiting, response)
        for partition, _, _ in waiting:
            partition.watchers[operation] = None
        purgatory.park(operation)
        return operation._answer

    def partition_changed(self, _key: TopicPartition) -> None:
        self._purgatory.changed(self)

    def try_complete(self) -> None:
        left: Waiting = []
        for partition, offset, result in self._waiting:
            if partition.log.high_watermark >= offset:
                partition.watchers.pop(self, None)
            elif not partition.is_leader:
                partition.watchers.pop(self, None)
                result.error_code = ErrorCode.NOT_LEADER_OR_FOLLOWER
                result.base_offset = -1
            else:
                left.append((partition, offset, result))
        self._waiting = left
        if not left:
            self._complete()

    def expire(self) -> None:
        for partition, _, result in self._waiting:
            partition.watchers.pop(self, None)
            result.error_code = ErrorCode.REQUEST_TIMED_OUT
            result.base_offset = -1
        self._complete()

    def _complete(self) -> None:
        self.completed = True
        self._answer.fill(self._response)
