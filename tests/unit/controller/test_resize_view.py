"""A controller's view of a topic during a resize: the layout for brokers, and the draining and drained partitions."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch.controller import view
from anabranch.controller.image import Ending, TopicImage
from anabranch.ordered_resize import next_step
from anabranch.protocol.key_placement import is_doubled, place
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.support.controller.topic_images import asked, image_of, resized, unfinished
from tests.support.resize.resized_topic import Topic


def first_bump(topic: Topic) -> Topic:
    topic.write(next_step.next_steps(topic.snapshot())[0])
    return topic


def taken_back(topic: Topic, count: int) -> Topic:
    topic.ask(count)
    return topic


@pytest.mark.parametrize(
    ("topic", "sent"),
    [
        (Topic(4), PartitionLayout(4, 0)),
        (asked(4, 6), PartitionLayout(4, 0)),
        (first_bump(asked(4, 6)), PartitionLayout(6, 1)),
        (resized(4, 6), PartitionLayout(6, 1)),
        (asked(4, 6, 5), PartitionLayout(6, 1)),
        (first_bump(asked(4, 6, 5)), PartitionLayout(5, 2)),
        (taken_back(asked(4, 6), 4), PartitionLayout(4, 2)),
    ],
    ids=["new", "grow", "grow-bumped", "grown", "shrink", "shrink-bumped", "taken-back"],
)
def test_clients_place_by_the_goal_once_a_partition_has_it(topic: Topic, sent: PartitionLayout) -> None:
    """Before a partition has the goal's layout, every leader would refuse a record of the goal's layout."""
    assert view.client_layout(image_of(topic)) == sent


@pytest.mark.parametrize(
    ("counts", "announced"),
    [
        ((4, 8), 8),
        ((4, 16), 16),
        ((4, 8, 16), 16),
        ((4, 6), -1),
        ((4, 6, 8), -1),
        ((4, 12), -1),
        ((4, 8, 4), -1),
        ((4, 8, 4, 8), 8),
    ],
)
def test_doublings_are_announced(counts: tuple[int, ...], announced: int) -> None:
    topic = asked(*counts)
    assert view.announced_count(image_of(topic)) == announced
    topic.carry_out()
    assert view.announced_count(image_of(topic)) == -1


def test_a_bumped_taken_back_unordered_or_frozen_doubling_is_not_announced() -> None:
    assert view.announced_count(image_of(first_bump(asked(4, 8)))) == -1
    assert view.announced_count(image_of(taken_back(asked(4, 8), 4))) == -1
    assert view.announced_count(image_of(asked(4, 8, ordered=False))) == -1
    assert view.announced_count(dataclasses.replace(image_of(asked(4, 8)), frozen="odd")) == -1


def test_at_a_doubled_count_stock_placement_is_right_for_every_key() -> None:
    for initial in range(1, 6):
        for count in range(initial, 40):
            is_right = all(place(found, initial, count) == found % count for found in range(2_000))
            assert is_doubled(initial, count) == is_right, (initial, count)


def test_marked_partitions_drain_once_every_survivor_is_bumped() -> None:
    """Before all survivors are bumped the resize may be reverted, and deleted records would be missing."""
    topic = asked(4, 6, 4)
    assert (view.marked(image_of(topic)), view.drainable(image_of(topic))) == ([4, 5], [])
    topic.carry_out(silent=[4])  # the gainer of partition 4's keys waits for partition 4's leader
    assert view.drainable(image_of(topic)) == []
    topic.carry_out()
    assert view.drainable(image_of(topic)) == [4, 5]
    assert view.drainable(image_of(topic, silent=[4])) == [5]


def test_a_partition_that_the_next_resize_counts_again_does_not_drain() -> None:
    image = image_of(resized(4, 6, 4))
    image.znode = image.znode.replace(wanted=5)
    assert view.drainable(image) == [5]


@pytest.mark.parametrize("change", [{"frozen": "odd"}, {"unreadable": {2}}])
def test_no_partition_of_a_topic_that_cannot_be_judged_drains(change: dict[str, object]) -> None:
    assert view.drainable(dataclasses.replace(image_of(resized(4, 6, 4)), **change)) == []


def draining(*, end: int = 40, start: int = 40, processed: bool = True, epoch: int = 1) -> TopicImage:
    """Return a topic whose partitions 4 and 5 are marked, in leader epoch 1."""
    image = image_of(resized(4, 6, 4))
    for p in (4, 5):
        image.partitions[p].ending = Ending(epoch, end_offset=end, log_start_offset=start, is_processed=processed)
    return image


@pytest.mark.parametrize(
    ("image", "is_drained"),
    [
        (draining(), True),
        (draining(start=39), False),
        (draining(end=-1), False),
        (draining(start=-1, end=-1), False),
        (draining(processed=False), False),
        (draining(epoch=0), False),
        (draining(end=0, start=0, processed=False), True),
    ],
    ids=["empty", "record-left", "end-unknown", "unknown", "unflushed", "former-leader", "never-written"],
)
def test_a_partition_is_drained_when_it_is_empty_and_processed(image: TopicImage, is_drained: bool) -> None:
    assert view.is_drained(image, 5) is is_drained


def test_an_incarnation_without_records_of_its_own_is_drained() -> None:
    image = draining(processed=False)
    assert not view.is_drained(image, 5)
    image.znode = image.znode.replace(last_offsets={5: 40})
    assert view.is_drained(image, 5)


def test_a_topic_that_was_never_resized_is_not_being_resized_even_if_no_leader_has_answered() -> None:
    image = image_of(Topic(4), silent=range(4))
    assert view.is_over(image) and not view.is_resizing(image) and not view.is_due(image)


def test_a_queued_resize_is_counted_as_unfinished_although_the_one_before_is_over() -> None:
    image = image_of(Topic(4), silent=[0])
    assert not view.is_unfinished(image)
    image.znode = image.znode.replace(wanted=6)
    assert view.is_over(image) and view.is_unfinished(image) and view.is_resizing(image) and view.is_due(image)


def test_a_resize_is_over_when_every_leader_has_answered() -> None:
    topic = resized(4, 6)
    assert view.is_over(image_of(topic)) and not view.is_resizing(image_of(topic))
    assert not view.is_over(unfinished(4, 6, silent=[5])) and view.is_unfinished(unfinished(4, 6, silent=[5]))
    assert view.unfinished(unfinished(4, 6, silent=[5])) == (
        "partition 5 has the layout, and its leader has not answered"
    )


def test_a_finished_resize_stays_over_without_a_leader_and_for_the_next_controller() -> None:
    image = image_of(resized(4, 6), silent=range(6))
    assert view.is_over(image) and not view.is_resizing(image) and not view.is_due(image)
    assert view.dry_run(image, image.znode, 6).startswith("partitions 0"), "no resize is named as in progress"


def test_a_resize_that_an_earlier_release_carried_out_is_recorded_once_every_leader_has_answered() -> None:
    topic = resized(4, 6)
    topic.topic = topic.topic.replace(finished_layout_version=None)
    assert view.is_over(image_of(topic)) and not view.is_over(image_of(topic, silent=[0]))
    assert view.is_due(image_of(topic)) and not view.is_resizing(image_of(topic))
    topic.carry_out()
    assert topic.topic.finished_layout_version == 1 and not view.is_due(image_of(topic))
