"""Which states are set aside: none that a controller wrote, and of those that were edited all that could move keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest

from controller.image import PartitionImage, TopicImage
from controller.resize import consistency, plan, unseen
from tests.topic_images import HISTORIES, after, created, history
from zk_schemas.config_keys import TOPIC_CONFIGS, topic_defaults
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import LAYOUT_FIELDS, TopicZnode

DEFAULTS = topic_defaults({}) | TOPIC_CONFIGS.parse_given({})
CORRECT = consistency.Examined({}, is_told=True)


def judged(topic: TopicImage) -> TopicZnode | None:
    """What a controller makes of it, which reads the configuration only where it has to."""
    return unseen.judge(topic, DEFAULTS if unseen.needs_config(topic) else {}).znode


def allowed(topic: TopicImage) -> set[int]:
    """The count it has, that which a grow leads to, and that from which a shrink of which nothing is recorded began."""
    counts = {topic.znode.undeleted_partition_count, plan.goal(topic)}
    if not any(state.leader_epoch_before_deletion and state.sealed_offset < 0 for state in topic.states()):
        counts.add(unseen.stored_layout(topic).undeleted_partition_count)
    return counts


def without_our_fields(topic: TopicImage) -> TopicImage:
    """As a tool leaves it that does not know them."""
    znode = topic.znode
    plain = TopicZnode.new(znode.topic_id, znode.partitions)
    return dataclasses.replace(topic, znode=plain.replace(absent=frozenset(LAYOUT_FIELDS)))


@pytest.mark.parametrize("counts", HISTORIES, ids=str)
def test_nothing_that_a_controller_wrote_is_set_aside(counts: tuple[int, ...]) -> None:
    """Whatever write it died after; nor when the topic's fields are gone."""
    topic = created(counts[0])
    for _ in history(topic, *counts[1:]):
        assert consistency.examine(topic) == CORRECT
        assert consistency.examine(without_our_fields(topic)) == CORRECT
        assert judged(topic) == topic.znode
        assert judged(without_our_fields(topic)) is not None


def spoilt(state: PartitionState, index: int) -> Iterator[PartitionState]:
    """One field of it is another."""
    for other in {0, 1, index}:
        yield state.replace(leader_epoch_after_creation={other: 0})
        yield state.replace(leader_epoch_before_deletion={other: 0})
    yield state.replace(leader_epoch_after_creation={})
    yield state.replace(leader_epoch_before_deletion={})
    yield state.replace(leader_epoch=0)
    yield state.replace(leader=-1, isr=[])
    yield state.replace(leader=-2)
    yield state.replace(leader=1, isr=[1])
    yield state.replace(sealed_offset=3)
    yield state.replace(layout=None)
    if state.layout is None:
        yield state.replace(layout=Layout(1, 3))
    for count in (-2, -1, 0, 1, 1000):
        for version in (-1, 0, 1, 5):
            if state.layout is not None and state.layout[0] + count > 0 and state.layout[1] + version >= 0:
                yield state.replace(layout=Layout(state.layout[0] + count, state.layout[1] + version))


def with_state(topic: TopicImage, index: int, state: PartitionState) -> TopicImage:
    partition = dataclasses.replace(topic.partitions[index], state=state)
    return dataclasses.replace(topic, partitions=topic.partitions | {index: partition}, unreadable=set())


def set_aside(topic: TopicImage, indexes: set[int]) -> TopicImage:
    left: dict[int, PartitionImage] = {index: p for index, p in topic.partitions.items() if index not in indexes}
    return dataclasses.replace(topic, partitions=left, unreadable=indexes)


@pytest.mark.parametrize("counts", [(2,), (1, 2, 1, 0, 2), *HISTORIES], ids=str)
def test_no_edit_of_one_state_changes_a_count_or_blames_another_alone(counts: tuple[int, ...]) -> None:
    """The initial count places every key, with no barrier; another count is a resize that nobody asked for."""
    topic = created(counts[0])
    for _ in chain([None], history(topic, *counts[1:])):
        for index in topic.partitions:
            state = topic.state(index)
            for edit in () if state is None else spoilt(state, index):
                examined = consistency.examine(edited := with_state(topic, index, edit))
                assert not examined.wrong or index in examined.wrong, edit
                if examined.is_told:
                    znode = judged(set_aside(edited, set(examined.wrong)))
                    assert znode is None or znode.initial_partition_count == counts[0], edit
                    assert znode is None or znode.undeleted_partition_count in allowed(topic), edit


@pytest.mark.parametrize("fields", [["undeleted_partition_count"], ["undeleted_partition_count", "layout_version"]])
@pytest.mark.parametrize("counts", [(4, 6, 4), (4, 6, 5), (1, 8, 5), (2, 3, 2), (1, 2, 1)], ids=str)
def test_a_topic_that_is_put_back_to_what_it_was_blames_no_state(counts: tuple[int, ...], fields: list[str]) -> None:
    """Whenever the last resize was left; the topic is restored, or nothing is decided."""
    topic, steps = created(counts[0]), 0
    for _ in history(topic, *counts[1:-1]):
        pass
    before = topic.znode
    for _ in history(topic, counts[-1]):
        steps += 1
        edited = topic.znode.replace(**{field: getattr(before, field) for field in fields})
        examined = consistency.examine(dataclasses.replace(topic, znode=edited))
        assert not examined.wrong or not examined.is_told, steps
    assert steps > 4


@pytest.mark.parametrize("counts", [(4, 6), (1, 8), (2, 3), (1, 2)], ids=str)
def test_a_topic_that_is_put_back_to_before_it_grew_blames_no_state(counts: tuple[int, ...]) -> None:
    topic = after(*counts)
    edited = topic.znode.replace(undeleted_partition_count=counts[0], layout_version=0)
    assert consistency.examine(dataclasses.replace(topic, znode=edited)) == CORRECT


@pytest.mark.parametrize("count", [5, 6, 7])
@pytest.mark.parametrize("fields", [{"layout_version": 1}, {"undeleted_partition_count": 8}, {}], ids=str)
def test_an_edit_of_the_topic_while_it_grows_blames_no_state(count: int, fields: dict[str, int]) -> None:
    """Before the grow is counted nothing confirms what the topic says; the edit is undone."""
    topic = created(4)
    for _ in history(topic, count):
        if topic.znode.undeleted_partition_count > 4 or topic.state(count - 1) is None:
            continue
        assigned = topic.znode.partitions | {index: [1, 2, 3] for index in range(count, 8)}
        edited = dataclasses.replace(topic, znode=topic.znode.replace(partitions=assigned, **fields))
        assert consistency.examine(edited) == CORRECT
        found = judged(edited)
        assert found is not None
        assert found.partitions.keys() == set(range(count))
        assert found.undeleted_partition_count in (4, count)


@pytest.mark.parametrize("version", [2, 3])
def test_a_count_lowered_while_a_shrink_is_under_way_blames_no_state(version: int) -> None:
    """As soon as a marked partition was told the count before it; the edit is undone."""
    topic, seen = created(4), 0
    for _ in history(topic, 8, 6):
        if topic.layout(6) == (6, 2) and topic.layout(0) == (8, 1):
            seen += 1
            edited = topic.znode.replace(undeleted_partition_count=5, layout_version=version)
            found = dataclasses.replace(topic, znode=edited)
            if min(state.sealed_offset for state in topic.states()[6:]) < 0:
                assert consistency.examine(found) == CORRECT
                assert judged(found) == topic.znode
    assert seen > 2


def test_of_one_partition_alone_the_topic_is_believed_no_less_than_the_state() -> None:
    topic = after(1, 3, 1, 0)
    edited = dataclasses.replace(topic, znode=topic.znode.replace(layout_version=0))
    assert consistency.examine(edited) == CORRECT


@pytest.mark.parametrize(("count", "blamed"), [(7, {5}), (6, {4, 5})])
def test_what_one_grow_adds_has_one_layout(count: int, blamed: set[int]) -> None:
    """It is counted as one; a smaller count in one of them would cut the grow short."""
    topic = created(4)
    for _ in history(topic, count):
        if topic.state(count - 1) is not None:
            break
    state = topic.state(5)
    assert state is not None
    examined = consistency.examine(with_state(topic, 5, state.replace(layout=Layout(8, 1))))
    assert examined.wrong.keys() == blamed
    assert examined.is_told


class Bounded(dict[int, PartitionImage]):
    """Is asked for no partition that is not assigned."""

    def get(self, index: int, default: Any = None) -> Any:
        assert index < 100
        return super().get(index, default)


@pytest.mark.parametrize("where", ["topic", "state", "sole state", "marked state"])
def test_no_rule_counts_as_far_as_a_znode_says(where: str) -> None:
    """A number as large as the field allows would keep every controller busy until its session is over."""
    topic = after(*{"sole state": (1, 2, 1, 0), "marked state": (4, 6, 4)}.get(where, (4, 6)))
    if where == "topic":
        topic.znode = topic.znode.replace(undeleted_partition_count=2**31 - 1)
    else:
        index = {"sole state": 0, "marked state": 5}.get(where, 1)
        state = topic.state(index)
        assert state is not None
        topic = with_state(topic, index, state.replace(layout=Layout(2**31 - 1, 9)))
    topic = dataclasses.replace(topic, partitions=Bounded(topic.partitions))
    examined = consistency.examine(topic)
    judged(set_aside(topic, set(examined.wrong)) if examined.wrong else topic)


def test_of_a_grow_whose_gainer_cannot_be_read_no_loser_is_blamed() -> None:
    """The first of them that was told the new layout is alone with it."""
    topic = created(4)
    for _ in history(topic, 5):
        if topic.layout(0) != topic.layout(1):
            break
    assert consistency.examine(set_aside(topic, {4})) == CORRECT


def test_one_partition_whose_layout_is_gone_takes_no_version_back() -> None:
    """It was used for other counts, and requests of that time may still come (hole 10)."""
    topic = after(1, 3, 1, 0)
    state = topic.state(0)
    assert state is not None
    znode = judged(with_state(topic, 0, state.replace(layout=None)))
    assert znode is not None
    assert znode.layout_version == topic.znode.layout_version > 0
