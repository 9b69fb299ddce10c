"""The requests of a stream's driver before it plans a micro-batch: topics, ends, lineages, ends of leader epochs.

The ends of partitions are read before the lineages. So a lineage that was read after an end covers the leader epochs of
all records below this end. A lineage is kept, and requested again only when the partition's leader epoch has grown.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import anyio

from anabranch.client.cluster import Cluster, TopicInfo
from anabranch.client.consumer.log_reader import LogReader
from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, NO_EPOCH
from anabranch.protocol.stream_offsets import CheckpointError, DataLossError, Offsets, StreamPosition, TopicPositions
from anabranch.protocol.types import TopicPartition
from anabranch.spark.options import Begin, OptionError, ReadOptions
from anabranch.spark.plan import Latest, View, questions

_log = logging.getLogger(__name__)

_MAX_ROUNDS = 64
"""The largest number of rounds of requests for one ``Look``: each round goes one resize further back."""
_LATEST_TIMEOUT_MS = 2_000
"""After this time, a partition without a leader keeps its position for this micro-batch."""


class MissingTopicError(Exception):
    """A topic that the query reads does not exist."""


def data_loss(what: str) -> DataLossError:
    """The error for lost records, with its remedies."""
    return DataLossError(
        f"{what}. Set failOnDataLoss to false to continue without the lost records, or begin with a new checkpoint "
        "location"
    )


@dataclass(slots=True)
class _Topic:
    """The state of a topic that is kept from one ``Look`` to the next."""

    incarnation: int
    view: View = field(default_factory=View)
    end_of_life: dict[int, int] = field(default_factory=dict)
    """The log end of the last removed incarnation of each partition number."""
    leader_epochs: dict[int, int] = field(default_factory=dict)
    """The leader epochs in which the ends in ``view.ends`` were read."""
    judged: dict[int, int] = field(default_factory=dict)
    """The layout version in which brokers last reported a partition as removed, by partition number."""
    begun: dict[tuple[int, int], int] = field(default_factory=dict)
    """The log start of a new partition when it was first seen, by number and incarnation."""


class Look(NamedTuple):
    """The facts from which a micro-batch is planned."""

    cluster: Cluster
    views: Mapping[str, View]
    begin: Mapping[str, Mapping[int, int]]
    """The offset from which each partition is read: the last end, except in new partitions and after a loss."""


class Looks:
    """One query's view of its topics."""

    def __init__(self, reader: LogReader, options: ReadOptions) -> None:
        self._reader = reader
        self._options = options
        self._topics: dict[str, _Topic] = {}
        self._warned: set[str] = set()
        self._missing_since: dict[str, float] = {}
        self.target: Mapping[TopicPartition, int] | None = None
        """The offsets at which a query ends. The query also reads records that must be read before these offsets."""

    # ------------------------------------------------------------ topics

    async def cluster(self, offsets: Offsets | None = None) -> Cluster:
        """The present cluster, checked against the checkpoint. Raises CheckpointError and MissingTopicError."""
        subscription, config = self._options.subscription, self._reader.config
        deadline = anyio.current_time() + config.default_api_timeout_ms / 1000
        while True:
            cluster = await self._reader.cluster(None if subscription.pattern is not None else subscription.named)
            missing = [name for name in subscription.named if not _has_partitions(cluster, name)]
            if not missing:
                break
            if anyio.current_time() >= deadline:  # until then the metadata may be of a broker that is behind
                raise MissingTopicError(f"topic {missing[0]} does not exist")
            await anyio.sleep(config.retry_backoff_ms / 1000)
        if offsets is not None:
            _check_identity(cluster, offsets)
        return cluster

    def topics(self, cluster: Cluster) -> dict[str, TopicInfo]:
        """The topics to read."""
        return {
            name: topic
            for name, topic in sorted(cluster.topics.items())
            if topic.partitions and not topic.internal and self._options.subscription.matches(name)
        }

    def partitions(self, topic: TopicInfo) -> list[int]:
        """The partitions of a topic to read."""
        assigned = self._options.subscription.partitions.get(topic.name)
        return sorted(topic.partitions) if assigned is None else [p for p in assigned if p in topic.partitions]

    # ------------------------------------------------------------ where to begin and end

    async def resolve(self, cluster: Cluster, begin: Begin) -> Offsets:
        """The offsets that the options select. Raises ``OptionError`` for a partition that does not exist."""
        wanted: dict[TopicPartition, int] = {}
        found: dict[TopicPartition, int] = {}
        topics = self.topics(cluster)
        for option, named in (("assign", self._options.subscription.partitions), (begin.option, begin.offsets)):
            for name, partitions in named.items():
                unknown = [p for p in partitions if name not in topics or p not in self.partitions(topics[name])]
                if unknown:
                    raise OptionError(option, f"topic {name} has no partition {unknown[0]}, or it is not selected")
        for name, topic in topics.items():
            given = begin.offsets.get(name, {})
            for p in self.partitions(topic):
                offset = given.get(p, begin.default)
                if begin.timestamp_ms is not None:
                    wanted[TopicPartition(name, p)] = begin.timestamp_ms
                elif offset < 0:
                    wanted[TopicPartition(name, p)] = offset
                else:
                    found[TopicPartition(name, p)] = offset
        answers = await self._reader.list_offsets(wanted)
        found.update((tp, answer.offset) for tp, answer in answers.items())
        if none_so_young := wanted.keys() - answers.keys():
            ends = await self._reader.list_offsets(dict.fromkeys(none_so_young, LATEST_TIMESTAMP))
            found.update((tp, answer.offset) for tp, answer in ends.items())
        return Offsets(
            cluster.cluster_id or "",
            {
                name: topic_positions(
                    topic, {p: StreamPosition(found[TopicPartition(name, p)]) for p in self.partitions(topic)}
                )
                for name, topic in topics.items()
            },
        )

    async def check_starts(self, start: Offsets) -> None:
        """Check ``startingOffsets``: an offset above a partition's end means a truncated log, or a wrong option."""
        given = {
            TopicPartition(name, p): position.offset
            for name, topic in start.topics.items()
            for p, position in topic.partitions.items()
            if self._options.begin.offsets.get(name, {}).get(p, LATEST_TIMESTAMP) >= 0
        }
        ends = await self._reader.list_offsets(dict.fromkeys(given, LATEST_TIMESTAMP))
        for tp, offset in sorted(given.items()):
            if offset > ends[tp].offset:
                self._lost(f"{tp} ends at offset {ends[tp].offset}, before offset {offset} of startingOffsets")

    # ------------------------------------------------------------ looks

    async def look(self, offsets: Offsets) -> Look:
        """The facts before a micro-batch that begins at ``offsets``."""
        self._look_for_given_up(offsets)
        cluster = await self.cluster(offsets)
        topics = {name: topic for name, topic in self.topics(cluster).items() if not _is_behind(topic, offsets)}
        latest = await self._latest(topics)
        begin: dict[str, dict[int, int]] = {}
        for name, topic in topics.items():
            view = self._topic(topic).view
            view.is_ordered = topic.ordered_delivery and topic.layout_version >= 0
            view.latest = {p: latest[tp] for p in topic.partitions if (tp := TopicPartition(name, p)) in latest}
            begin[name] = await self._begin(topic, offsets.topics.get(name))
            if self._options.ignores_unassigned and name in self._options.subscription.partitions:
                view.ignored = frozenset(topic.partitions) - frozenset(begin[name])
        self._look_for_deleted(cluster, offsets)
        await self._ask(topics, begin)
        return Look(cluster, {name: self._topic(topic).view for name, topic in topics.items()}, begin)

    def _look_for_given_up(self, offsets: Offsets) -> None:
        """Report topics and partitions of the checkpoint that the query's options no longer name."""
        subscription = self._options.subscription
        for name, topic in offsets.topics.items():
            assigned = subscription.partitions.get(name, topic.partitions)
            left = sorted(p for p in topic.partitions if p not in assigned)
            if not subscription.matches(name):
                self._lost(f"the query no longer reads topic {name}, which its checkpoint has")
            elif left:
                self._lost(f"the query no longer reads {name}-{left[0]}, which its checkpoint has")

    def _look_for_deleted(self, cluster: Cluster, offsets: Offsets) -> None:
        """Report deleted topics of a pattern, after a time limit: until then, a broker's metadata may lag."""
        matches = self._options.subscription.matches
        missing = {name for name in offsets.topics if matches(name) and not _has_partitions(cluster, name)}
        now = anyio.current_time()
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        for name, since in self._missing_since.items():
            if now - since >= self._reader.config.default_api_timeout_ms / 1000:
                self._lost(f"topic {name} was deleted")

    def _topic(self, topic: TopicInfo) -> _Topic:
        known = self._topics.get(topic.name)
        if known is None or known.incarnation != topic.incarnation:
            known = self._topics[topic.name] = _Topic(topic.incarnation)
        return known

    async def _latest(self, topics: Mapping[str, TopicInfo]) -> dict[TopicPartition, Latest]:
        asked = {
            TopicPartition(name, p): LATEST_TIMESTAMP for name, topic in topics.items() for p in self.partitions(topic)
        }
        answers = await self._reader.list_offsets(asked, timeout_ms=_LATEST_TIMEOUT_MS, partial=True)
        return {tp: Latest(answer.offset, answer.leader_epoch) for tp, answer in answers.items()}

    async def _begin(self, topic: TopicInfo, known: TopicPositions | None) -> dict[int, int]:
        """The offsets from which the partitions are read. Checks that removed partitions were read to their ends."""
        positions = {} if known is None else known.partitions
        begin = {p: position.offset for p, position in positions.items()}
        removed = {p: position for p, position in positions.items() if _was_removed(topic, p, position)}
        if removed:
            await self._judge_removed(topic, removed, begin)
        new = [p for p in self.partitions(topic) if p not in positions]
        if new:
            await self._begin_new(topic, new, begin, is_first_seen=known is None)
        return begin

    async def _judge_removed(
        self, topic: TopicInfo, removed: Mapping[int, StreamPosition], begin: dict[int, int]
    ) -> None:
        """Check that removed incarnations were read to their ends; otherwise report a loss, and begin at these ends.

        If no broker reports a missing partition as removed, the partition keeps its position: the metadata may be out
        of date.
        """
        state = self._topic(topic)
        over = state.view.over

        def is_open(p: int) -> bool:
            return over.get(p, NO_EPOCH) < max(removed[p].leader_epoch, 0)

        # A response is valid until the layout changes: only further resizes can create and remove the partition again.
        asked = [p for p in removed if is_open(p) or state.judged.get(p) != topic.layout_version]
        if asked:
            await self._ask_lineages(topic, asked)
        for p, (offset, *_) in removed.items():
            if is_open(p):
                state.view.latest.pop(p, None)
                continue
            state.judged[p] = topic.layout_version
            end = state.end_of_life.get(p, -1)
            if end < 0:
                self._lost(f"{topic.name}-{p} was removed, and no broker says whether it was read to its end")
            elif offset < end:
                self._lost(f"{topic.name}-{p} was removed at offset {end}, and was read up to offset {offset}")
                begin[p] = end

    async def _begin_new(
        self, topic: TopicInfo, new: Iterable[int], begin: dict[int, int], *, is_first_seen: bool
    ) -> None:
        """Read partitions that are not in the offsets from their log start."""
        name, state = topic.name, self._topic(topic)
        unknown = [p for p in new if (p, topic.partitions[p].incarnation) not in state.begun]
        if unknown and topic.layout_version >= 0:
            await self._ask_lineages(topic, unknown)
        if unknown:
            asked = {TopicPartition(name, p): EARLIEST_TIMESTAMP for p in unknown}
            starts = await self._reader.list_offsets(asked, timeout_ms=_LATEST_TIMEOUT_MS, partial=True)
            for (_, p), answer in starts.items():
                state.begun[p, topic.partitions[p].incarnation] = answer.offset
                base = max(state.end_of_life.get(p, 0), 0)
                if not is_first_seen and answer.offset > base:
                    self._lost(f"the log of {name}-{p}, which is new, begins at offset {answer.offset}, not at {base}")
        for p in new:
            if (p, topic.partitions[p].incarnation) in state.begun:
                begin[p] = state.begun[p, topic.partitions[p].incarnation]

    def _lost(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise data_loss(what)
        if what not in self._warned:
            self._warned.add(what)
            _log.warning("records are lost: %s", what)

    # ------------------------------------------------------------ lineages

    async def _ask(self, topics: Mapping[str, TopicInfo], begin: Mapping[str, Mapping[int, int]]) -> None:
        """Send requests until the brokers cannot answer any open question at present."""
        for name, topic in topics.items():
            state = self._topic(topic)
            self._forget_ends_of_old_leaders(topic, state)
            asked: set[object] = set()
            present = dict(state.view.latest)
            for _ in range(_MAX_ROUNDS):
                self._restrict(name, state.view, present)
                found = questions(state.view, begin[name])
                lineages = [p for p in found.lineages if ("lineage", p) not in asked]
                ends = [end for end in found.ends if end not in asked]
                if not lineages and not ends:
                    break
                asked.update(("lineage", p) for p in lineages)
                asked.update(ends)
                if lineages:
                    await self._ask_lineages(topic, lineages)
                if ends:
                    await self._ask_ends(topic, ends)

    def _restrict(self, name: str, view: View, present: Mapping[int, Latest]) -> None:
        """Read only up to the target, or further to the ends of leader epochs that records below the target require."""
        if self.target is None:
            return
        for p, latest in present.items():
            ends = [end for (q, _), end in view.ends.items() if q == p]
            highest = max(self.target.get(TopicPartition(name, p), 0), *ends, 0)
            view.latest[p] = latest._replace(offset=min(latest.offset, highest))

    def _forget_ends_of_old_leaders(self, topic: TopicInfo, state: _Topic) -> None:
        """Drop the ends from previous leaders: after an unclean election, the new leader's ends may be lower."""
        epochs = {p: info.leader_epoch for p, info in topic.partitions.items()}
        state.view.ends = {
            (q, f): end for (q, f), end in state.view.ends.items() if state.leader_epochs.get(q) == epochs.get(q)
        }
        state.leader_epochs = epochs

    async def _ask_lineages(self, topic: TopicInfo, partitions: Iterable[int]) -> None:
        state = self._topic(topic)
        try:
            answers = await self._reader.lineages(TopicPartition(topic.name, p) for p in partitions)
        except KafkaError as error:
            if error.code is not ErrorCode.UNSUPPORTED_VERSION:
                raise
            return
        for (_, p), answer in answers.items():
            view = state.view
            if answer.over > view.over.get(p, NO_EPOCH):
                view.over[p], state.end_of_life[p] = answer.over, answer.over_end_offset
            known = view.lineages.get(p)
            if answer.lineage is not None and (known is None or answer.lineage.as_of >= known.as_of):
                view.lineages[p] = answer.lineage

    async def _ask_ends(self, topic: TopicInfo, ends: Iterable[tuple[int, int]]) -> None:
        answers = await self._reader.epoch_ends((TopicPartition(topic.name, p), epoch) for p, epoch in ends)
        view = self._topic(topic).view
        view.ends.update(((tp.partition, epoch), answer.end_offset) for (tp, epoch), answer in answers.items())


def topic_positions(topic: TopicInfo, partitions: Mapping[int, StreamPosition]) -> TopicPositions:
    """The positions with the leader epochs and incarnations of the present metadata."""
    infos = topic.partitions
    return TopicPositions(
        str(topic.topic_id),
        topic.incarnation,
        topic.layout_version,
        {
            p: position._replace(leader_epoch=infos[p].leader_epoch, incarnation=infos[p].incarnation)
            if p in infos
            else position
            for p, position in partitions.items()
        },
    )


def _has_partitions(cluster: Cluster, name: str) -> bool:
    topic = cluster.topics.get(name)
    return topic is not None and bool(topic.partitions)


def _is_behind(topic: TopicInfo, offsets: Offsets) -> bool:
    """Whether the metadata has a deleted topic of this name, because its broker is behind."""
    known = offsets.topics.get(topic.name)
    return known is not None and 0 <= topic.incarnation < known.incarnation


def _was_removed(topic: TopicInfo, p: int, position: StreamPosition) -> bool:
    """Whether the partition is missing, or a later incarnation has its number."""
    info = topic.partitions.get(p)
    return info is None or 0 <= position.incarnation < info.incarnation


def _check_identity(cluster: Cluster, offsets: Offsets) -> None:
    """Raise ``CheckpointError`` for a checkpoint of another cluster, or of another topic of the same name."""
    if offsets.cluster_id and cluster.cluster_id and offsets.cluster_id != cluster.cluster_id:
        raise CheckpointError(
            f"the checkpoint is of cluster {offsets.cluster_id}, kafka.bootstrap.servers leads to cluster "
            f"{cluster.cluster_id}: use another checkpoint location, or servers of cluster {offsets.cluster_id}"
        )
    for name, known in offsets.topics.items():
        topic = cluster.topics.get(name)
        if topic is None or not topic.partitions:
            continue
        if known.incarnation >= 0 and topic.incarnation >= 0:
            is_same = known.incarnation >= topic.incarnation  # a broker that is behind has the previous topic
        else:
            is_same = known.topic_id == str(topic.topic_id)
        if not is_same:
            raise CheckpointError(
                f"the checkpoint is of topic {name} with topic id {known.topic_id} (incarnation {known.incarnation}), "
                f"which was deleted; the topic that has the name now has topic id {topic.topic_id} (incarnation "
                f"{topic.incarnation}): use another checkpoint location"
            )
