"""Carries out splits and merges: each call takes every topic as far as its znodes and its leaders' answers allow.

All there is to resume from is in the znodes. Answers are in none: a new controller tells every leader again and waits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from controller.context import Context
from controller.events import ResizesDue
from controller.giving_up import give_up
from controller.image import TopicImage
from controller.partitions import StateChange, write_together
from controller.resize import announcing, ends, plan, removal
from controller.resize.step_log import log_step
from protocol.types import TopicPartition
from runtime.env import SetOp, ZkError
from zk_schemas import paths
from zk_schemas.features import ORDERED_RESIZE
from zk_schemas.topic import TopicZnode

_log = logging.getLogger(__name__)


async def advance(context: Context) -> None:
    """Take every resize as far as it goes. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    image = context.image
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name not in image.deletions and not topic.unreadable and plan.is_resizing(topic):
            if lacking := brokers_without_resize(context):
                _log.warning("topic %s: its resize waits, for brokers %s do not know resizing", name, lacking)
                continue
            try:
                await _advance(context, topic)
            except ZkError as error:
                give_up(context, f"a step of the resize of {name}", error)


def concerns(context: Context, names: Sequence[str]) -> bool:
    """Whether any of these topics is being resized."""
    found = (context.image.topics.get(name) for name in names)
    return any(topic is not None and plan.is_resizing(topic) for topic in found)


def brokers_without_resize(context: Context) -> list[int]:
    """Live brokers that do not check layouts."""
    brokers = context.image.brokers
    return [id for id in sorted(brokers) if ORDERED_RESIZE not in brokers[id].registration.features]


async def write_topic(context: Context, topic: TopicImage, znode: TopicZnode, step: str) -> None:
    """Write a topic's znode as one step of a resize, and let every broker know all of the topic."""
    topic.version = (await context.store.write([SetOp(paths.topic(topic.name), znode.encode(), topic.version)]))[0]
    topic.znode = znode
    context.batch.metadata(TopicPartition(topic.name, index) for index in sorted(topic.partitions))
    log_step(context, topic, step, [])


async def _advance(context: Context, topic: TopicImage) -> None:
    if gainers := plan.waiting(topic):
        await _elect(context, topic, gainers)
    elif plan.new_partitions(topic) and not plan.unborn(topic):
        await _grow(context, topic)
    elif topic.znode.layout_version and not plan.unborn(topic):
        await _shrink(context, topic)


async def _grow(context: Context, topic: TopicImage) -> None:
    await _write(context, topic, "grow-record-new", plan.records_of_new(topic, context.image.controller_epoch))
    if not announcing.is_over(context, topic):
        return
    await _write(context, topic, "grow-losers", plan.bumps_of_losers(topic, context.image.controller_epoch))
    layout = plan.grow_layout(topic, plan.new_partitions(topic))
    await write_topic(context, topic, topic.znode.replace(**layout._asdict()), "grow-counted")


async def _elect(context: Context, topic: TopicImage, gainers: Sequence[int]) -> None:
    if not plan.gainers_may_be_led(topic, gainers):
        return
    image, changes = context.image, []
    for index in gainers:
        state = topic.state(index)
        assert state is not None
        electable = image.electable(TopicPartition(topic.name, index))
        led = plan.first_leader(state, topic.replicas(index), electable, image.controller_epoch)
        if led is not None:
            changes.append(plan.Change(index, led))
    await _write(context, topic, "grow-gainers", changes)
    if changes:
        context.events.put(ResizesDue())


async def _shrink(context: Context, topic: TopicImage) -> None:
    epoch = context.image.controller_epoch
    await _write(context, topic, "shrink-record-marked", plan.records_of_marked(topic, epoch))
    await _write(context, topic, "shrink-losers", plan.bumps_of_marked(topic, epoch))
    ends.ask(context, topic)
    await _write(context, topic, "shrink-sealed", ends.seals(topic, epoch))
    if plan.all_sealed(topic):
        await _write(context, topic, "shrink-survivors", plan.bumps_of_survivors(topic, epoch))
        if plan.survivors_told(topic):
            await removal.advance(context, topic)


async def _write(context: Context, topic: TopicImage, step: str, changes: Sequence[plan.Change]) -> None:
    if not changes:
        return
    groups = [
        [
            StateChange(TopicPartition(topic.name, change.partition), change.state, create=change.create),
            *(StateChange(TopicPartition(topic.name, other), state) for other, state in change.with_it.items()),
        ]
        for change in changes
    ]
    await write_together(context, groups)
    log_step(context, topic, step, [change.partition for change in changes])
