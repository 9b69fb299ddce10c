"""A produce that waits: with acks=all for the watermark of its partitions, with ``log.flush=ack`` for the disk.

With acks=all a refusal for good waits too, as long as a replica in sync may have the batch from an earlier leader. A
batch that was repeated before its turn waits for its turn (``retry_order``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from anabranch.broker.awaited_batches import SentBatch
from anabranch.broker.deferred import Deferred
from anabranch.broker.memory_budget import MemoryBudget
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.retry_order import RetryOrder
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from anabranch.protocol.types import TopicPartition


class Awaited(ABC):
    """One partition's part of a produce, and the answer that waits for its replicas."""

    __slots__ = ("_sent", "answer", "partition")

    def __init__(self, partition: Partition, answer: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        self.partition = partition
        self.answer = answer
        """It counts once this is done."""
        self._sent = sent

    @abstractmethod
    def is_done(self) -> bool:
        """Whether there is an answer."""

    def refuse(self, code: ErrorCode) -> bool:
        """Answer with an error, after which the batch is repeated; always True."""
        if self._sent is not None:
            self._sent.refused(code)
        index = self.answer.index
        self.answer = PartitionProduceResponse(index=index, error_code=code, base_offset=-1, log_start_offset=-1)
        return True


Part: TypeAlias = PartitionProduceResponse | Awaited
"""A partition's answer, or what has it later."""
Parts: TypeAlias = Sequence[tuple[str, Sequence[Part]]]
"""Those of a request, by topic, in the order of the request."""


def waiting_of(parts: Parts) -> list[Awaited]:
    """The parts without an answer yet."""
    return [part for _, of_topic in parts for part in of_topic if isinstance(part, Awaited)]


def answer_of(parts: Parts) -> ProduceResponse:
    """The answer to a request whose parts are all done."""
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic,
                partition_responses=[part.answer if isinstance(part, Awaited) else part for part in of_topic],
            )
            for topic, of_topic in parts
        ]
    )


class AwaitedAppend(Awaited):
    """A batch that was appended, or had been before: the watermark or the disk is to reach its end."""

    __slots__ = ("_appended",)

    def __init__(
        self,
        partition: Partition,
        end_offset: int,
        answer: PartitionProduceResponse,
        sent: SentBatch | None = None,
        *,
        all_in_sync: bool,
    ) -> None:
        super().__init__(partition, answer, sent)
        self._appended = Appended(partition, end_offset, all_in_sync=all_in_sync)

    def is_done(self) -> bool:
        code = self._appended.outcome()
        return code is not None and (code is ErrorCode.NONE or self.refuse(code))


class AwaitedInTerm(Awaited):
    """A part without a batch in the log: it waits as long as the partition is led here in the same term."""

    __slots__ = ("_term",)

    def __init__(self, partition: Partition, answer: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        super().__init__(partition, answer, sent)
        self._term = partition.term

    def is_done(self) -> bool:
        partition = self.partition
        if not partition.leads_in(self._term):
            return self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.has_answer() or (partition.failed and self.refuse(ErrorCode.KAFKA_STORAGE_ERROR))

    @abstractmethod
    def has_answer(self) -> bool:
        """What is waited for; asked as long as the partition is led here in the same term."""


class AwaitedRefusal(AwaitedInTerm):
    """A batch refused for good, so that its producer may write it otherwise: nobody who may lead next is to have it."""

    __slots__ = ()

    def park(self) -> None:
        """It has to wait: until it is answered, the batch may be one to be repeated."""
        if self._sent is not None:
            self._sent.to_be_repeated()

    def has_answer(self) -> bool:
        if self.partition.is_followed:
            if self._sent is not None:
                self._sent.refused(ErrorCode.of(self.answer.error_code))
            return True
        return False


class AwaitedTurn(AwaitedInTerm):
    """A batch that came before its turn: it is appended when that comes, or else refused by ``answer``."""

    __slots__ = ("_append", "_appended", "_held_bytes", "_held_until", "_memory", "_order")

    def __init__(
        self,
        partition: Partition,
        refusal: PartitionProduceResponse,
        order: RetryOrder,
        held_until: float,
        append: Callable[[], Part],
        memory: MemoryBudget,
        held_bytes: int,
    ) -> None:
        super().__init__(partition, refusal)
        self._order = order
        self._held_until = held_until
        self._append: Callable[[], Part] | None = append
        """Has the batch in memory; None once it is not held any more."""
        self._appended: Part | None = None
        self._memory = memory
        self._held_bytes = held_bytes
        memory.hold(held_bytes)

    def take_turn(self) -> None:
        """Append the batch, unless it is answered because the partition was led by another in between."""
        if self._append is not None and not self.is_done():
            self._appended = self._append()
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

    def has_answer(self) -> bool:
        appended = self._appended
        if appended is None:
            return self._append is None
        if isinstance(appended, Awaited):
            if not appended.is_done():
                return False
            appended = appended.answer
        self.answer = appended
        return True


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

    __slots__ = ("_answer", "_parts", "_purgatory", "_waiting")

    def __init__(self, purgatory: Purgatory, deadline: float, waiting: Sequence[Awaited], parts: Parts) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = waiting
        self._parts = parts
        self._answer: Deferred[ProduceResponse] = Deferred()

    @classmethod
    def park(cls, purgatory: Purgatory, deadline: float, parts: Parts) -> Deferred[ProduceResponse]:
        """Watch the partitions of the parts that wait; the answer comes later."""
        waiting = waiting_of(parts)
        operation = cls(purgatory, deadline, waiting, parts)
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
        self._answer.fill(answer_of(self._parts))
