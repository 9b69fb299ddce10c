"""Says when retention is about to remove what a group has not read of a resized topic (hole 22).

There, more than the records themselves is at stake: a log start that passes the end which others wait for counts as
having been read up to it, so what waits is delivered although older records of its keys never were. The records that
wait are newer than those they wait for, so whoever is warned of these is warned of both.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from controller import list_offsets
from controller.context import Context
from controller.image import ClusterImage, TopicImage
from controller.resize import view
from controller.resize.groups import BrokerLink, Group, read_groups, readers
from controller.topic_config import topic_values
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.types import TopicPartition
from zk_schemas.znode import MAX_EPOCH

_log = logging.getLogger(__name__)
_ALL = MAX_EPOCH
"""As the epoch that is waited for: whatever the partition has now."""


class Expiring(NamedTuple):
    """Records that a group has not read and that retention removes soon: from ``position`` to ``before``."""

    group: str
    tp: TopicPartition
    position: int
    before: int


def expiring(
    groups: Sequence[Group], tp: TopicPartition, incarnation: int, log_start_offset: int, before: int
) -> list[Expiring]:
    """Groups that have not read all that others wait for and that will not stay for longer than the warning time."""
    found = []
    for group in readers(groups, tp.topic):
        position = max(group.committed(tp, incarnation), log_start_offset)
        if position < before:
            found.append(Expiring(group.name, tp, position, before))
    return found


def awaited(image: ClusterImage, topic: TopicImage) -> dict[int, int]:
    """Partitions that others wait for: up to the end of which leader epoch, the newest that a lineage names.

    Who has not passed an older end has not passed this one either. A marked partition is waited for as a whole, and so
    is one that loses keys which nobody has gained yet.
    """
    snapshot = view.snapshot_of(image, topic)
    epochs = dict.fromkeys(view.marked(topic), _ALL)
    for gainer, losers in snapshot.moves.losers_of.items():
        epochs |= {} if snapshot.has_goal(gainer) else dict.fromkeys(losers, _ALL)
    for state in topic.states():
        for entry in state.lineage:
            for loser, epoch in entry.losers.items():
                if topic.znode.last_leader_epochs.get(loser, -1) < epoch:
                    epochs[loser] = max(epochs.get(loser, epoch), epoch)
    return epochs


async def look(context: Context, link: BrokerLink, now_ms: int) -> list[Expiring]:
    """One round over the resized topics; what is found is logged too. Raises ``ControllerMovedError``."""
    image, found = context.image, []
    resized = [topic for _, topic in sorted(image.topics.items()) if topic.znode.layout_version and not topic.frozen]
    topics = [topic for topic in resized if topic.znode.ordered_delivery is not False and awaited(image, topic)]
    kept_after = {}
    for topic in topics:
        config = await topic_values(context, topic.name)
        if "delete" in config["cleanup.policy"] and config["retention.ms"] >= 0:
            kept_after[topic.name] = now_ms - config["retention.ms"] + context.config.retention_warning_ms
    kept_after = {name: when for name, when in kept_after.items() if when > 0}
    if not kept_after:
        return []
    groups = await read_groups(link, lambda: context.image, kept_after)
    unknown = [groups.unknown] if groups.unknown else []
    for topic in topics:
        if topic.name in kept_after and readers(groups.known, topic.name):
            try:
                found += await _look_at(context, link, topic, groups.known, kept_after[topic.name])
            except (OSError, KafkaError) as error:
                unknown.append(f"{topic.name}: {error}")
    for why in unknown:
        _log.info("what is about to expire is looked for again: %s", why)
    for entry in found:
        context.metrics.retention_warnings.add(entry.tp.topic, entry.group)
        _log.warning(
            "retention is about to remove what others wait for:"
            " topic=%s partition=%s group=%s has not read offsets %s to %s",
            *(entry.tp.topic, entry.tp.partition, entry.group, entry.position, entry.before),
        )
    return found


async def _look_at(
    context: Context, link: BrokerLink, topic: TopicImage, groups: Sequence[Group], kept_after_ms: int
) -> list[Expiring]:
    epochs = awaited(context.image, topic)
    by_leader: dict[int, list[int]] = {}
    for index in sorted(epochs.keys() & topic.partitions.keys()):
        state = topic.state(index)
        if state is not None and state.leader in context.image.brokers:
            by_leader.setdefault(state.leader, []).append(index)
    found = []
    for leader, indexes in sorted(by_leader.items()):
        asked = {topic.name: [(index, list_offsets.ANY_LEADER_EPOCH) for index in indexes]}
        times = (list_offsets.EARLIEST, kept_after_ms, list_offsets.LATEST)
        requests = [(list_offsets.request(asked, when), None) for when in times]
        past = {index: epochs[index] for index in indexes if epochs[index] != _ALL}
        *answers, ended = await link.ask(
            context.image.brokers[leader], *requests, (_epoch_ends_request(topic.name, past), None)
        )
        starts, kept, ends = map(_offsets, answers)
        awaited_ends = {index: ends[index] for index in ends if index not in past} | _epoch_ends(ended)
        for index in indexes:
            if index in starts and index in kept and index in ends and index in awaited_ends:
                kept_from = kept[index] if kept[index] >= 0 else ends[index]
                tp, partition = TopicPartition(topic.name, index), topic.partitions[index]
                before = min(kept_from, awaited_ends[index])
                found += expiring(groups, tp, partition.incarnation, starts[index], before)
    return found


def _offsets(answer: object) -> dict[int, int]:
    """``{partition: offset}`` of those that answered."""
    topics = getattr(answer, "topics", [])
    return {p.partition_index: p.offset for t in topics for p in t.partitions if p.error_code == ErrorCode.NONE}


def _epoch_ends_request(topic: str, epochs: Mapping[int, int]) -> OffsetForLeaderEpochRequest:
    """Where the given leader epochs ended; as a consumer asks it, whom a leader tells only what stays so."""
    asked = [OffsetForLeaderPartition(partition=index, leader_epoch=epoch) for index, epoch in epochs.items()]
    topics = [OffsetForLeaderTopic(topic=topic, partitions=asked)] if asked else []
    return OffsetForLeaderEpochRequest(replica_id=list_offsets.CONSUMER, topics=topics)


def _epoch_ends(answer: object) -> dict[int, int]:
    """``{partition: end offset}`` of those whose leader can tell."""
    partitions = [p for topic in getattr(answer, "topics", []) for p in topic.partitions]
    return {p.partition: p.end_offset for p in partitions if p.error_code == ErrorCode.NONE and p.end_offset >= 0}
