"""Carries out what ``ordered_resize`` says is due, for every topic: some of it in each call, the rest in the next.

All there is to resume from is in the znodes. Answers are in none: a new controller tells every leader again and waits.
What is written of a topic is answered before anything else is decided of it, for there is one task of decisions.
"""

from __future__ import annotations

from collections.abc import Sequence

from anabranch.controller.context import Context
from anabranch.controller.events import ResizesDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import TopicImage
from anabranch.controller.partitions import StateChange, apply, write_together
from anabranch.controller.resize import announcing, ends, goal, removal, view
from anabranch.controller.resize.step_log import log_step
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.controller.topic_id import new_topic_id
from anabranch.ordered_resize.resize import Step, next_steps
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths

CHANGED_AT_ONCE = MAX_OPERATIONS
"""Partitions whose states a resize changes before other events are looked at."""


async def advance(context: Context) -> None:
    """Take every resize as far as it goes now. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    image, left = context.image, CHANGED_AT_ONCE
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name in image.deletions or topic.frozen or topic.unreadable or not view.is_resizing(topic):
            continue
        if why := goal.not_now(context.image):
            goal.log_wait(topic, f"its resize waits: {why}")
            continue
        try:
            left -= await _advance(context, topic, left)
        except ZkError as error:
            give_up(context, f"a step of the resize of {name}", error)
        if left <= 0:
            context.events.put(ResizesDue())
            return


def concerns(context: Context, names: Sequence[str]) -> bool:
    """Whether any of these topics is being resized."""
    found = (context.image.topics.get(name) for name in names)
    return any(topic is not None and view.is_resizing(topic) for topic in found)


async def _advance(context: Context, topic: TopicImage, at_most: int) -> int:
    """Write what is due of one topic; how many partitions were changed."""
    removal.stop(context, topic)
    ends.ask(context, topic)
    if not announcing.is_over(context, topic):
        return 0
    snapshot = view.snapshot_of(context.image, topic, new_topic_id(context.rng))
    steps = _first(next_steps(snapshot), at_most)
    if not steps:
        await goal.begin_wanted(context, topic, snapshot)
        return 0
    topic.wait_logged = ""
    by_name: dict[str, list[Step]] = {}
    for step in steps:
        by_name.setdefault(step.name, []).append(step)
    for name, of_name in by_name.items():
        await _write(context, topic, of_name)
        log_step(context, topic, name, sorted(p for step in of_name for p in (*step.states, *step.deleted)))
    context.events.put(ResizesDue())
    return sum(map(_size, steps))


def _first(steps: Sequence[Step], at_most: int) -> list[Step]:
    """As many steps as fit; one that is too large for any slice is one alone."""
    taken: list[Step] = []
    for step in steps:
        at_most -= _size(step)
        if at_most < 0 and taken:
            break
        taken.append(step)
    return taken


def _size(step: Step) -> int:
    return len(step.states) + len(step.deleted)


async def _write(context: Context, topic: TopicImage, steps: Sequence[Step]) -> None:
    """Write steps of one kind. Those that change states alone go together, several to a multi."""
    if all(step.topic is None for step in steps):
        await write_together(context, [_changes(topic, step) for step in steps])
        return
    for step in steps:
        await _write_with_topic(context, topic, step)


def _changes(topic: TopicImage, step: Step) -> list[StateChange]:
    return [
        StateChange(TopicPartition(topic.name, p), state, create=topic.state(p) is None)
        for p, state in step.states.items()
    ]


async def _write_with_topic(context: Context, topic: TopicImage, step: Step) -> None:
    """A step that changes the topic's znode, in one multi with the states it changes and deletes."""
    assert step.topic is not None
    changes = _changes(topic, step)
    ops: list[ZkOp] = [SetOp(paths.topic(topic.name), step.topic.encode(), topic.version)]
    ops += [
        SetOp(paths.partition_state(*change.tp), change.state.encode(), topic.partitions[change.tp.partition].epoch)
        for change in changes
    ]
    for p in step.deleted:
        ops += [DeleteOp(paths.partition_state(topic.name, p)), DeleteOp(paths.partition(topic.name, p))]
    versions = await context.store.write(ops)
    for change, version in zip(changes, versions[1:]):
        apply(context, change, version)
    for p in step.deleted:
        del topic.partitions[p]
    goal.take_over(context, topic, step.topic, versions[0])
