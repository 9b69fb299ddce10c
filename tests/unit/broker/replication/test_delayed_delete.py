"""A DeleteRecords request has an outcome for each deletion. The tests check the outcomes, and when it is answered."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from anabranch.broker.replication.delayed_delete import DelayedDelete, Deleted, RecordDeletion
from anabranch.broker.replication.purgatory import Purgatory
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.delete_records import DeleteRecordsResponse
from sim.clock import SimClock


def partition(low_watermark: int) -> Any:
    return SimpleNamespace(is_leader=True, low_watermark=low_watermark, watchers={})


def test_each_deletion_has_its_own_outcome_and_the_response_is_made_once() -> None:
    reached, lost, late = partition(5), partition(0), partition(0)
    deletions = [RecordDeletion(one, 5) for one in (reached, lost, late)]
    made: list[Mapping[RecordDeletion, Deleted]] = []

    def respond(outcomes: Mapping[RecordDeletion, Deleted]) -> DeleteRecordsResponse:
        made.append(outcomes)
        return DeleteRecordsResponse()

    purgatory = Purgatory(SimClock())
    answer = DelayedDelete.park(purgatory, 1.0, deletions, respond)
    [operation] = purgatory.waiting()
    assert [list(one.watchers) for one in (lost, late)] == [[operation]] * 2
    reached.low_watermark = 9  # after the outcome of this deletion
    lost.is_leader = False
    operation.try_complete()
    assert not answer.filled and not made
    operation.expire()
    assert answer.filled and operation.completed
    assert [made[0][deletion] for deletion in deletions] == [
        Deleted(ErrorCode.NONE, 5),
        Deleted(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        Deleted(ErrorCode.REQUEST_TIMED_OUT),
    ]
    assert len(made) == 1
    assert not reached.watchers and not lost.watchers and not late.watchers


def test_a_partition_that_is_named_twice_is_watched_until_both_deletions_are_over() -> None:
    one = partition(0)
    answer = DelayedDelete.park(
        purgatory := Purgatory(SimClock()),
        1.0,
        [RecordDeletion(one, 10), RecordDeletion(one, 20)],
        lambda _: DeleteRecordsResponse(),
    )
    [operation] = purgatory.waiting()
    one.low_watermark = 10
    operation.try_complete()
    assert list(one.watchers) == [operation] and not answer.filled
    one.low_watermark = 20
    operation.try_complete()
    assert answer.filled and not one.watchers
