"""Edits of a topic's znode that no controller saw: what the states prove is restored, what was begun is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from controller.image import PartitionImage, TopicImage
from controller.resize import plan, unseen
from controller.states import PartitionStatus
from tests.topic_images import HISTORIES, REPLICAS, after, created, history
from zk_schemas.config_keys import TOPIC_CONFIGS, topic_defaults
from zk_schemas.partition_state import Layout
from zk_schemas.topic import LAYOUT_FIELDS, TopicZnode

DEFAULTS = topic_defaults({}) | TOPIC_CONFIGS.parse_given({})


def judged(topic: TopicImage, config: dict[str, object] | None = None) -> unseen.Judgement:
    return unseen.judge(topic, DEFAULTS | (config or {}))


@pytest.mark.parametrize("counts", HISTORIES, ids=str)
def test_what_controllers_write_themselves_is_never_undone(counts: tuple[int, ...]) -> None:
    """Whatever write a controller died after, its successor goes on from it."""
    topic, steps = created(counts[0]), 0
    for _ in history(topic, *counts[1:]):
        steps += 1
        found = judged(topic)
        assert found.undone == [], steps
        assert found.znode == topic.znode, steps
    assert steps > 20


@pytest.mark.parametrize("led", range(5))
def test_a_new_topic_is_taken_as_it_is_however_many_have_a_leader(led: int) -> None:
    topic = created(4, led=led)
    assert judged(topic) == unseen.Judgement(topic.znode, [])


def edited(topic: TopicImage, changes: dict[str, Any]) -> TopicZnode:
    """Edit the znode; what it was before."""
    before = topic.znode
    topic.znode = before.replace(**changes)
    return before


def assigned(count: int, **replicas: list[int]) -> dict[int, list[int]]:
    return {index: replicas.get(f"p{index}", list(REPLICAS)) for index in range(count)}


GROWN, SHRUNK, BACK = (4, 6), (4, 6, 5), (4, 6, 4, 0)


@pytest.mark.parametrize("counts", [(4,), GROWN, SHRUNK, BACK], ids=str)
@pytest.mark.parametrize("initial", [1, 3, 5, 7])
def test_the_initial_count_is_proven(counts: tuple[int, ...], initial: int) -> None:
    """With a wrong one every ancestor would be computed wrong, and keys would lose their order."""
    topic = after(*counts)
    before = edited(topic, {"initial_partition_count": initial})
    found = judged(topic)
    assert found.znode is not None
    assert found.znode == before
    assert found.undone == [f"initial_partition_count is 4, not {initial}"]


@pytest.mark.parametrize(
    ("counts", "changes", "why"),
    [
        ((4,), {"initial_partition_count": 2, "undeleted_partition_count": 2}, "initial_partition_count is 4"),
        (GROWN, {"undeleted_partition_count": 3}, "do not fit"),
        (GROWN, {"undeleted_partition_count": 7}, "do not fit"),
        (GROWN, {"layout_version": 7}, "layout_version is 1, not 7"),
        (GROWN, {"layout_version": 2**31 - 1}, "layout_version is 1"),
        ((4,), {"layout_version": 2}, "layout_version is 0"),
        (SHRUNK, {"undeleted_partition_count": 6}, "do not fit"),
        (SHRUNK, {"partitions": assigned(7)}, "partitions are marked"),
        (GROWN, {"partitions": assigned(8, p7=[1])}, "partition 7 must have 3 replicas"),
        (GROWN, {"partitions": assigned(70_000)}, "70000 partitions do not fit"),
        (GROWN, {"partitions": assigned(6, p2=[1, 2])}, None),
    ],
    ids=[
        "both-counts",
        "below-the-initial",
        "above-what-there-is",
        "version",
        "largest-version",
        "version-of-a-new-topic",
        "marked-ones-back",
        "added-while-marked",
        "another-factor",
        "too-many",
        "replicas-away",
    ],
)
def test_what_is_undone(counts: tuple[int, ...], changes: dict[str, Any], why: str | None) -> None:
    topic = after(*counts)
    before = edited(topic, changes)
    found = judged(topic)
    assert found.znode == before
    assert len(found.undone) == (2 if len(changes) == 2 else 1)
    assert (why or "replicas of partitions 2 are in sync") in found.undone[0]


def test_replicas_in_sync_stay_beside_those_that_an_edit_assigns() -> None:
    """Nothing says which replicas there were: those that hold the records are among them."""
    topic = after(*GROWN)
    edited(topic, {"partitions": assigned(6, p2=[4, 5])})
    found = judged(topic)
    assert found.znode is not None
    assert found.znode.partitions == assigned(6, p2=[4, 5, 1, 2, 3])


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"cleanup.policy": ["compact"]}, "is compacted"),
        ({"retention.ms": -1}, "never expire"),
        ({"cleanup.policy": ["compact"], "delete.records.when.drained": True}, None),
        ({}, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout_version", [1, 2], ids=["as-edited", "with-a-version"])
def test_a_shrink_that_would_never_drain_is_undone(
    config: dict[str, object], why: str | None, layout_version: int
) -> None:
    """Hole 23: it would go on for ever, and hold every grow."""
    topic = after(*GROWN)
    before = edited(topic, {"undeleted_partition_count": 5, "layout_version": layout_version})
    found = judged(topic, config)
    if why is None:
        assert found == unseen.Judgement(before.replace(undeleted_partition_count=5, layout_version=2), [])
    else:
        assert found.znode == before
        assert why in found.undone[0]


def test_a_shrink_that_is_recorded_goes_on_whatever_the_topic_is_now() -> None:
    """Its partitions have maps that nothing takes back."""
    for steps in range(1, 20):
        topic = after(4, 6, 4, steps=len(list(history(created(4), 6))) + 1 + steps)
        found = judged(topic, {"cleanup.policy": ["compact"]})
        assert found == unseen.Judgement(topic.znode, [])


def test_a_shrink_too_large_for_one_multi_is_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """ZooKeeper drops the connection at such a write, and the controller would repeat it for ever."""
    monkeypatch.setattr("controller.resize.checks.MAX_BYTES", 2000)
    topic = after(1, 64)
    before = edited(topic, {"undeleted_partition_count": 1})
    found = judged(topic)
    assert found.znode == before
    assert "the smallest count that fits is" in found.undone[0]


def test_another_count_in_the_middle_of_a_resize_is_undone() -> None:
    """A shrink of which a part is recorded has marked what it has marked; a grow has the count before it, or after."""
    for counts, wrong in (((4, 6), 5), ((4, 6, 4), 5), ((4, 6, 4), 6), ((1, 8, 5), 3)):
        total = len(list(history(created(counts[0]), *counts[1:])))
        first = len(list(history(created(counts[0]), *counts[1:-1]))) + 3
        for steps in range(first, total):
            topic = after(*counts, steps=steps)
            before = edited(topic, {"undeleted_partition_count": wrong})
            found = judged(topic)
            assert len(found.undone) == 1, (counts, wrong, steps)
            assert found.znode is not None
            assert found.znode.undeleted_partition_count in (before.undeleted_partition_count, counts[-1])


def test_an_assignment_that_lost_partitions_is_left_alone() -> None:
    topic = after(*GROWN)
    edited(topic, {"partitions": assigned(5), "undeleted_partition_count": 5})
    del topic.partitions[5]
    assert judged(topic).znode is None


@pytest.mark.parametrize("counts", [GROWN, SHRUNK, BACK], ids=str)
def test_a_tool_that_does_not_know_our_fields_may_split(counts: tuple[int, ...]) -> None:
    topic = after(*counts)
    before = topic.znode
    data = before.replace(partitions=assigned(len(before.partitions) + 2)).encode()
    fields = TopicZnode.decode("/t", data)
    total = len(fields.partitions)
    defaults = {"initial_partition_count": total, "undeleted_partition_count": total, "layout_version": 0}
    topic.znode = fields.replace(absent=frozenset(LAYOUT_FIELDS), ordered_delivery=None, **defaults)
    found = judged(topic)
    assert found.znode is not None
    assert found.znode.replace(partitions=before.partitions) == before
    assert len(found.znode.partitions) == (len(before.partitions) if counts == SHRUNK else total)


def test_what_a_never_resized_topic_gets_without_our_fields_is_split_off() -> None:
    topic = created(4)
    defaults = {"initial_partition_count": 8, "undeleted_partition_count": 8}
    topic.znode = topic.znode.replace(partitions=assigned(8), absent=frozenset(LAYOUT_FIELDS), **defaults)
    found = judged(topic)
    assert found.znode is not None
    assert (found.znode.initial_partition_count, found.znode.undeleted_partition_count) == (4, 4)
    assert plan.new_partitions(_of(found.znode, topic)) == [4, 5, 6, 7]


def _of(znode: TopicZnode, topic: TopicImage) -> TopicImage:
    topic.znode = znode
    return topic


@pytest.mark.parametrize("ordered", [True, False])
def test_ordered_delivery_is_settled_once(ordered: bool) -> None:
    """What the configuration says counts until the first resize begins, and never again."""
    config: dict[str, object] = {"enable.ordered.delivery": ordered}
    topic = created(4)

    def kept() -> bool | None:
        znode = judged(topic, config).znode
        assert znode is not None
        return znode.ordered_delivery

    assert kept() is None
    edited(topic, {"partitions": assigned(6)})
    assert kept() is ordered
    topic = after(*GROWN)
    assert kept() is True


def test_two_layouts_of_one_version_are_left_alone() -> None:
    """Nothing says which of them clients were told."""
    topic = after(*GROWN)
    state = topic.state(2)
    assert state is not None
    topic.partitions[2].state = state.replace(layout=Layout(5, 1))
    assert judged(topic).znode is None


@pytest.mark.parametrize("counts", HISTORIES, ids=str)
def test_a_state_that_was_taken_away_is_missed_and_no_other(counts: tuple[int, ...]) -> None:
    """It would be made anew as another incarnation, and the brokers delete what they have of the one before."""
    topic = created(counts[0])
    for _ in history(topic, *counts[1:]):
        missing = [index for index in topic.znode.partitions if topic.state(index) is None]
        everything = dict(topic.partitions)
        for index in topic.znode.partitions:
            topic.partitions.setdefault(index, PartitionImage(PartitionStatus.NEW))
        assert unseen.lost_states(topic) == []
        stored = [state.layout for state in topic.states() if state.layout is not None and not state.never_led]
        led = sum(state is not None and not state.never_led for state in map(topic.state, topic.znode.partitions))
        for index in range(led - 1) if len(stored) > 1 else ():
            before = topic.partitions[index]
            topic.partitions[index] = PartitionImage(PartitionStatus.NEW)
            assert unseen.lost_states(topic) == [index], missing
            topic.partitions[index] = before
        topic.partitions = everything


def test_a_topic_with_an_unreadable_state_does_not_lose_partitions() -> None:
    """What cannot be read may be anything, also a partition that is marked for deletion."""
    topic = after(4, 6, 4)
    del topic.partitions[5]
    topic.unreadable.add(5)
    assert judged(topic) == unseen.Judgement(topic.znode, [])
