"""Which states are set aside: none that a controller wrote, and of those that were edited all that could move keys."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import chain

import pytest

from controller.image import PartitionImage, TopicImage
from controller.resize import consistency, unseen
from tests.topic_images import HISTORIES, created, history
from zk_schemas.config_keys import TOPIC_CONFIGS, topic_defaults
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import LAYOUT_FIELDS, TopicZnode

DEFAULTS = topic_defaults({}) | TOPIC_CONFIGS.parse_given({})
CORRECT = consistency.Examined({}, is_told=True)


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
    yield state.replace(sealed_offset=3)
    yield state.replace(layout=None)
    for count in (-1, 0, 1):
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
def test_no_edit_of_one_state_changes_the_initial_count_or_blames_another_alone(counts: tuple[int, ...]) -> None:
    """It places every key, with no barrier."""
    topic = created(counts[0])
    for _ in chain([None], history(topic, *counts[1:])):
        for index in topic.partitions:
            state = topic.state(index)
            for edit in () if state is None else spoilt(state, index):
                examined = consistency.examine(edited := with_state(topic, index, edit))
                assert not examined.wrong or index in examined.wrong, edit
                if examined.is_told:
                    znode = unseen.judge(set_aside(edited, set(examined.wrong)), DEFAULTS).znode
                    assert znode is None or znode.initial_partition_count == counts[0], edit


def test_a_count_that_is_put_back_while_a_shrink_is_under_way_speaks_against_no_state() -> None:
    """The version tells that it began; the topic is restored."""
    topic = created(4)
    for _ in history(topic, 6, 4):
        if topic.znode.undeleted_partition_count == 4 and topic.znode.layout_version == 2:
            edited = topic.znode.replace(undeleted_partition_count=6)
            assert consistency.examine(dataclasses.replace(topic, znode=edited)) == CORRECT
