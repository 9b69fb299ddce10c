"""DeleteRecords requests that wait until every live replica has raised its log start (KIP-107)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.broker.deferred import Deferred
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_records import DeleteRecordsResponse
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition


@dataclass(frozen=True, eq=False, slots=True)
class RecordDeletion:
    """A deletion of records that the partition's leader has made, and that the other replicas have to make."""

    partition: Partition
    log_start_offset: int
    """The log start that every replica has to reach."""


class Deleted(NamedTuple):
    """The outcome of a deletion in one partition."""

    error_code: ErrorCode
    low_watermark: int = NO_OFFSET


Respond = Callable[[Mapping[RecordDeletion, Deleted]], DeleteRecordsResponse]
"""Makes the response from the outcome of each deletion."""


class DelayedDelete(DelayedOperation):
    """Answers once the records are deleted everywhere, the leader changes, or the request times out."""

    __slots__ = ("_answer", "_outcomes", "_purgatory", "_respond", "_waiting")

    def __init__(
        self, purgatory: Purgatory, deadline: float, deletions: list[RecordDeletion], respond: Respond
    ) -> None:
        super().__init__(deadline)
        self._purgatory = purgatory
        self._waiting = deletions
        self._respond = respond
        self._outcomes: dict[RecordDeletion, Deleted] = {}
        self._answer: Deferred[DeleteRecordsResponse] = Deferred()

    @classmethod
    def park(
        cls, purgatory: Purgatory, deadline: float, deletions: list[RecordDeletion], respond: Respond
    ) -> Deferred[DeleteRecordsResponse]:
        """Watch the partitions of ``deletions``. The answer is filled later, or at once if no wait is needed."""
        operation = cls(purgatory, deadline, deletions, respond)
        for deletion in deletions:
            deletion.partition.watchers[operation] = None
        operation.try_complete()
        if not operation.completed:
            purgatory.park(operation)
        return operation._answer

    def partition_changed(self, _key: TopicPartition) -> None:
        self._purgatory.changed(self)

    def try_complete(self) -> None:
        self._waiting = [deletion for deletion in self._waiting if not self._settle(deletion, _outcome(deletion))]
        if not self._waiting:
            self._complete()

    def _settle(self, deletion: RecordDeletion, outcome: Deleted | None) -> bool:
        if outcome is None:
            return False
        self._outcomes[deletion] = outcome
        return True

    def expire(self) -> None:
        for deletion in self._waiting:
            self._settle(deletion, _outcome(deletion) or Deleted(ErrorCode.REQUEST_TIMED_OUT))
        self._complete()

    def _complete(self) -> None:
        self.completed = True
        for deletion in self._outcomes:
            deletion.partition.watchers.pop(self, None)
        self._answer.fill(self._respond(self._outcomes))


def _outcome(deletion: RecordDeletion) -> Deleted | None:
    """The outcome of a deletion; None while a replica still has the records."""
    partition = deletion.partition
    if not partition.is_leader:
        return Deleted(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    low_watermark = partition.low_watermark
    return Deleted(ErrorCode.NONE, low_watermark) if low_watermark >= deletion.log_start_offset else None
