"""How far a topic's held consumers are served: the rules of docs/model/README.md, Hold.tla, one by one."""

from __future__ import annotations

import math

from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.progress import Reader
from anabranch.ordered_resize.withheld_from_stock_consumers import (
    NOTHING,
    CoordinatorAnswer,
    StockCap,
    WithheldTopic,
    WithholdDecision,
    WithholdLimits,
)
from anabranch.zk_schemas.partition_state import LineageEntry as Entry

LIMITS = WithholdLimits(lease_s=3.0, max_withhold_s=60.0)
BEHIND, DONE = Reader("g", 1, {0: 99}), Reader("g", 1, {0: 100})


def split() -> WithheldTopic:
    """Return the hold of a topic whose partition 1 is led by this broker, and was split from partition 0.

    Leader epoch 0 of partition 0 ended at offset 100.
    """
    topic = WithheldTopic(5)
    topic.facts.on_lineage(0, Lineage(1))
    topic.facts.on_lineage(1, Lineage(0, -1, (Entry(0, {0: 0}),)))
    topic.on_ends(0, 1, {0: 100})
    return topic


def answered(
    topic: WithheldTopic, sent_at: float, *readers: Reader, coordinated: tuple[int, ...] = (0,), broker: int = 1
) -> None:
    topic.answers[broker] = CoordinatorAnswer(dict.fromkeys(coordinated, sent_at), readers)


def decided(topic: WithheldTopic, now: float, partitions: int = 1) -> WithholdDecision:
    return topic.decide([1], partitions, now, LIMITS)


def cap(topic: WithheldTopic, now: float, partitions: int = 1) -> int:
    return decided(topic, now, partitions).caps[1].at(now)


def test_a_split_partition_is_not_served_until_every_coordinator_has_answered() -> None:
    topic = split()
    assert cap(topic, 0) == -1
    answered(topic, 0, DONE, coordinated=(0,))
    assert cap(topic, 0, partitions=2) == -1
    answered(topic, 0, coordinated=(1,), broker=2)
    assert cap(topic, 0, partitions=2) == 0


def test_an_answer_counts_for_one_lease_from_the_time_of_its_request() -> None:
    topic = split()
    answered(topic, 1.0, DONE)
    decision = decided(topic, 2.0)
    assert decision.caps[1] == StockCap(0, 4.0, -1)
    assert decision.caps[1].at(3.9) == 0 and decision.caps[1].at(4.0) == -1
    assert cap(topic, 4.0) == -1, "a group that the answer does not name may exist by now"


def test_a_cap_expires_with_the_oldest_of_the_coordinators_latest_answers() -> None:
    topic = split()
    answered(topic, 0.0, DONE, coordinated=(0, 1), broker=1)
    answered(topic, 2.0, coordinated=(1,), broker=2)
    assert decided(topic, 2.0, partitions=2).caps[1].fresh_until == 3.0
    answered(topic, 2.5, DONE, coordinated=(0,), broker=1)
    assert decided(topic, 2.5, partitions=2).caps[1].fresh_until == 5.0


def test_a_group_that_the_next_answer_does_not_name_is_forgotten() -> None:
    topic = split()
    answered(topic, 0, BEHIND)
    assert cap(topic, 0) == -1
    answered(topic, 1)
    assert cap(topic, 1) == 0 and topic.waits == []


def test_a_group_whose_commit_is_lowered_is_waited_for_again() -> None:
    topic = split()
    answered(topic, 0, DONE)
    assert cap(topic, 0) == 0
    answered(topic, 1, BEHIND)
    assert cap(topic, 1) == -1


def test_a_group_is_released_after_max_hold_while_a_later_group_is_still_awaited() -> None:
    topic, other = split(), Reader("other", 1)
    answered(topic, 0, BEHIND)
    assert not decided(topic, 0).let_go
    answered(topic, 30, BEHIND, other)
    assert not decided(topic, 30).let_go
    answered(topic, 60, BEHIND, other)
    assert [wait.key for wait in decided(topic, 60).let_go] == [("g", 1, 0, 0)]
    assert cap(topic, 60) == -1 and not decided(topic, 60).let_go, "a release is reported once"
    answered(topic, 61, BEHIND, other._replace(positions={0: 100}))
    assert cap(topic, 61) == 0


def test_a_new_group_of_the_same_name_is_waited_for_again() -> None:
    topic = split()
    answered(topic, 0, BEHIND)
    decided(topic, 0)
    answered(topic, 60, BEHIND)
    assert cap(topic, 60) == 0
    answered(topic, 61, BEHIND._replace(life=2))
    assert cap(topic, 61) == -1


def test_coordinators_that_do_not_answer_are_let_go_too() -> None:
    topic = split()
    assert cap(topic, 0) == -1
    assert decided(topic, 60).coordinators_let_go == [0]
    assert cap(topic, 60) == 0
    answered(topic, 70, BEHIND)
    assert cap(topic, 70) == -1, "the coordinator answers again"


def test_a_cluster_without_groups_holds_no_partition() -> None:
    assert cap(split(), 0, partitions=0) == 0


def test_records_that_no_group_can_wait_for_are_served_without_an_answer() -> None:
    topic = split()
    topic.facts.on_log_start(0, 100)
    assert topic.is_open_to_any_group([1])
    assert decided(topic, 0).caps[1].at(math.inf) == 0
    assert not WithheldTopic(5).is_open_to_any_group([1]), "the lineage of the partition is not known"


def test_ends_of_epochs_are_asked_of_later_leaders_and_again_after_a_leader_change() -> None:
    topic = WithheldTopic(5)
    topic.facts.on_lineage(0, Lineage(1))
    topic.facts.on_lineage(1, Lineage(0, -1, (Entry(0, {0: 0}),)))
    named = topic.requirements([1]).epochs
    assert named == {0: [0]}
    assert topic.ends_to_ask(named, {0: 0}) == {}, "the end of the present epoch still moves"
    assert topic.ends_to_ask(named, {0: 1}) == {0: {0}}
    topic.on_ends(0, 1, {0: 100})
    assert topic.ends_to_ask(named, {0: 1}) == {}
    assert topic.ends_to_ask(named, {0: 2}) == {0: {0}}
    answered(topic, 0, DONE)
    assert cap(topic, 0) == 0, "the end from the previous leader counts until then"
    topic.on_ends(0, 2, {0: 90})
    assert topic.facts.ends[0] == {0: 90}


def test_a_leader_without_a_cap_serves_no_record() -> None:
    assert NOTHING.at(0) == -1
