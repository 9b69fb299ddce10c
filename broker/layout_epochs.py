"""What the state znodes say of splits and merges (KIP-253): where a partition's keys came from and where they go.

A partition's znode is read at the first question about it, after a ``sync``, and kept while a data watch says that it
did not change. Nothing is guessed: what cannot be read, or is not there yet, is LEADER_NOT_AVAILABLE (5), ask again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping

import structlog
import trio

from broker.metadata_cache import MetadataCache, TopicInfo
from protocol.errors import ErrorCode
from protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition as PartitionEpochs,
)
from protocol.key_placement import ancestors
from protocol.types import TopicPartition
from runtime.env import NoNodeError, ZkError, ZkStore
from zk_schemas.partition_state import PartitionState
from zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

MAX_PARTITIONS = 10_000
"""Partitions kept, the least recently asked for first to go."""
_READS_AT_ONCE = 64

Question = tuple[TopicPartition, int]
"""A partition and the incarnation that the client's metadata names, -1 for any."""


def recorded_ancestor(partition: int, initial: int, epochs: Mapping[int, int]) -> tuple[int, int]:
    """(ancestor, epoch) of a map in a state znode, (-1, -1) when no ancestor is in it.

    One entry is all that is needed; of more, as the KIP writes them, the nearest ancestor's counts.
    """
    for ancestor in ancestors(partition, initial):
        if ancestor in epochs:
            return ancestor, epochs[ancestor]
    return -1, -1


class KnownPartition:
    """One partition's znode as it was read last."""

    __slots__ = ("exists", "incarnation", "is_watched", "reading", "state")

    def __init__(self) -> None:
        self.state: PartitionState | None = None
        self.incarnation = -1
        self.exists = True
        self.is_watched = False
        """Whether a change since would have been told."""
        self.reading: trio.Event | None = None

    def changed(self) -> None:
        """The data watch: the znode was written or deleted, or the connection is gone."""
        self.is_watched = False


class LayoutEpochs:
    """The answers to PartitionLeaderEpochsForPartitions (25301)."""

    def __init__(self, zk: ZkStore, metadata: MetadataCache, max_partitions: int = MAX_PARTITIONS) -> None:
        self._zk = zk
        self._metadata = metadata
        self._max_partitions = max_partitions
        self._known: OrderedDict[TopicPartition, KnownPartition] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def answer_now(self, question: Question) -> PartitionEpochs | None:
        """The answer where it is known; None: ``read`` first."""
        key, asked = question
        info = self._metadata.topics.get(key.topic)
        if info is None or key.partition not in info.partitions:
            return _error(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if info.initial_partition_count < 1:
            return _error(key, ErrorCode.LEADER_NOT_AVAILABLE)
        incarnation = info.partitions[key.partition].incarnation
        if key.partition < info.initial_partition_count:
            # One of the first: it came from nowhere, and is never marked for deletion.
            if incarnation < asked:
                return _error(key, ErrorCode.LEADER_NOT_AVAILABLE)
            return PartitionEpochs(partition_index=key.partition, incarnation=incarnation)
        known = self._known.get(key)
        if known is None or known.state is None or not known.is_watched:
            return None
        answer = _answer(key, max(asked, incarnation), info, known)
        if answer.error_code or answer.leader_epoch_after_creation < 0:
            return None  # what is not known yet is looked for each time
        self._known.move_to_end(key)
        return answer

    def answer(self, question: Question, read: Mapping[TopicPartition, KnownPartition]) -> PartitionEpochs:
        """The answer from what was known or has just been read; LEADER_NOT_AVAILABLE where that is not enough."""
        known_now = self.answer_now(question)
        if known_now is not None:
            return known_now
        key, asked = question
        info, known = self._metadata.topics[key.topic], read.get(key)
        if known is not None and not known.exists:
            return _error(key, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if known is None or known.state is None or not known.is_watched:
            return _error(key, ErrorCode.LEADER_NOT_AVAILABLE)
        return _answer(key, max(asked, info.partitions[key.partition].incarnation), info, known)

    async def read(self, keys: Iterable[TopicPartition]) -> dict[TopicPartition, KnownPartition]:
        """Read these partitions' znodes. What ZooKeeper refuses stays unread."""
        wanted = list(dict.fromkeys(keys))
        found: dict[TopicPartition, KnownPartition] = {}
        if not wanted:
            return found
        try:
            await self._zk.sync(PartitionState.path(*wanted[0]))
        except ZkError as error:
            logger.warning("layout_epochs.not_read", error=str(error))
            return found
        for start in range(0, len(wanted), _READS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for key in wanted[start : start + _READS_AT_ONCE]:
                    found[key] = self._kept(key)
                    nursery.start_soon(self._read, found[key], key)
        return found

    def _kept(self, key: TopicPartition) -> KnownPartition:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = KnownPartition()
            while len(self._known) > self._max_partitions:
                self._known.popitem(last=False)
        else:
            self._known.move_to_end(key)
        return known

    async def _read(self, known: KnownPartition, key: TopicPartition) -> None:
        if known.reading is not None:
            await known.reading.wait()
            return
        known.reading = trio.Event()
        try:
            await self._read_into(known, key)
        finally:
            known.reading.set()
            known.reading = None

    async def _read_into(self, known: KnownPartition, key: TopicPartition) -> None:
        path = PartitionState.path(*key)
        known.state = None
        known.exists = known.is_watched = True
        try:
            znode = await self._zk.get(path, known.changed)
            known.state = PartitionState.decode(path, znode.data)
            known.incarnation = znode.czxid
        except NoNodeError:
            known.exists = known.is_watched = False
        except ZkError as error:
            known.is_watched = False
            logger.warning("layout_epochs.not_read", partition=str(key), error=str(error))
        except MalformedZnodeError as error:
            logger.error("layout_epochs.malformed", partition=str(key), error=str(error))


def _answer(key: TopicPartition, wanted: int, info: TopicInfo, known: KnownPartition) -> PartitionEpochs:
    """From a znode that was read. ``wanted``: the newest incarnation anybody spoke of."""
    state, initial = known.state, info.initial_partition_count
    assert state is not None
    told = info.partitions[key.partition].incarnation
    # Behind what is asked for, or ahead of the metadata, whose initial count may be another topic's.
    if known.incarnation < wanted or told not in (-1, known.incarnation):
        return _error(key, ErrorCode.LEADER_NOT_AVAILABLE)
    created_from, epoch_after_creation = recorded_ancestor(key.partition, initial, state.leader_epoch_after_creation)
    if created_from < 0:
        return _error(key, ErrorCode.LEADER_NOT_AVAILABLE)
    merged_into, epoch_before_deletion = recorded_ancestor(key.partition, initial, state.leader_epoch_before_deletion)
    return PartitionEpochs(
        partition_index=key.partition,
        incarnation=known.incarnation,
        created_from=created_from,
        leader_epoch_after_creation=epoch_after_creation,
        merged_into=merged_into,
        leader_epoch_before_deletion=epoch_before_deletion,
        sealed_offset=state.sealed_offset,
    )


def _error(key: TopicPartition, code: ErrorCode) -> PartitionEpochs:
    return PartitionEpochs(partition_index=key.partition, error_code=code)
