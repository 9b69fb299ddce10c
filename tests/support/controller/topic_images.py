"""A controller's image of a topic after resizes by ``ordered_resize``."""

from __future__ import annotations

from collections.abc import Collection

from anabranch.controller.image import PartitionImage, TopicImage
from anabranch.controller.states import PartitionStatus
from tests.support.resize.resized_topic import Topic


def image_of(topic: Topic, *, silent: Collection[int] = ()) -> TopicImage:
    """The image of a topic. The leaders of ``silent`` partitions have not acknowledged their last leader epoch."""
    image = TopicImage("t", topic.topic, 3, 7)
    for p in topic.topic.partitions:
        state = topic.states.get(p)
        acknowledged = -1 if state is None or p in silent else state.leader_epoch
        status = PartitionStatus.NEW if state is None else PartitionStatus.ONLINE
        image.partitions[p] = PartitionImage(status, state, epoch=5, incarnation=9, acknowledged_epoch=acknowledged)
    return image


def asked(initial: int, *counts: int, ordered: bool = True) -> Topic:
    """A topic that had each count in turn; the last count is only requested."""
    topic = Topic(initial)
    topic.topic = topic.topic.replace(ordered_delivery=ordered)
    for count in counts[:-1]:
        topic.ask(count)
        topic.carry_out()
    topic.ask(counts[-1])
    return topic


def resized(initial: int, *counts: int) -> Topic:
    """A topic that had each count in turn; no partition is removed."""
    topic = asked(initial, *counts)
    topic.carry_out()
    return topic


def unfinished(initial: int, *counts: int, silent: Collection[int]) -> TopicImage:
    """A topic whose last resize the leaders of ``silent`` partitions never acknowledged."""
    topic = asked(initial, *counts)
    topic.carry_out(silent=silent)
    return image_of(topic, silent=silent)
