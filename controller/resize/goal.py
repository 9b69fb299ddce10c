"""The goal of a resize in the topic's znode, and the queued count, for requests and for edits.

``ordered_resize.judgement`` decides. This module gives it the configuration and the cluster's limits, and writes.
"""

from __future__ import annotations

import structlog

from anabranch.controller.context import Context
from anabranch.controller.events import ResizesDue
from anabranch.controller.image import PartitionImage, TopicImage
from anabranch.controller.new_replicas import assign_new
from anabranch.controller.resize import view
from anabranch.controller.resize.step_log import log_step
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import MAX_BYTES
from anabranch.controller.topic_config import ORDERED_KEY, topic_values
from anabranch.ordered_resize import resize
from anabranch.ordered_resize.judgement import Limits, Outcome, Setting, Verdict, judge_wanted
from anabranch.ordered_resize.marked import Marked, is_compacted
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.topic_names import INTERNAL_TOPICS
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import LINEAGE_LEVEL, ORDERED_RESIZE
from anabranch.zk_schemas.topic import TopicZnode

logger = structlog.get_logger(__name__)


def setting_of(context: Context, topic: TopicImage) -> Setting:
    """What resizes of the topic are judged by besides its znodes. ``assign`` raises ``KafkaError``."""
    config = topic_values(context.image, topic.name)
    return Setting(
        assign=lambda new: assign_new(context, topic, new),
        limits=Limits(max_state_bytes=context.config.partition_state_max_bytes, max_topic_bytes=MAX_BYTES),
        is_internal=topic.name in INTERNAL_TOPICS,
        is_compacted=is_compacted(config),
        marked=Marked.of(config),
        is_ordered=config[ORDERED_KEY],
        not_now=not_now(context),
    )


def not_now(context: Context) -> str:
    """Why no topic of the cluster can be resized; empty: each can."""
    if context.image.features.level(ORDERED_RESIZE) >= LINEAGE_LEVEL:
        return ""
    return (
        f"Level {LINEAGE_LEVEL} of the feature {ORDERED_RESIZE} is not finalized: once every broker supports it,"
        " `anabranch features upgrade --all` does so."
    )


async def begin_wanted(context: Context, topic: TopicImage, snapshot: Snapshot) -> None:
    """Begin the resize that was queued, once it may begin; what never can be is dropped."""
    wanted = topic.znode.wanted
    if wanted is None or not resize.may_begin(snapshot, wanted):
        return
    try:
        verdict = judge_wanted(snapshot, setting_of(context, topic))
    except KafkaError as error:
        verdict = Verdict(Outcome.REFUSE, why=error.message or "")
    if verdict is None:
        return
    if verdict.topic is None:
        log_wait(topic, f"its resize to {wanted} partitions waits: {verdict.why}")
        return
    if verdict.outcome is Outcome.REFUSE:
        logger.error("resize.dropped", topic=topic.name, wanted=wanted, why=verdict.why)
    await write(context, topic, verdict.topic)


def log_wait(topic: TopicImage, why: str) -> None:
    """Once for each reason, however often it is looked at."""
    if topic.wait_logged != why:
        topic.wait_logged = why
        logger.warning("resize.delayed", topic=topic.name, why=why)


async def write(context: Context, topic: TopicImage, znode: TopicZnode) -> None:
    """Write a topic's znode and take it over. Raises ``ControllerMovedError``, ``ImageStaleError``, ``ZkError``."""
    before = topic.znode
    versions = await context.store.write([SetOp(paths.topic(topic.name), znode.encode(), topic.version)])
    take_over(context, topic, znode, versions[0])
    log_change(context, topic, before)


def take_over(context: Context, topic: TopicImage, znode: TopicZnode, version: int) -> None:
    """Take a written znode into the image, and tell brokers what changes for them: of a goal they hear with the first
    bump, so that no order goes before that one.
    """
    before, told = topic.znode, view.told_layout(topic)
    topic.wait_logged = ""
    adopt(topic, znode, version)
    partitions = [TopicPartition(topic.name, p) for p in sorted(topic.partitions)]
    if znode.topic_id != before.topic_id:
        for tp in partitions:
            context.batch.leader_and_isr(tp)
    elif view.told_layout(topic) != told:
        context.batch.metadata(partitions)
    context.events.put(ResizesDue())


def adopt(topic: TopicImage, znode: TopicZnode, version: int) -> None:
    """Have the image of a topic as its znode is: some partitions may be assigned now, or not any more."""
    topic.znode, topic.version = znode, version
    for p in sorted(znode.partitions.keys() - topic.partitions.keys() - topic.unreadable):
        topic.partitions[p] = PartitionImage(PartitionStatus.NONEXISTENT.enter(PartitionStatus.NEW))
    for p in topic.partitions.keys() - znode.partitions.keys():
        del topic.partitions[p]


def log_change(context: Context, topic: TopicImage, before: TopicZnode) -> None:
    """The line for a goal that is new, taken back or queued; none where nothing of that changed."""
    znode = topic.znode
    if znode.layout_version != before.layout_version:
        is_cancel = znode.undeleted_partition_count == znode.previous_undeleted_partition_count
        log_step(context, topic, "cancelled" if is_cancel else "asked-for", [])
    elif znode.wanted != before.wanted:
        log_step(context, topic, "queued" if znode.wanted is not None else "unqueued", [])
