"""Carries out splits and merges: each call takes every topic as far as its znodes and its leaders' answers allow, or
until a number of states is written; the next call goes on from there.

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
from controller.store import MAX_OPERATIONS
from protocol.types import TopicPartition
from runtime.env import SetOp, ZkError
from zk_schemas import paths
from zk_schemas.features import ORDERED_RESIZE
from zk_schemas.topic import TopicZnode

_log = logging.getLogger(__name__)
CHANGED_AT_ONCE = MAX_OPERATIONS
"""Partitions whose states a resize changes before other events are looked at, with those that change with them."""


class _Slice:
    """How much of all resizes may still be written before other events are looked at."""

    def __init__(self) -> None:
        self._left = CHANGED_AT_ONCE

    @property
    def is_full(self) -> bool:
        return self._left <= 0

    def take(self, changes: Sequence[plan.Change]) -> Sequence[plan.Change]:
        """The first of the changes, as many as fit; one that is too large for any slice is one alone."""
        for taken, change in enumerate(changes):
            states = 1 + len(change.with_it)
            if self._left < min(states, CHANGED_AT_ONCE):
                self._left = 0
                return changes[:taken]
            self._left -= states
        return changes


async def advance(context: Context) -> None:
    """Take every resize as far as it goes now. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    image, some = context.image, _Slice()
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name not in image.deletions and not topic.unreadable and plan.is_resizing(topic):
            if lacking := brokers_without_resize(context):
                _log.warning("topic %s: its resize waits, for brokers %s do not know resizing", name, lacking)
                continue
            try:
                await _advance(context, topic, some)
            except ZkError as error:
                give_up(context, f"a step of the resize of {name}", error)
            if some.is_full:
                context.events.put(ResizesDue())
                return


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


async def _advance(context: Context, topic: TopicImage, some: _Slice) -> None:
    if gainers := plan.waiting(topic):
        await _elect(context, topic, gainers, some)
    elif plan.new_partitions(topic) and not plan.unborn(topic):
        await _grow(context, topic, some)
    elif topic.znode.layout_version and not plan.unborn(topic):
        await _shrink(context, topic, some)


async def _grow(context: Context, topic: TopicImage, some: _Slice) -> None:
    epoch = context.image.controller_epoch
    if not await _write(context, topic, "grow-record-new", plan.records_of_new(topic, epoch), some):
        return
    if not announcing.is_over(context, topic):
        return
    if not await _write(context, topic, "grow-losers", plan.bumps_of_losers(topic, epoch), some):
        return
    layout = plan.grow_layout(topic, plan.new_partitions(topic))
    await write_topic(context, topic, topic.znode.replace(**layout._asdict()), "grow-counted")


async def _elect(context: Context, topic: TopicImage, gainers: Sequence[int], some: _Slice) -> None:
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
    await _write(context, topic, "grow-gainers", changes, some)
    if changes:
        context.events.put(ResizesDue())


async def _shrink(context: Context, topic: TopicImage, some: _Slice) -> None:
    epoch = context.image.controller_epoch
    if not await _write(context, topic, "shrink-record-marked", plan.records_of_marked(topic, epoch), some):
        return
    if not await _write(context, topic, "shrink-losers", plan.bumps_of_marked(topic, epoch), some):
        return
    ends.ask(context, topic)
    if not await _write(context, topic, "shrink-sealed", ends.seals(topic, epoch), some) or not plan.all_sealed(topic):
        return
    if not await _write(context, topic, "shrink-survivors", plan.bumps_of_survivors(topic, epoch), some):
        return
    if plan.survivors_told(topic):
        await removal.advance(context, topic)


async def _write(context: Context, topic: TopicImage, step: str, changes: Sequence[plan.Change], some: _Slice) -> bool:
    """Write a step, or as much of it as fits into the slice; whether that is all."""
    written = some.take(changes)
    groups = [
        [
            StateChange(TopicPartition(topic.name, change.partition), change.state, create=change.create),
            *(StateChange(TopicPartition(topic.name, other), state) for other, state in change.with_it.items()),
        ]
        for change in written
    ]
    if groups:
        await write_together(context, groups)
        log_step(context, topic, step, [change.partition for change in written])
    return len(written) == len(changes)
