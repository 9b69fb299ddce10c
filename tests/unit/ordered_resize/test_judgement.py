"""The rules for requests, edits, edits that no controller saw, and queued counts: accept, refuse or freeze."""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Collection, Sequence
from typing import Any

import pytest

from anabranch.ordered_resize import next_step
from anabranch.ordered_resize.delete_when_drained import LOSS_KEY, Marked
from anabranch.ordered_resize.judgement import (
    ResizeLimits,
    Setting,
    VerdictKind,
    advice,
    judge_edit,
    judge_found,
    judge_request,
    judge_wanted,
)
from anabranch.ordered_resize.next_step import STEPS
from anabranch.ordered_resize.snapshot import Phase
from anabranch.protocol.errors import ErrorCode
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout
from anabranch.zk_schemas.topic import LAYOUT_FIELDS, TopicZnode
from tests.support.resize.resized_topic import Topic

ACCEPT, REFUSE, FREEZE = VerdictKind.ACCEPT, VerdictKind.REFUSE, VerdictKind.FREEZE
SETTING = Setting(lambda new: {p: [1, 2] for p in new})
INVALID, POLICY = ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION


def setting(**changes: Any) -> Setting:
    return dataclasses.replace(SETTING, **changes)


@pytest.fixture
def topic() -> Topic:
    """Return a topic that was created with 2 partitions, grown to 6, then shrunk to 4: partitions 4 and 5 drain."""
    topic = Topic(2)
    for count in (6, 4):
        topic.ask(count)
        topic.carry_out()
    return topic


@pytest.mark.parametrize(
    ("count", "given", "code", "why"),
    [
        (0, {}, INVALID, "A topic has at least one partition; 0 were asked for."),
        (-7, {}, INVALID, "A topic has at least one partition; -7 were asked for."),
        (1, {}, INVALID, "The topic was created with 2 partitions and cannot have fewer; 1 were asked for."),
        (2**31 - 1, {}, INVALID, "The topic cannot have 2147483647 partitions: the largest count is 65536."),
        (4, {}, INVALID, "Topic already has 4 partitions."),
        (60_000, {}, INVALID, r"The topic's znode would have \d+ bytes, more than 524288."),
        (3, {"is_internal": True}, ErrorCode.INVALID_REQUEST, "The topic is internal"),
        (3, {"marked": Marked.FOR_EVER}, POLICY, "The topic's records never expire"),
        (
            3,
            {"limits": ResizeLimits(max_state_bytes=100)},
            INVALID,
            r"The znode of partition \d .* more than 100 \(partition.state",
        ),
        (3, {"not_now": "The feature is not finalized."}, POLICY, "The feature is not finalized."),
    ],
)
def test_a_request_is_refused_with_a_code_and_a_reason(
    topic: Topic, count: int, given: dict[str, Any], code: ErrorCode, why: str
) -> None:
    verdict = judge_request(topic.snapshot(), count, setting(**given))
    assert (verdict.outcome, verdict.topic, verdict.code) == (REFUSE, None, code)
    assert re.match(why, verdict.why), verdict.why


@pytest.mark.parametrize(
    ("count", "given", "expected"),
    [
        (3, {"marked": Marked.FOR_EVER}, "The topic is compacted: partition 3 stays, because it"),
        (
            2,
            {"marked": Marked.EXPIRED},
            "The topic is compacted: partitions 2, 3 stay until the records have expired,",
        ),
        (
            2,
            {"marked": Marked.DRAINED},
            f"{LOSS_KEY}=true: partitions 2, 3 are removed when every group has read them.",
        ),
        (2, {"is_compacted": False}, "$"),
        (6, {"marked": Marked.FOR_EVER}, "$"),  # partitions 4 and 5 are revived
        (6, {"marked": Marked.DRAINED}, "$"),
    ],
)
def test_a_resize_of_a_compacted_topic_has_advice_about_the_latest_values(
    topic: Topic, count: int, given: dict[str, Any], expected: str
) -> None:
    compacted = setting(**({"is_compacted": True} | given))
    verdict = judge_request(topic.snapshot(), count, compacted)
    assert verdict.outcome is ACCEPT and verdict.topic is not None
    assert re.match(expected, advice(topic.topic, verdict.topic, compacted))


def test_a_queued_shrink_of_a_compacted_topic_has_advice_and_a_cancel_has_none(topic: Topic) -> None:
    compacted = setting(is_compacted=True, marked=Marked.FOR_EVER)
    topic.ask(8)
    queued = judge_request(topic.snapshot(), 3, compacted).topic
    cancelled = judge_request(topic.snapshot(), 4, compacted).topic
    assert queued is not None and cancelled is not None and queued.wanted == 3
    assert advice(topic.topic, queued, compacted).startswith("The topic is compacted: partitions 3, 4, 5, 6, 7 stay,")
    assert advice(topic.topic, cancelled, compacted) == ""


def test_a_grow_while_partitions_drain_begins_at_once(topic: Topic) -> None:
    verdict = judge_request(topic.snapshot(), 8, setting(is_ordered=False))
    assert verdict.outcome is ACCEPT and verdict.topic is not None
    found = verdict.topic
    assert (found.undeleted_partition_count, found.previous_undeleted_partition_count, found.wanted) == (8, 4, None)
    assert found.layout_version == 3 and sorted(found.partitions) == list(range(8))
    assert found.ordered_delivery is True  # the first resize has fixed this value


def test_replicas_may_be_given_and_are_checked(topic: Topic) -> None:
    verdict = judge_request(topic.snapshot(), 7, SETTING, {6: [5, 6]})
    assert verdict.topic is not None and verdict.topic.partitions[6] == [5, 6]
    verdict = judge_request(topic.snapshot(), 7, SETTING, {6: [5]})
    assert verdict.why == "Partition 6 must have 2 replicas, as the others have, not 1."
    topic.ask(8)
    verdict = judge_request(topic.snapshot(), 9, SETTING, {8: [5, 6]})
    assert verdict.why.startswith("The resize has to wait")


def test_a_thousand_requests_leave_one_wanted_count_and_change_no_layout(topic: Topic) -> None:
    topic.ask(8)
    before = dict(topic.states)
    for index in range(1000):
        topic.ask(5 + index % 3)
    assert topic.topic.wanted == 5 + 999 % 3
    assert (topic.topic.undeleted_partition_count, topic.topic.layout_version, topic.states) == (8, 3, before)
    assert len(topic.topic.encode()) < 512


def test_a_cancel_of_a_cancel_is_queued(topic: Topic) -> None:
    topic.ask(8)
    topic.ask(4)
    assert topic.topic.layout_version == 4
    topic.ask(8)
    assert (topic.topic.undeleted_partition_count, topic.topic.wanted) == (4, 8)


def test_a_cancel_is_accepted_even_where_a_resize_is_forbidden(topic: Topic) -> None:
    topic.ask(8)
    verdict = judge_request(topic.snapshot(), 4, setting(marked=Marked.FOR_EVER, not_now="No."))
    assert verdict.outcome is ACCEPT and verdict.topic is not None and verdict.topic.undeleted_partition_count == 4


def test_a_level_that_is_not_finalized_does_not_prevent_queueing_a_count(topic: Topic) -> None:
    lacking = setting(not_now="Brokers 3 lack it.")
    assert judge_request(topic.snapshot(), 8, lacking).why == "Brokers 3 lack it."
    unsettled = dataclasses.replace(topic.snapshot(), answered=())
    verdict = judge_request(unsettled, 8, lacking)
    assert verdict.outcome is ACCEPT and verdict.topic is not None and verdict.topic.wanted == 8


@pytest.mark.parametrize("answered", [range(6), ()], ids=["answered", "silent"])
def test_no_resize_is_accepted_during_a_reassignment(topic: Topic, answered: Collection[int]) -> None:
    """The leader of a partition that was just reassigned may not have answered the new leader epoch yet."""
    moving = topic.topic.replace(adding_replicas={0: [3]})
    snapshot = dataclasses.replace(topic.snapshot(), topic=moving, answered=answered)
    verdict = judge_request(snapshot, 8, SETTING)
    assert (verdict.code, verdict.why) == (ErrorCode.REASSIGNMENT_IN_PROGRESS, "Partition 0 is being reassigned.")


def test_a_queued_count_is_judged_again(topic: Topic) -> None:
    assert judge_wanted(topic.snapshot(), SETTING) is None
    topic.topic = topic.topic.replace(wanted=8)
    assert judge_wanted(dataclasses.replace(topic.snapshot(), answered=()), SETTING) is None
    verdict = judge_wanted(topic.snapshot(), SETTING)
    assert verdict is not None and verdict.topic is not None
    assert (verdict.topic.undeleted_partition_count, verdict.topic.wanted) == (8, None)

    waits = judge_wanted(topic.snapshot(), setting(not_now="Brokers 3 lack it."))
    assert waits is not None and (waits.outcome, waits.topic, waits.why) == (REFUSE, None, "Brokers 3 lack it.")
    topic.topic = topic.topic.replace(wanted=1)
    dropped = judge_wanted(topic.snapshot(), SETTING)
    assert dropped is not None and dropped.topic is not None
    assert (dropped.outcome, dropped.topic.wanted, dropped.code) == (REFUSE, None, INVALID)


# ---------------------------------------------------------------- edits that the controller sees


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"topic_id": uuid.UUID(int=9)}, "Only the controller may change topic_id"),
        ({"initial_partition_count": 1}, "Only the controller may change initial_partition_count"),
        ({"layout_version": 3}, "Only the controller may change layout_version"),
        (
            {"previous_undeleted_partition_count": 4},
            "Only the controller may change previous_undeleted_partition_count",
        ),
        ({"wanted": 9}, "Only the controller may change wanted"),
        ({"last_leader_epochs": {7: 1}}, "Only the controller may change last_leader_epochs"),
        ({"last_offsets": {7: 1}}, "Only the controller may change last_offsets"),
        ({"ordered_delivery": False}, "Only the controller may change ordered_delivery"),
        ({"adding_replicas": {0: [3]}}, "Only the controller may change adding_replicas"),
        (
            {"partitions": {p: [1, 2] for p in range(4)}},
            "An edit cannot shorten the assignment from 6 to 4 partitions",
        ),
        (
            {"partitions": {p: [2, 1] for p in range(6)}},
            "Only AlterPartitionReassignments can change the replicas of partition 0",
        ),
        (
            {"partitions": {**{p: [1, 2] for p in range(2)}, **{p: [2, 1] for p in range(2, 6)}, 6: [1]}},
            "Partition 6 must have 2 replicas, as the others have, not 1.",
        ),
        ({"undeleted_partition_count": 1}, "The topic was created with 2 partitions and cannot have fewer"),
    ],
)
def test_a_forbidden_edit_is_undone_with_a_reason(topic: Topic, changes: dict[str, Any], why: str) -> None:
    verdict = judge_edit(topic.snapshot(), topic.topic.replace(**changes), SETTING)
    assert (verdict.outcome, verdict.topic) == (REFUSE, topic.topic)
    assert verdict.why.startswith(why), verdict.why


def test_an_edit_of_the_count_or_the_assignment_counts_as_a_request(topic: Topic) -> None:
    asked = judge_request(topic.snapshot(), 6, SETTING).topic
    assert judge_edit(topic.snapshot(), topic.topic.replace(undeleted_partition_count=6), SETTING).topic == asked
    added = topic.topic.replace(partitions={**topic.topic.partitions, 6: [2, 1]})
    verdict = judge_edit(topic.snapshot(), added, SETTING)
    assert verdict.topic is not None and verdict.topic.undeleted_partition_count == 7
    both = added.replace(undeleted_partition_count=5)
    assert "make them equal" in judge_edit(topic.snapshot(), both, SETTING).why


def test_a_tool_that_knows_none_of_our_fields_loses_none(topic: Topic) -> None:
    edited = TopicZnode(topic.topic.topic_id, topic.topic.partitions, 6, 6, absent=frozenset(LAYOUT_FIELDS))
    verdict = judge_edit(topic.snapshot(), edited.replace(extra={"theirs": 1}), SETTING)
    assert verdict == (ACCEPT, topic.topic.replace(extra={"theirs": 1}), "", ErrorCode.NONE)
    assert not verdict.topic.absent


# ---------------------------------------------------------------- edits while no controller was active


def test_a_topic_found_after_any_step_of_a_resize_is_accepted(topic: Topic) -> None:
    topic.ask(8)
    while steps := next_step.next_steps(topic.snapshot()):
        topic.write(steps[-1])
        assert judge_found(topic.snapshot(), SETTING).outcome is ACCEPT


def test_a_new_topic_with_partitions_that_were_never_led_is_accepted() -> None:
    topic = Topic(4)
    for left in (3, 2, 1, 0):
        assert judge_found(topic.snapshot(), SETTING).outcome is ACCEPT
        del topic.states[left]
    assert judge_found(topic.snapshot(), SETTING).outcome is ACCEPT


def test_partitions_added_while_no_controller_was_active_count_as_a_request(topic: Topic) -> None:
    topic.topic = topic.topic.replace(partitions={**topic.topic.partitions, 6: [2, 1], 7: [2, 1]})
    found = judge_found(topic.snapshot(), SETTING)
    assert found.topic is not None and found.topic.undeleted_partition_count == 8
    refused = judge_found(topic.snapshot(), setting(is_internal=True))
    assert refused.outcome is REFUSE and refused.topic is not None and sorted(refused.topic.partitions) == [*range(6)]


def test_partitions_added_before_the_leaders_have_answered_are_queued_as_a_count(topic: Topic) -> None:
    """A new controller also queues the count, because no leader has answered it. No replicas are chosen."""
    known, limits = topic.topic, setting(assign=no_brokers)
    added = known.replace(partitions={**known.partitions, 6: [2, 1], 7: [2, 1]})
    counted = known.replace(undeleted_partition_count=8)
    unanswered = dataclasses.replace(topic.snapshot(), answered=())
    for edited in (added, counted):
        for verdict in (
            judge_edit(unanswered, edited, limits),
            judge_found(dataclasses.replace(unanswered, topic=edited), limits),
        ):
            assert (verdict.outcome, verdict.topic) == (ACCEPT, known.replace(wanted=8))
            assert bool(verdict.why) is (edited is added)


def no_brokers(new: Sequence[int]) -> dict[int, list[int]]:
    raise AssertionError(f"replicas of {new} are asked for")


def test_partitions_added_by_a_tool_that_knows_no_layouts_are_the_first_resize() -> None:
    topic = Topic(2)
    topic.topic = TopicZnode(topic.topic.topic_id, {p: [1, 2] for p in range(4)}, 4, 4, absent=frozenset(LAYOUT_FIELDS))
    found = judge_found(topic.snapshot(), SETTING).topic
    assert found is not None and (found.initial_partition_count, found.undeleted_partition_count) == (2, 4)
    assert found.previous_undeleted_partition_count == 2 and found.layout_version == 1


def edited(topic: Topic, **changes: Any) -> None:
    topic.topic = topic.topic.replace(**changes)


def state(topic: Topic, p: int, **changes: Any) -> None:
    topic.states[p] = topic.states[p].replace(**changes)


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda t: edited(t, initial_partition_count=1),
            "partition 0: initial_partition_count is 2, and the topic's is 1",
        ),
        (
            lambda t: edited(t, initial_partition_count=5),
            "initial_partition_count 5, undeleted_partition_count 4 and the 6 assi",
        ),
        (
            lambda t: edited(t, absent=frozenset({"layout_version"})),
            "layout_version is missing, and the topic was resized",
        ),
        (lambda t: edited(t, previous_undeleted_partition_count=1), "previous_undeleted_partition_count 1 is below"),
        (lambda t: edited(t, previous_undeleted_partition_count=5), "partition 0: before is 6 partitions in version 1"),
        (
            lambda t: edited(t, previous_undeleted_partition_count=4),
            "partition 4: it gained keys under 6 partitions in version 1",
        ),
        (lambda t: edited(t, layout_version=1), "partition 0: layout is 4 partitions in version 2, not the topic's (4"),
        (lambda t: edited(t, layout_version=9), "partition 0: layout is 4 partitions in version 2, not the topic's"),
        (
            lambda t: edited(t, last_leader_epochs={1: 3}),
            "last_leader_epochs names partition 1; the first 2 partitions are never removed",
        ),
        (
            lambda t: edited(t, last_leader_epochs={4: 3}),
            "partition 4: it has leader epoch 0, but by last_leader_epochs",
        ),
        (
            lambda t: state(t, 1, layout=PartitionLayout(1, 2)),
            "partition 1: layout is 1 partitions in version 2, fewer than the 2",
        ),
        (
            lambda t: state(t, 1, layout=PartitionLayout(4, 3)),
            "partition 1: layout is 4 partitions in version 3, not the topic's",
        ),
        (
            lambda t: state(t, 1, before=None),
            "partition 1: before is nothing, though the resize began with 6 partitions",
        ),
        (
            lambda t: state(t, 1, before=Before(PartitionLayout(5, 1), 1)),
            "partition 1: before is 5 partitions in version 1",
        ),
        (
            lambda t: state(t, 1, lineage=(LineageEntry(1, {1: 0}),)),
            "lineage of partition 1: from leader epoch 1 on it names",
        ),
        (lambda t: t.states.pop(3), "partition 3: undeleted_partition_count counts it, but it has no state"),
        (lambda t: state(t, 1, leader=-2), "partition 1: leader -2 marks it as being removed, but undeleted"),
        (lambda t: state(t, 1, isr=[9]), "partition 1: broker 9 is in its isr, but not among its assigned replicas"),
        (lambda t: edited(t, finished_layout_version=3), "finished_layout_version is 3, above layout_version 2"),
        (
            lambda t: (
                edited(t, undeleted_partition_count=6, layout_version=3, previous_undeleted_partition_count=4)
                or edited(t, finished_layout_version=3)
            ),
            "partition 0: it lacks the layout that is over by finished_layout_version 3",
        ),
        (
            lambda t: (t.ask(8), t.carry_out(), t.states.pop(7)),
            "partition 7: it has no state, but its resize is over by finished_layout_version 3",
        ),
    ],
)
def test_a_contradictory_topic_is_frozen_with_a_reason(topic: Topic, edit: Any, why: str) -> None:
    edit(topic)
    verdict = judge_found(topic.snapshot(), SETTING)
    assert (verdict.outcome, verdict.topic) == (FREEZE, None)
    assert verdict.why.startswith(why), verdict.why


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda t: state(t, 1, layout=PartitionLayout(4, 9)),
            "partition 1: layout is 4 partitions in version 9, newer than",
        ),
        (
            lambda t: state(t, 1, layout=PartitionLayout(5, 4)),
            "partition 1: layout is 5 partitions in version 4, but the topic's layout",
        ),
        (
            lambda t: state(t, 1, layout=PartitionLayout(4, 1)),
            "partition 1: layout is 4 partitions in version 1, too old for",
        ),
        (
            lambda t: state(t, 5, layout=PartitionLayout(6, 1)),
            "partition 5: layout (6 partitions in version 1) counts the",
        ),
    ],
)
def test_a_contradictory_topic_is_frozen_while_its_resize_is_taken_back(topic: Topic, edit: Any, why: str) -> None:
    topic.ask(8)
    topic.write(STEPS[Phase.BUMP](topic.snapshot(), 0))
    topic.ask(4)
    topic.write(STEPS[Phase.BUMP](topic.snapshot(), 0))
    assert judge_found(topic.snapshot(), SETTING).outcome is ACCEPT
    edit(topic)
    verdict = judge_found(topic.snapshot(), SETTING)
    assert verdict.outcome is FREEZE and verdict.why.startswith(why), verdict.why


def test_a_wrong_initial_count_freezes_a_topic_that_was_never_resized() -> None:
    topic = Topic(4)
    topic.topic = topic.topic.replace(initial_partition_count=2)
    verdict = judge_found(topic.snapshot(), SETTING)
    assert (verdict.outcome, verdict.why) == (
        FREEZE,
        "initial_partition_count is 2, but the topic was never resized and 4 partitions have had a leader",
    )


def test_a_frozen_topic_does_not_change_until_an_edit_ends_the_contradiction(topic: Topic) -> None:
    topic.ask(8)
    good = topic.topic
    topic.topic = good.replace(layout_version=9, wanted=8)
    frozen = dataclasses.replace(topic.snapshot(), frozen=judge_found(topic.snapshot(), SETTING).why)
    refused = judge_request(frozen, 8, SETTING)
    assert (refused.outcome, refused.code, refused.topic) == (REFUSE, POLICY, None)
    assert refused.why == (
        "The topic is frozen: partition 0: layout is 4 partitions in version 2, not the topic's ("
        "8 partitions in version 9) or its previous one (4 partitions in version 8)."
    )
    assert judge_wanted(frozen, SETTING) is None and next_step.next_steps(frozen) == []
    assert judge_edit(frozen, good.replace(layout_version=8), SETTING).outcome is FREEZE
    assert judge_edit(frozen, good, SETTING) == (ACCEPT, None, "", ErrorCode.NONE)


def test_a_gainer_whose_loser_is_gone_freezes_the_topic(topic: Topic) -> None:
    topic.ask(8)
    topic.ask(4)
    topic.carry_out()
    topic.ask(3)
    topic.write(STEPS[Phase.BUMP](topic.snapshot(), 3))
    del topic.states[3]
    assert judge_found(topic.snapshot(), SETTING).why == "partition 1: it gains keys of partition 3, which has no state"


def test_nothing_is_written_while_a_state_cannot_be_read(topic: Topic) -> None:
    topic.ask(8)
    found = topic.snapshot()
    hidden = dataclasses.replace(found, states={p: s for p, s in found.states.items() if p != 5}, unreadable={5})
    assert next_step.next_steps(found) and not next_step.next_steps(hidden)
    assert judge_found(hidden, SETTING).outcome is ACCEPT


def test_a_marked_partition_whose_state_cannot_be_read_stays_assigned(topic: Topic) -> None:
    """If the partition were not assigned, its log would be deleted, with unread records."""
    found = topic.snapshot()
    hidden = dataclasses.replace(found, states={p: s for p, s in found.states.items() if p != 5}, unreadable={5})
    assert (hidden.topic.undeleted_partition_count, sorted(hidden.topic.partitions)) == (4, [0, 1, 2, 3, 4, 5])
    assert judge_found(hidden, SETTING) == (ACCEPT, None, "", ErrorCode.NONE)
