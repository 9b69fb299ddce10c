"""Writes the goal of a resize and the queued count into the topic's znode, for requests and for edits.

``ordered_resize.judgement`` decides, with the configuration and the cluster's limits that this module provides.
"""

from __future__ import annotations

import dataclasses

import structlog

from anabranch.controller import view
from anabranch.controller.added_partition_replicas import assign_new
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import ResizesDue
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.step_log import log_step
from anabranch.controller.store import MAX_BYTES
from anabranch.controller.topic_config import ORDERED_KEY, topic_values
from anabranch.ordered_resize.delete_when_drained import Marked, is_compacted
from anabranch.ordered_resize.judgement import ResizeLimits, Setting, Verdict, VerdictKind, judge_wanted
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import LINEAGE_LEVEL, ORDERED_RESIZE
from anabranch.zk_schemas.topic import TopicZnode

logger = structlog.get_logger(__name__)


def setting_of(image: ClusterImage, config: ControllerConfig, topic: TopicImage) -> Setting:
    """The configs and limits by which resizes of the topic are judged. ``assign`` raises ``KafkaError``."""
    values = topic_values(image, topic.name)
    return Setting(
        assign=lambda new: assign_new(image, config, topic, new),
        limits=ResizeLimits(max_state_bytes=config.partition_state_max_bytes, max_topic_bytes=MAX_BYTES),
        is_internal=topic.name in INTERNAL_TOPICS,
        is_compacted=is_compacted(values),
        marked=Marked.of(values),
        is_ordered=values[ORDERED_KEY],
        not_now=not_now(image),
    )


def not_now(image: ClusterImage) -> str:
    """Why no topic of the cluster can be resized now; empty if topics can be resized."""
    if image.features.level(ORDERED_RESIZE) >= LINEAGE_LEVEL:
        return ""
    return (
        f"Level {LINEAGE_LEVEL} of the feature {ORDERED_RESIZE} is not finalized: run `anabranch features upgrade"
        " --all` once every broker supports it."
    )


def begin_wanted(context: Context, topic: TopicImage, snapshot: Snapshot) -> Decisions[None]:
    """Begin the queued resize if it may begin now. A count that is refused for good is dropped."""
    effects = decide_wanted(context.image, context.config, topic, snapshot)
    verdict, wanted = effects.response, topic.znode.wanted
    if verdict is None:
        return
    if verdict.topic is None:
        log_wait(topic, f"its resize to {wanted} partitions waits: {verdict.why}")
        return
    if verdict.outcome is VerdictKind.REFUSE:
        logger.error("resize.dropped", topic=topic.name, wanted=wanted, reason=verdict.why)
    yield effects


def decide_wanted(image: ClusterImage, config: ControllerConfig, topic: TopicImage, snapshot: Snapshot) -> Effects:
    """Judge the queued count and return the effects. ``response`` is the verdict; None if there is none now."""
    wanted = topic.znode.wanted
    if wanted is None:
        return Effects(topic.name)
    try:
        verdict = judge_wanted(snapshot, setting_of(image, config, topic))
    except KafkaError as error:
        verdict = Verdict(VerdictKind.REFUSE, why=error.message or "")
    if verdict is None or verdict.topic is None:
        return Effects(topic.name, response=verdict)
    return dataclasses.replace(becoming(topic, verdict.topic, topic.version), response=verdict)


def log_wait(topic: TopicImage, why: str) -> None:
    """Log why a resize waits, once for each reason."""
    if topic.wait_logged != why:
        topic.wait_logged = why
        logger.warning("resize.delayed", topic=topic.name, reason=why)


def becoming(topic: TopicImage, znode: TopicZnode, version: int, *, is_stored: bool = False) -> Effects:
    """The effects that give the topic another znode.

    If ``is_stored``, ``znode`` is stored already, with zkVersion ``version``. Otherwise ``version`` is the zkVersion of
    the znode that ``znode`` replaces. Brokers get a new goal only with the first partition state that has this goal.
    """
    kept = {p: found for p, found in topic.partitions.items() if p in znode.partitions}
    after = dataclasses.replace(topic, znode=znode, partitions=kept)
    partitions = [
        TopicPartition(topic.name, p) for p in sorted(znode.partitions.keys() - (topic.unreadable - kept.keys()))
    ]
    is_recreated = znode.topic_id != topic.znode.topic_id
    changes_client_layout = not is_recreated and view.client_layout(after) != view.client_layout(topic)
    return Effects(
        topic.name,
        znode,
        version,
        writes=() if is_stored else (SetOp(paths.topic(topic.name), znode.encode(), version),),
        leader_and_isr=partitions if is_recreated else (),
        metadata=partitions if changes_client_layout else (),
        events=(ResizesDue(),),
        step=step_between(topic.znode, znode),
    )


def step_between(before: TopicZnode, znode: TopicZnode) -> str:
    """The name of the step that began, cancelled, queued or unqueued a goal; empty for any other change."""
    if znode.layout_version != before.layout_version:
        is_cancel = znode.undeleted_partition_count == znode.previous_undeleted_partition_count
        return "cancelled" if is_cancel else "asked-for"
    if znode.wanted != before.wanted:
        return "queued" if znode.wanted is not None else "unqueued"
    return ""


def log_change(context: Context, topic: TopicImage, before: TopicZnode) -> None:
    """Log the step that changed a topic's znode, if the change is a step of a resize."""
    if step := step_between(before, topic.znode):
        log_step(context, topic, step, [])
