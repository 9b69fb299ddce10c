"""Retention of resized topics: warnings before unread records expire, and orders that make it wait (hole 22).

After a resize, records of one partition wait until a group has read the awaited records of another partition. If
retention removes awaited records, the order of keys is lost too. A log start past the awaited end counts as read up to
that end. So the waiting records are delivered although older records of their keys were never delivered. Waiting
records are newer than awaited records, so a warning about the awaited records is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import structlog

from anabranch.controller import view
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.image import ClusterImage, RetainOrder, TopicImage
from anabranch.controller.resize.readers import IncarnationQuestion, KnownGroups, ask_all
from anabranch.controller.topic_config import topic_values
from anabranch.ordered_resize.progress import KEEP_ALL, Pair, Reader, ReadProgress, facts_of, retained_from
from anabranch.ordered_resize.reader_answers import commits_count, reader_of
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.update_metadata import RetainedFrom
from anabranch.protocol.offset_requests import ANY_LEADER_EPOCH
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.progress_reader import ProgressReader
from anabranch.zk_schemas.znode import MAX_EPOCH

logger = structlog.get_logger(__name__)
WAITS_KEY = "ordered.delivery.retention.waits"
MAX_KEY = "ordered.delivery.retention.waits.max.ms"
ROUNDS = 3
"""An order lasts for this many rounds, because one round may be late and another controller may take office."""
ALL = MAX_EPOCH
"""An awaited epoch that stands for all records that the partition has now."""


class Expiring(NamedTuple):
    """Records from ``position`` up to, not including, ``before``: the group has not read them, and they expire soon."""

    group: str
    tp: TopicPartition
    position: int
    before: int


def expiring(readers: Sequence[Reader], tp: TopicPartition, log_start_offset: int, before: int) -> list[Expiring]:
    """The awaited records that each group has not read and that expire within the warning time."""
    pair = Pair(tp.partition, 0)
    reading = [reader for reader in readers if reader.is_reading]
    waits = ReadProgress(facts_of(pair, log_start_offset, before), reading).commit_waits(pair)
    return [Expiring(wait.group, tp, max(wait.position, log_start_offset), before) for wait in waits]


def awaited(image: ClusterImage, topic: TopicImage) -> dict[int, int]:
    """For each awaited partition, the newest leader epoch of it that a lineage names.

    The newest epoch is enough: a group that has read to the end of the newest epoch has read to the end of every older
    epoch. A marked partition is awaited as a whole. A loser is also awaited as a whole, until its gainer has the new
    layout.
    """
    snapshot = view.snapshot_of(image, topic)
    epochs = dict.fromkeys(view.marked(topic), ALL)
    for gainer, losers in snapshot.moves.losers_of.items():
        epochs |= {} if snapshot.has_goal(gainer) else dict.fromkeys(losers, ALL)
    for state in topic.states():
        for entry in state.lineage:
            for loser, epoch in entry.losers.items():
                if topic.znode.last_leader_epochs.get(loser, NO_EPOCH) < epoch:
                    epochs[loser] = max(epochs.get(loser, epoch), epoch)
    return epochs


class Rules(NamedTuple):
    """The retention rules of a topic. Records younger than ``kept_after_ms`` are not removed soon."""

    kept_after_ms: int
    waits: bool
    """``ordered.delivery.retention.waits``"""


class _Offsets(NamedTuple):
    """Offsets of a partition, from its leader. ``awaited_end`` is None until the leader answers with this end."""

    log_start: int
    kept_from: int
    high_watermark: int
    awaited_end: int | None


class _Found(NamedTuple):
    """One round's result for a topic. ``unknown``: a line for each leader that did not answer."""

    expiring: list[Expiring]
    orders: list[RetainOrder]
    unknown: list[str]


async def look(context: Context, reader: ProgressReader, now_ms: int) -> list[RetainOrder]:
    """Warn of records of resized topics that expire soon; return the orders. Raises ``ControllerMovedError``."""
    image = context.image
    resized = [topic for _, topic in sorted(image.topics.items()) if topic.znode.layout_version and not topic.frozen]
    topics = [topic for topic in resized if topic.znode.ordered_delivery is not False and awaited(image, topic)]
    rules = {topic.name: rules_of(image, context.config, topic.name, now_ms) for topic in topics}
    expiring_in = {name: of_topic for name, of_topic in rules.items() if of_topic is not None}
    if not expiring_in:
        return []
    questions = [
        IncarnationQuestion(TopicPartition(topic.name, index), topic.partitions[index].incarnation)
        for topic in topics
        if topic.name in expiring_in
        for index in sorted(awaited(image, topic).keys() & topic.partitions.keys())
    ]
    groups = await ask_all(reader, image, questions)
    found = [_Found([], [], [groups.unknown] if groups.unknown else [])]
    for topic in topics:
        of_topic = expiring_in.get(topic.name)
        is_read = any(group.answer.is_reading for group in groups.of.get(topic.name, ()))
        if of_topic is not None and (is_read or of_topic.waits):
            found.append(await _look_at(context, reader, topic, groups, of_topic))
    for why in (why for one in found for why in one.unknown):
        logger.info("retention.unread_not_known", reason=why)
    for entry in (entry for one in found for entry in one.expiring):
        context.metrics.retention_warnings.add(entry.tp.topic, entry.group)
        logger.warning(
            "retention.unread_expires",
            topic=entry.tp.topic,
            partition=entry.tp.partition,
            group=entry.group,
            read=entry.position,
            expires_before=entry.before,
        )
    return [order for one in found for order in one.orders]


def rules_of(image: ClusterImage, own: ControllerConfig, topic: str, now_ms: int) -> Rules | None:
    """The retention rules of a topic; None if no record expires, or no record is old enough."""
    config = topic_values(image, topic)
    if "delete" not in config["cleanup.policy"] or config["retention.ms"] < 0:
        return None
    waits = bool(config[WAITS_KEY])
    stays_ms = config["retention.ms"] + (config[MAX_KEY] if waits else 0)
    kept_after_ms = now_ms - stays_ms + own.retention_warning_ms
    return Rules(max(kept_after_ms, 0), waits) if waits or kept_after_ms > 0 else None


async def _look_at(
    context: Context, reader: ProgressReader, topic: TopicImage, groups: KnownGroups, rules: Rules
) -> _Found:
    epochs = awaited(context.image, topic)
    by_leader: dict[int, list[int]] = {}
    for index in sorted(epochs.keys() & topic.partitions.keys()):
        state = topic.state(index)
        if state is not None and state.leader in context.image.brokers:
            by_leader.setdefault(state.leader, []).append(index)
    leader_epochs = {index: state.leader_epoch for index in epochs if (state := topic.state(index)) is not None}
    readers = [reader_of(group, commits_count) for group in groups.of.get(topic.name, ())]
    found = _Found([], [], [])
    for leader, indexes in sorted(by_leader.items()):
        offsets: dict[int, _Offsets] = {}
        try:
            offsets = await _ask(reader, leader, topic.name, {p: epochs[p] for p in indexes}, rules)
        except (OSError, KafkaError) as error:
            found.unknown.append(f"broker {leader} did not report the offsets of {topic.name}: {error}")
        for index in indexes:
            tp, of_partition = TopicPartition(topic.name, index), offsets.get(index)
            if of_partition is not None and of_partition.awaited_end is not None:
                before = min(of_partition.kept_from, of_partition.awaited_end)
                found.expiring.extend(expiring(readers, tp, of_partition.log_start, before))
            if rules.waits:
                pair = Pair(index, epochs[index])
                kept = KEEP_ALL if groups.unknown else retained_from(_progress(readers, pair, of_partition), pair)
                found.orders.extend([] if kept is None else [RetainOrder(tp, leader_epochs[index], *kept)])
    return found


def _progress(readers: Sequence[Reader], pair: Pair, offsets: _Offsets | None) -> ReadProgress:
    """The progress up to the awaited end, or up to the end of the partition if the awaited end is not known."""
    if offsets is None:
        return ReadProgress(facts_of(pair, 0, None), readers)
    end = offsets.high_watermark if offsets.awaited_end is None else offsets.awaited_end
    return ReadProgress(facts_of(pair, offsets.log_start, end), readers)


async def _ask(
    reader: ProgressReader, leader: int, topic: str, epochs: Mapping[int, int], rules: Rules
) -> dict[int, _Offsets]:
    """Ask a leader for the offsets of its partitions, ``{partition: offsets}``. Raises ``OSError``, ``KafkaError``."""
    asked = {topic: [(index, ANY_LEADER_EPOCH) for index in epochs]}
    past = [(index, ANY_LEADER_EPOCH, epoch) for index, epoch in epochs.items() if epoch != ALL]
    starts = await reader.offsets(leader, asked, EARLIEST_TIMESTAMP)
    kept = await reader.offsets(leader, asked, rules.kept_after_ms)
    ends = await reader.offsets(leader, asked, LATEST_TIMESTAMP)
    awaited_ends = await reader.epoch_ends(leader, topic, past)
    found = {}
    for index, epoch in epochs.items():
        tp = TopicPartition(topic, index)
        if tp in starts and tp in kept and tp in ends:
            awaited_end = ends[tp] if epoch == ALL else awaited_ends.get((index, epoch))
            kept_from = kept[tp] if kept[tp] >= 0 else ends[tp]
            found[index] = _Offsets(starts[tp], kept_from, ends[tp], awaited_end)
    return found


def send(context: Context, orders: Iterable[RetainOrder]) -> None:
    """Send each order to the leader of its epoch. A leader of a new epoch first keeps all records for a lease."""
    for_ms = ROUNDS * context.config.retention_warning_interval_ms
    for order in orders:
        found = context.image.led(order.tp)
        if (
            found is not None
            and found[3].leader_epoch == order.leader_epoch
            and found[3].leader in context.image.brokers
        ):
            retained = RetainedFrom(offset=order.offset, retained_ms=for_ms, group_id=order.group)
            context.batch.retain(found[3].leader, order.tp, retained)
