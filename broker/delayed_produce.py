"""Produce requests that wait: with acks=all for the high watermarks, with ``log.flush=ack`` for the disk.

With acks=all a permanent refusal is delayed too, while an in-sync replica may have a copy of the batch from an earlier
leader. A repeated batch that arrives before its turn waits for its turn (``retry_order``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias

from anabranch.broker.awaited_batches import SentBatch
from anabranch.broker.deferred import Deferred
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.retry_order import RetryOrder
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.memory_budget import MemoryBudget


class Awaited(ABC):
    """One partition's part of a produce request, whose answer is not final yet."""

    __slots__ = ("_sent", "answer", "partition")

    def __init__(self, partition: Partition, answer: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        self.partition = partition
        self.answer = answer
        """The answer; valid once ``settle`` has returned True."""
        self._sent = sent

    @abstractmethod
    def settle(self) -> bool:
        """Settle the answer if that is possible now. Returns whether it is final."""

    def refuse(self, code: ErrorCode) -> bool:
        """Answer with an error that makes the producer repeat the batch; always True."""
        if self._sent is not None:
            self._sent.refused(code)
        index = self.answer.index
        self.answer = PartitionProduceResponse(
            index=index, error_code=code, base_offset=NO_OFFSET, log_start_offset=NO_OFFSET
        )
        return True


Part: TypeAlias = PartitionProduceResponse | Awaited
"""A partition's answer, or the object that gets the answer later."""
Parts: TypeAlias = Sequence[tuple[str, Sequence[Part]]]
"""The parts of a request, by topic, in the order of the request."""


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
    """A batch that is in the log: the answer waits until the high watermark or the disk reaches the batch's end."""

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

    def settle(self) -> bool:
        code = self._appended.outcome()
        if code is None:
            return False
        if code is not ErrorCode.NONE:
            return self.refuse(code)
        if self._sent is not None and self.answer.base_offset >= 0:
            self._sent.acknowledged(self.partition.log.producers, self._appended.end_offset - 1)
        return True


class AwaitedInTerm(Awaited):
    """A part without a batch in the log. It is refused as soon as this broker no longer leads in the same term."""

    __slots__ = ("_term",)

    def __init__(self, partition: Partition, answer: PartitionProduceResponse, sent: SentBatch | None = None) -> None:
        super().__init__(partition, answer, sent)
        self._term = partition.term

    def settle(self) -> bool:
        partition = self.partition
        if not partition.leads_in(self._term):
            return self.refuse(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return self.settle_in_term() or (partition.failed and self.refuse(ErrorCode.KAFKA_STORAGE_ERROR))

    @abstractmethod
    def settle_in_term(self) -> bool:
        """Like ``settle``; called only while this broker leads the partition in the same term."""


class AwaitedRefusal(AwaitedInTerm):
    """A batch that is refused permanently: the refusal waits until no possible next leader has the batch.

    After the refusal the producer may write the records again, in another partition or with other sequences.
    """

    __slots__ = ()

    def park(self) -> None:
        """Note that the refusal waits: until it is sent, the producer may have to repeat the batch."""
        if self._sent is not None:
            self._sent.to_be_repeated()

    def settle_in_term(self) -> bool:
        if self.partition.is_followed:
            if self._sent is not None:
                self._sent.refused(ErrorCode.of(self.answer.error_code))
            return True
        return False


class AwaitedTurn(AwaitedInTerm):
    """A batch that arrived before its turn. It is appended in its turn, or refused with ``answer``."""

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
        """Appends the batch. This function keeps the batch in memory; None once the batch is not held any more."""
        self._appended: Part | None = None
        self._memory = memory
        self._held_bytes = held_bytes
        memory.hold(held_bytes)

    def take_turn(self) -> None:
        """Append the batch, unless it was answered already, for instance after a change of the leader."""
        if self._append is not None and not self.settle():
            self._appended = self._append()
            self._free()

    def end_with(self, purgatory: Purgatory, operation: DelayedProduce) -> None:
        """Let the purgatory end the hold at the hold's own deadline, which differs from the request's deadline."""
        purgatory.park(EndOfHold(self._held_until, self, operation))

    def let_go(self) -> None:
        """End the wait for the turn: the batch is answered with its refusal."""
        self._order.let_go(self)
        self._free()

    def _free(self) -> None:
        self._append = None
        self._memory.hold(-self._held_bytes)
        self._held_bytes = 0

    def settle_in_term(self) -> bool:
        appended = self._appended
        if appended is None:
            return self._append is None
        if isinstance(appended, Awaited):
            if not appended.settle():
                return False
            appended = appended.answer
        self.answer = appended
        return True


class EndOfHold(DelayedOperation):
    """Ends the hold of one batch at the hold's deadline. Other parts of the request may wait longer."""

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
    """Answers a produce request once all its parts have final answers, or its timeout is over."""

    __slots__ = ("_answer", "_parts", "_purgatory", "_waiting")

    def __init__(self, purgatory: Purgatory, deadline: float, waiting: Sequence[Awaited], parts: Parts) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = waiting
        self._parts = parts
        self._answer: Deferred[ProduceResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, waiting: Sequence[Awaited], parts: Parts
    ) -> Deferred[ProduceResponse]:
        """Watch the partitions of ``waiting``, a part of ``parts``. The returned answer is filled later."""
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
        left = [awaited for awaited in self._waiting if not awaited.settle()]
        self._watch_only(left)
        if not left:
            self._complete()

    def expire(self) -> None:
        for awaited in self._waiting:
            if not awaited.settle():
                awaited.refuse(ErrorCode.REQUEST_TIMED_OUT)
        self._watch_only([])
        self._complete()

    def _watch_only(self, left: Sequence[Awaited]) -> None:
        """Stop watching the partitions that have no part in ``left``; a request may name a partition more than once."""
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
