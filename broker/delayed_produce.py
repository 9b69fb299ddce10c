"""A produce that waits: with acks=all for the watermark of its partitions, with ``log.flush=ack`` for the disk.

With acks=all a refusal for good waits too, as long as a replica in sync may have the batch from an earlier leader. A
batch that was repeated before its turn waits for its turn (``retry_order``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from anabranch.broker.awaited_batches import SentBatch
from anabranch.broker.deferred import Deferred
from anabranch.broker.memory_budget import MemoryBudget
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.retry_order import RetryOrder
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse
from anabranch.protocol.types import TopicPartition


class Awaited(ABC):
    """One partition's part of a produce, and the answer that waits for its replicas."""

    __slots__ = ("_sent", "partition", "result")

    def __init__(self, partition: Partition, result: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        self.partition = partition
        self.result = result
        self._sent = sent

    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is an answer; errors go into ``result``."""

    def refuse(self, code: ErrorCode) -> bool:
        """Answer with an error, after which the batch is repeated; always True."""
        if self._sent is not None:
            self._sent.refused(code)
        self.result.error_code = code
        self.result.error_message = None
        self.result.record_errors = []
        self.result.base_offset = self.result.log_start_offset = -1
        return True


class AwaitedAppend(Awaited):
    """A batch that was appended, or had been before: the watermark or the disk is to reach its end."""

    __slots__ = ("_appended",)

    def __init__(
        self,
        partition: Partition,
        end_offset: int,
        result: PartitionProduceResponse,
        sent: SentBatch | None = None,
        *,
        all_in_sync: bool,
    ) -> None:
        super().__init__(partition, result, sent)
        self._appended = Appended(partition, end_offset, all_in_sync=all_in_sync)

    def is_done(self) -> bool:
        code = self._appended.outcome()
        return code is not None and (code is ErrorCode.NONE or self.refuse(code))


class AwaitedInTerm(Awaited):
    """A part without a batch in the log: it waits as long as the partition is led here in the same term."""

    __slots__ = ("_term",)

    def __init__(self, partition: Partition, result: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        super().__init__(partition, result, sent)
        self._term = partition.term

    def is_done(self) -> bool:
        partition = self.partition
        if not partition.leads_in(self._term):
            return self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self._has_answer() or (partition.failed and self.refuse(ErrorCode.KAFKA_STORAGE_ERROR))

    @abstractmethod
    def _has_answer(self) -> bool:
        """What is waited for; asked as long as the partition is led here in the same term."""


class AwaitedRefusal(AwaitedInTerm):
    """A batch refused for good, so that its producer may write it otherwise: nobody who may lead next is to have it."""

    __slots__ = ()

    def park(self) -> None:
        """It has to wait: until it is answered, the batch may be one to be repeated."""
        if self._sent is not None:
            self._sent.to_be_repeated()

    def _has_answer(self) -> bool:
        if self.partition.is_followed:
            if self._sent is not None:
                self._sent.refused(ErrorCode.of(self.result.error_code))
            return True
        return False


class AwaitedTurn(AwaitedInTerm):
    """A batch that came before its turn: it is appended when that comes, or else refused as ``result`` says."""

    __slots__ = ("_append", "_held_bytes", "_held_until", "_memory", "_order", "_rest")

    def __init__(
        self,
        partition: Partition,
        result: PartitionProduceResponse,
        order: RetryOrder,
        held_until: float,
        append: Callable[[list[Awaited]], PartitionProduceResponse],
        memory: MemoryBudget,
        held_bytes: int,
    ) -> None:
        super().__init__(partition, result)
        self._order = order
        self._held_until = held_until
        self._append: Callable[[list[Awaited]], PartitionProduceResponse] | None = append
        """Has the batch in memory; None once it is not held any more."""
        self._memory = memory
        self._held_bytes = held_bytes
        memory.hold(held_bytes)
        self._rest: list[Awaited] | None = None
        """What the answer waits for once it was appended."""

    def take_turn(self) -> None:
        """Append the batch, unless it is answered because the partition was led by another in between."""
        if self._append is not None and not self.is_done():
            rest: list[Awaited] = []
            appended = self._append(rest)
            for name in appended.FIELDS:
                setattr(self.result, name, getattr(appended, name))
            for awaited in rest:
                awaited.result = self.result
            self._rest = rest
            self._free()

    def end_with(self, purgatory: Purgatory, operation: DelayedProduce) -> None:
        """Have the purgatory end the hold in time, which is before that of the whole request."""
        purgatory.park(EndOfHold(self._held_until, self, operation))

    def let_go(self) -> None:
        """Answer without waiting for the turn any longer."""
        self._order.let_go(self)
        self._free()

    def _free(self) -> None:
        self._append = None
        self._memory.hold(-self._held_bytes)
        self._held_bytes = 0

    def _has_answer(self) -> bool:
        if self._rest is None:
            return self._append is None
        return all(awaited.is_done() for awaited in self._rest)


class EndOfHold(DelayedOperation):
    """Lets a batch go whose turn has not come; other parts of its request may wait longer."""

    __slots__ = ("_awaited", "_operation")

    def __init__(self, deadline: float, awaited: AwaitedTurn, operation: DelayedProduce) -> None:
        super().__init__(deadline)
        self._awaited = awaited
        self._operation = operation

    def expire(self) -> None:
        self.completed = True
        self._awaited.let_go()
        self._operation.partition_changed(self._awaited.partition.key)


class DelayedProduce(DelayedOperation):
    """Answers once every partition has what is waited for, lost its leader here, or the request's time is over."""

    __slots__ = ("_answer", "_purgatory", "_response", "_waiting")

    def __init__(
        self, purgatory: Purgatory, deadline: float, waiting: Sequence[Awaited], response: ProduceResponse
    ) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = waiting
        self._response = response
        self._answer: Deferred[ProduceResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, waiting: Sequence[Awaited], response: ProduceResponse
    ) -> Deferred[ProduceResponse]:
        """Watch the partitions of ``waiting``; the answer comes later."""
        operation = cls(purgatory, deadline, waiting, response)
        for awaited in waiting:
            awaited.partition.watchers[operation] = None
            if isinstance(awaited, AwaitedTurn):
                awaited.end_with(purgatory, operation)
        purgatory.park(operation)
        return operation._answer

    def partition_changed(self, _key: TopicPartition) -> None:
        self._purgatory.changed(self)

    def try_complete(self) -> None:
        left = [awaited for awaited in self._waiting if not awaited.is_done()]
        self._watch_only(left)
        if not left:
            self._complete()

    def expire(self) -> None:
        for awaited in self._waiting:
            if not awaited.is_done():
                awaited.refuse(ErrorCode.REQUEST_TIMED_OUT)
        self._watch_only([])
        self._complete()

    def _watch_only(self, left: Sequence[Awaited]) -> None:
        """A request may name a partition more than once: it is watched as long as one part of it waits."""
        if len(left) == len(self._waiting):
            return
        watched = {awaited.partition for awaited in left}
        for awaited in self._waiting:
            if awaited.partition not in watched:
                awaited.partition.watchers.pop(self, None)
        self._waiting = left

    def _complete(self) -> None:
        self.completed = True
        self._answer.fill(self._response)
