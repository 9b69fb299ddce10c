"""Carries out the steps of resizes that ``ordered_resize`` decides: a limited number of them in each call.

A resize is resumed from the znodes alone. No znode has the brokers' responses: a new controller sends the requests to
every leader again and waits for the responses. One task makes all decisions, so ZooKeeper acknowledges a write of a
topic before the next decision about that topic.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from anabranch.controller import view
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import ResizesDue
from anabranch.controller.giving_up import give_up
from anabranch.controller.image import TopicImage
from anabranch.controller.resize import deleting_replicas, ends, goal, stock_producer_wait
from anabranch.controller.state_writes import StateChange
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.controller.topic_id import new_topic_id
from anabranch.ordered_resize.next_step import Step, next_steps
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SetOp, ZkError
from anabranch.zk_schemas import paths

CHANGED_AT_ONCE = MAX_OPERATIONS
"""Partitions whose states resizes change before the controller handles other events."""


def advance(context: Context) -> Decisions[None]:
    """Advance every resize as far as possible now. Raises ``ControllerMovedError``, ``ImageStaleError``."""
    image, left = context.image, CHANGED_AT_ONCE
    for name in sorted(image.topics):
        topic = image.topics[name]
        if name in image.deletions or topic.frozen or topic.unreadable or not view.is_due(topic):
            continue
        if why := goal.not_now(context.image):
            goal.log_wait(topic, f"its resize waits: {why}")
            continue
        try:
            left -= yield from _advance(context, topic, left)
        except ZkError as error:
            give_up(context, f"a step of the resize of {name}", error)
        if left <= 0:
            context.events.put(ResizesDue())
            return


def concerns(context: Context, names: Sequence[str]) -> bool:
    """Whether a resize of any of these topics has anything left to do."""
    found = (context.image.topics.get(name) for name in names)
    return any(topic is not None and view.is_due(topic) for topic in found)


def _advance(context: Context, topic: TopicImage, at_most: int) -> Decisions[int]:
    """Write the due steps of one topic. Returns the number of changed partitions."""
    deleting_replicas.stop(context, topic)
    ends.ask(context, topic)
    stock_producer_wait.advance(context, topic)
    if not stock_producer_wait.is_over(topic):
        return 0
    snapshot = view.snapshot_of(context.image, topic, new_topic_id(context.rng), context.clock.now_ms())
    due = decide(topic, snapshot, at_most)
    if not due:
        yield from goal.begin_wanted(context, topic, snapshot)
        return 0
    topic.wait_logged = ""
    changed = 0
    for effects in due:
        yield effects
        changed += len(effects.stepped)
    context.events.put(ResizesDue())
    return changed


def decide(topic: TopicImage, snapshot: Snapshot, at_most: int) -> list[Effects]:
    """The effects of a topic's due steps, in order; empty when the resize only waits.

    Steps of one kind are in one ``Effects``. Together they change at most ``at_most`` partitions; the first step may
    exceed this.
    """
    by_name: dict[str, list[Step]] = {}
    for step in _first(next_steps(snapshot), at_most):
        by_name.setdefault(step.name, []).append(step)
    return [_together(topic, name, of_name) for name, of_name in by_name.items()]


def _first(steps: Sequence[Step], at_most: int) -> list[Step]:
    """The first steps that together change at most ``at_most`` partitions; at least one step, whatever its size."""
    taken: list[Step] = []
    for step in steps:
        at_most -= _size(step)
        if at_most < 0 and taken:
            break
        taken.append(step)
    return taken


def _size(step: Step) -> int:
    return len(step.states) + len(step.deleted)


def _together(topic: TopicImage, name: str, steps: Sequence[Step]) -> Effects:
    """The effects of steps of one kind. A step that changes the topic's znode is the only one of its kind."""
    states = [_changes(topic, step) for step in steps]
    stepped = sorted(p for step in steps for p in (*step.states, *step.deleted))
    if all(step.topic is None for step in steps):
        return Effects(topic.name, states=states, step=name, stepped=stepped)
    (step,) = steps
    assert step.topic is not None
    after = {
        p: dataclasses.replace(found, state=step.states.get(p, found.state)) for p, found in topic.partitions.items()
    }
    becoming = goal.becoming(dataclasses.replace(topic, partitions=after), step.topic, topic.version)
    return dataclasses.replace(
        becoming,
        writes=[*becoming.writes, *_operations(topic, step)],
        states=states,
        removed=step.deleted,
        step=name,
        stepped=stepped,
    )


def _changes(topic: TopicImage, step: Step) -> list[StateChange]:
    return [
        StateChange(TopicPartition(topic.name, p), state, create=topic.state(p) is None)
        for p, state in step.states.items()
    ]


def _operations(topic: TopicImage, step: Step) -> list[SetOp | DeleteOp]:
    """The states that a step changes and deletes, for the multi with the topic's znode."""
    ops: list[SetOp | DeleteOp] = [
        SetOp(paths.partition_state(topic.name, p), state.encode(), topic.partitions[p].epoch)
        for p, state in step.states.items()
    ]
    for p in step.deleted:
        ops += [DeleteOp(paths.partition_state(topic.name, p)), DeleteOp(paths.partition(topic.name, p))]
    return ops
