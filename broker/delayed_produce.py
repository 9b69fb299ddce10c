"""Produce requests that wait: with acks=all for the high watermarks, with ``log.flush=ack`` for the disk.

With acks=all a permanent refusal is delayed too, while an in-sync replica may have a copy of the batch from an earlier
leader. ``stock/parked_batch`` is one more part that waits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from anabranch.broker.deferred import Deferred
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition


class AnswerListener(Protocol):
    """A batch of an idempotent producer. It notes what the producer is answered (``stock/order_with_idempotence``)."""

    def acknowledged(self, producers: ProducerState, last_offset: int) -> None:
        """Note that the batch, which ends at ``last_offset``, is answered with success."""

    def refused(self, code: ErrorCode) -> None:
        """Note that the batch is answered with an error."""

    def to_be_repeated(self) -> None:
        """Note that the producer may repeat the batch."""


class Awaited(ABC):
    """One partition's part of a produce request, whose answer is not final yet."""

    __slots__ = ("_sent", "answer", "partition")

    def __init__(
        self, partition: Partition, answer: PartitionProduceResponse, sent: AnswerListener | None = None
    ) -> None:
        self.partition = partition
        self.answer = answer
        """The answer; valid once ``settle`` has returned True."""
        self._sent = sent

    @abstractmethod
    def settle(self) -> bool:
        """Settle the answer if that is possible now. Returns whether it is final."""

    def waits_in(self, purgatory: Purgatory, operation: DelayedProduce) -> None:  # noqa: B027 - most parts do nothing
        """Called once when ``operation`` begins to wait for this part."""

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


class Place(NamedTuple):
    """The place of a part's answer in the response to a request."""

    answers: list[PartitionProduceResponse]
    at: int
    part: Awaited


class AwaitedAppend(Awaited):
    """A batch that is in the log: the answer waits until the high watermark or the disk reaches the batch's end."""

    __slots__ = ("_appended",)

    def __init__(
        self,
        partition: Partition,
        end_offset: int,
        answer: PartitionProduceResponse,
        sent: AnswerListener | None = None,
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

    def __init__(
        self, partition: Partition, answer: PartitionProduceResponse, sent: AnswerListener | None = None
    ) -> None:
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


class DelayedProduce(DelayedOperation):
    """Answers a produce request once all its parts have final answers, or its timeout is over."""

    __slots__ = ("_answer", "_places", "_purgatory", "_response", "_waiting")

    is_checked_at_once = True

    def __init__(
        self, purgatory: Purgatory, deadline: float, places: Sequence[Place], response: ProduceResponse
    ) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = [place.part for place in places]
        self._places = places
        self._response = response
        self._answer: Deferred[ProduceResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, places: Sequence[Place], response: ProduceResponse
    ) -> Deferred[ProduceResponse]:
        """Watch the partitions of the parts that wait. Their answers are put into ``response``, the returned answer."""
        operation = cls(purgatory, deadline, places, response)
        for awaited in operation._waiting:
            awaited.partition.watchers[operation] = None
            awaited.waits_in(purgatory, operation)
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

    def _watch_only(self, left: list[Awaited]) -> None:
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
        for answers, at, part in self._places:
            answers[at] = part.answer
        self._answer.fill(self._response)
