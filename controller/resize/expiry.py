"""Says when retention is about to remove what a group has not read of a resized topic (hole 22).

There, more than the records themselves is at stake: a log start that passes a barrier counts as having been read up to
it, so what waits behind the barrier is delivered although older records of its keys never were.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

from controller import list_offsets
from controller.context import Context
from controller.image import TopicImage
from controller.resize.groups import BrokerLink, Group, UnknownGroupsError, read_groups, readers
from controller.topic_config import topic_values
from protocol.errors import ErrorCode, KafkaError
from protocol.types import TopicPartition

_log = logging.getLogger(__name__)


class Expiring(NamedTuple):
    """Records that a group has not read and that retention removes soon: from ``position`` to ``before``."""

    group: str
    tp: TopicPartition
    position: int
    before: int


def expiring(
    groups: Sequence[Group], tp: TopicPartition, incarnation: int, log_start_offset: int, kept_from: int
) -> list[Expiring]:
    """Groups that have read less than ``kept_from``, the first offset that stays for longer than the warning time."""
    found = []
    for group in readers(groups, tp.topic):
        position = max(group.committed(tp, incarnation), log_start_offset)
        if position < kept_from:
            found.append(Expiring(group.name, tp, position, kept_from))
    return found


async def look(context: Context, link: BrokerLink, now_ms: int) -> list[Expiring]:
    """One round over the resized topics; what is found is logged too. Raises ``ControllerMovedError``."""
    image, found = context.image, []
    topics = [image.topics[name] for name in sorted(image.topics) if image.topics[name].znode.layout_version]
    kept_after = {}
    for topic in topics:
        config = await topic_values(context, topic.name)
        if "delete" in config["cleanup.policy"] and config["retention.ms"] >= 0:
            kept_after[topic.name] = now_ms - config["retention.ms"] + context.config.retention_warning_ms
    kept_after = {name: when for name, when in kept_after.items() if when > 0}
    if not kept_after:
        return []
    try:
        groups = await read_groups(link, lambda: context.image)
        for topic in topics:
            if topic.name in kept_after and readers(groups, topic.name):
                found += await _look_at(context, link, topic, groups, kept_after[topic.name])
    except (OSError, KafkaError, UnknownGroupsError) as error:
        _log.info("what is about to expire is looked for again: %s", error)
    for entry in found:
        context.metrics.retention_warnings.add(entry.tp.topic, entry.group)
        _log.warning(
            "retention is about to pass a barrier: topic=%s partition=%s group=%s has not read offsets %s to %s",
            *(entry.tp.topic, entry.tp.partition, entry.group, entry.position, entry.before),
        )
    return found


async def _look_at(
    context: Context, link: BrokerLink, topic: TopicImage, groups: Sequence[Group], kept_after_ms: int
) -> list[Expiring]:
    by_leader: dict[int, list[int]] = {}
    for index in sorted(topic.partitions):
        state = topic.state(index)
        if state is not None and state.leader in context.image.brokers:
            by_leader.setdefault(state.leader, []).append(index)
    found = []
    for leader, indexes in sorted(by_leader.items()):
        asked = {topic.name: [(index, list_offsets.ANY_LEADER_EPOCH) for index in indexes]}
        times = (list_offsets.EARLIEST, kept_after_ms, list_offsets.LATEST)
        requests = [(list_offsets.request(asked, when), None) for when in times]
        starts, kept, ends = map(_offsets, await link.ask(context.image.brokers[leader], *requests))
        for index in indexes:
            if index in starts and index in kept and index in ends:
                kept_from = kept[index] if kept[index] >= 0 else ends[index]
                tp, partition = TopicPartition(topic.name, index), topic.partitions[index]
                found += expiring(groups, tp, partition.incarnation, starts[index], kept_from)
    return found


def _offsets(answer: object) -> dict[int, int]:
    """``{partition: offset}`` of those that answered."""
    topics = getattr(answer, "topics", [])
    return {p.partition_index: p.offset for t in topics for p in t.partitions if p.error_code == ErrorCode.NONE}
