"""The driver of a stream, without Spark: begins the stream, plans micro-batches, commits processed offsets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import anyio

from anabranch.client.consumer.log_reader import LogReader
from anabranch.client.errors import KafkaError
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.protocol.stream_offsets import Offsets, StreamPosition, TopicPositions
from anabranch.protocol.types import TopicPartition
from anabranch.spark.looks import Look, Looks, topic_positions
from anabranch.spark.offsets import Range, decode, encode, ranges, split
from anabranch.spark.options import OptionError, ReadOptions
from anabranch.spark.plan import limited, reach, waits

_log = logging.getLogger(__name__)


class StalledError(Exception):
    """A query that ends at a fixed offset makes no progress, because a partition cannot be read to that offset."""


class QueryStream:
    """The driver's side of one query. Offsets are those of Spark's checkpoint, as JSON values."""

    def __init__(self, reader: LogReader, options: ReadOptions) -> None:
        self._reader = reader
        self._options = options
        self._looks = Looks(reader, options)
        self._committed: dict[TopicPartition, int] = {}
        self._idle_since: float | None = None
        self._is_checked = False
        self._warned = False

    async def initial(self) -> dict[str, Any]:
        """The start of a query without a checkpoint."""
        cluster = await self._looks.cluster()
        begin = await self._looks.resolve(cluster, self._options.begin)
        await self._looks.check_starts(begin)
        return encode(replace(begin, is_initial=True))

    async def end_at_present(self) -> None:
        """From now on, plan only up to the present ends (Trigger.AvailableNow)."""
        cluster = await self._looks.cluster()
        found = await self._looks.resolve(cluster, self._options.end)
        self._looks.target = {
            TopicPartition(name, p): position.offset
            for name, topic in found.topics.items()
            for p, position in topic.partitions.items()
        }

    async def latest(self, start: Mapping[str, Any], limit: int | None) -> Mapping[str, Any]:
        """The end of the micro-batch that begins at ``start``; ``start`` itself when nothing can be read.

        Everything before ``start`` is processed. When nothing can be read, the next call waits ``retry_backoff_ms``,
        because Spark calls again at once.
        """
        offsets = decode(start)
        await self._commit(offsets)
        clock, config = anyio.current_time, self._reader.config
        deadline = clock() + config.default_api_timeout_ms / 1000
        while True:
            if self._idle_since is not None:
                await anyio.sleep(max(0.0, self._idle_since + config.retry_backoff_ms / 1000 - clock()))
            look = await self._looks.look(offsets)
            self._is_checked = True
            self._check_assigned(look)
            end = self._plan(look, offsets, limit)
            self._idle_since = None if end is not None else clock()
            if end is not None:
                return encode(end)
            left = self._left(offsets)
            if not left:
                return start
            if clock() >= deadline:
                raise StalledError(
                    f"{left[0]} is not read to its present end: {self._why(look) or 'no leader answers'}"
                )

    async def ranges(self, start: Mapping[str, Any], end: Mapping[str, Any]) -> list[Range]:
        """The ranges of the micro-batch between two offsets."""
        begun, ended = decode(start), decode(end)
        if not self._is_checked:  # after a restart Spark repeats a micro-batch before it requests a new one
            await self._looks.cluster(ended)
            self._is_checked = True
        found = ranges(begun, ended)
        wanted = self._options.min_partitions
        if wanted is None or wanted <= len(found):
            return found
        cluster = await self._looks.cluster(ended)
        ordered = {name for name, topic in cluster.topics.items() if topic.ordered_delivery}
        kept = [one for one in found if one.topic in ordered]
        if kept and not self._warned:
            self._warned = True
            _log.warning("minPartitions does not split partitions of topics with ordered delivery: %s", sorted(ordered))
        return kept + split([one for one in found if one.topic not in ordered], wanted - len(kept))

    async def commit(self, end: Mapping[str, Any]) -> None:
        """Commit ``end``: Spark has processed everything before it."""
        await self._commit(decode(end))

    # ------------------------------------------------------------ planning

    def _check_assigned(self, look: Look) -> None:
        """Raise ``OptionError`` when an assigned partition waits for an unassigned one: the wait would never end."""
        for name, assigned in self._options.subscription.partitions.items():
            view = look.views.get(name)
            for wait in () if view is None else waits(view, look.begin[name]):
                if wait.on not in assigned:
                    raise OptionError(
                        "assign",
                        f"{name}-{wait.partition} must wait for {name}-{wait.on}, which is not assigned: "
                        f'assign both, or give up the order with kafka.ordered.delivery.unassigned.parent="ignore"',
                    )

    def _plan(self, look: Look, offsets: Offsets, limit: int | None) -> Offsets | None:
        """The end of the micro-batch; None when it would read nothing."""
        begin: dict[TopicPartition, int] = {}
        reached: dict[TopicPartition, int] = {}
        for name, view in look.views.items():
            start = look.begin[name]
            for p, end in reach(view, start).items():
                begin[TopicPartition(name, p)], reached[TopicPartition(name, p)] = start[p], end
        ends = limited(begin, reached, limit)
        if ends == begin and not self._has_jumped(offsets, begin):
            return None
        # A topic that is missing in the metadata keeps its offsets. The micro-batch begins there, because the topic's
        # old ``begin`` was for the previous micro-batch.
        topics = {name: _standing(topic) for name, topic in offsets.topics.items()}
        for name in look.views:
            partitions: dict[int, StreamPosition] = {}
            for p in look.begin[name]:
                tp, before = TopicPartition(name, p), offsets.position(name, p)
                at = begin[tp]
                is_new = before is None or before.offset != at or offsets.is_initial
                known = before if before is not None and ends[tp] == at else StreamPosition(-1)
                partitions[p] = known._replace(offset=ends[tp], begin=at if is_new else -1)
            topics[name] = topic_positions(look.cluster.topics[name], partitions)
        return Offsets(look.cluster.cluster_id or offsets.cluster_id, topics)

    @staticmethod
    def _has_jumped(offsets: Offsets, begin: Mapping[TopicPartition, int]) -> bool:
        """Whether a partition does not continue at its last offset, because records are lost."""
        known = {tp: offsets.position(*tp) for tp in begin}
        return any(position is not None and position.offset != begin[tp] for tp, position in known.items())

    def _left(self, offsets: Offsets) -> list[TopicPartition]:
        """The partitions that are not read up to the target."""
        target = self._looks.target or {}
        at = {tp: offsets.position(*tp) for tp in target}
        return sorted(tp for tp, end in target.items() if (known := at[tp]) is None or known.offset < end)

    def _why(self, look: Look) -> str:
        return "; ".join(str(wait) for name, view in look.views.items() for wait in waits(view, look.begin[name]))

    # ------------------------------------------------------------ the group

    async def _commit(self, offsets: Offsets) -> None:
        """Commit the processed offsets for the group, if there is one. A later commit replaces a failed one."""
        if self._options.group_id is None:
            return
        due = {
            TopicPartition(name, p): OffsetAndMetadata(position.offset, "", NO_EPOCH, position.incarnation)
            for name, topic in offsets.topics.items()
            for p, position in topic.partitions.items()
            if self._committed.get(TopicPartition(name, p)) != position.offset
        }
        if not due:
            return
        try:
            await self._reader.commit(due)
        except KafkaError as error:
            if not error.code.retriable:
                raise
            _log.warning("offsets of group %s are not committed yet: %s", self._options.group_id, error)
        else:
            self._committed.update((tp, offset.offset) for tp, offset in due.items())


def _standing(topic: TopicPositions) -> TopicPositions:
    """The positions of a topic from which the next micro-batch reads nothing."""
    return replace(topic, partitions={p: known._replace(begin=known.offset) for p, known in topic.partitions.items()})
