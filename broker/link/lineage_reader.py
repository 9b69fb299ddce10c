"""Lineages of partitions, read from znodes, for PartitionLeaderEpochsForPartitions (25301) and for the cleaner.

The state znode of a partition and the znode of its topic are read at the first question about them, after a ``sync``.
The znodes are kept until their data watches fire. ZooKeeper fires a watch before any read of the same session shows the
change. So all watched znodes in an answer are from the same moment. Nothing is guessed: while a znode cannot be read or
does not exist yet, the answer is LEADER_NOT_AVAILABLE (5), and the client asks again. For a malformed znode the answer
names the fault.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import structlog
import trio

from anabranch.broker.metadata_cache import MetadataCache
from anabranch.ordered_resize import kept_tombstones
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponseEntry as Entry,
)
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponseLoser as Loser,
)
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition as PartitionAnswer,
)
from anabranch.protocol.sentinels import NO_EPOCH, NO_INCARNATION, NO_OFFSET, NO_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import NoNodeError, ZkError, ZkStore
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)

MAX_BYTES = 8 * 1024 * 1024
"""The maximum total size of the kept znodes, with ``_OVERHEAD`` for each.
Beyond it, the least recently requested znode is dropped. A decoded znode takes up to ten times its size."""
_OVERHEAD = 512
_READS_AT_ONCE = 64
T = TypeVar("T")


class LineageQuestion(NamedTuple):
    """A question about one partition, with the topic's incarnation in the client's metadata; -1 for any."""

    tp: TopicPartition
    topic_incarnation: int = NO_INCARNATION
    """The czxid of the topic's znode."""


class StoredLineage(NamedTuple):
    """The lineage in a state znode, in the form of a response."""

    as_of: int
    floor: int
    entries: list[Entry]
    is_complete: bool
    """False before the partition has had a leader."""


class KnownZnode(Generic[T]):
    """One znode as it was read last. The value is current as long as the znode ``is_watched``."""

    __slots__ = ("_decode", "counted", "czxid", "is_absent", "is_watched", "path", "reading", "size", "value", "wrong")

    def __init__(self, path: str, decode: Callable[[str, bytes], T]) -> None:
        self.path = path
        self._decode = decode
        self.value: T | None = None
        self.wrong = ""
        """The fault of a malformed znode, otherwise empty."""
        self.czxid = -1
        self.size = _OVERHEAD
        self.counted = 0
        """The part of ``size`` that is counted in ``LineageReader.size_bytes``."""
        self.is_absent = False
        self.is_watched = False
        self.reading: trio.Event | None = None

    def current(self) -> T | None:
        """The value of the znode; None if the znode has to be read first."""
        return self.value if self.is_watched else None

    def is_malformed(self) -> bool:
        """Whether the znode is malformed, so that reading it is useless until it is written again."""
        return self.is_watched and bool(self.wrong)

    def changed(self) -> None:
        """The callback of the data watch: the znode was written or deleted, or the connection was lost."""
        self.is_watched = False

    async def read(self, zk: ZkStore) -> None:
        """Read the znode unless it is known; concurrent callers share one read. After an error the znode stays unread.

        If the znode does not exist, only its absence is noted.
        """
        if self.reading is not None:
            await self.reading.wait()
            return
        if self.current() is not None or self.is_malformed():
            return
        self.reading = trio.Event()
        self.value, self.wrong, self.size = None, "", _OVERHEAD
        self.is_watched, self.is_absent = True, False
        try:
            znode = await zk.get(self.path, self.changed)
            self.value = self._decode(self.path, znode.data)
            self.czxid, self.size = znode.czxid, _OVERHEAD + len(znode.data)
        except NoNodeError:
            self.is_absent = True
        except ZkError as error:
            logger.warning("lineages.not_read", path=self.path, error=str(error))
        except MalformedZnodeError as error:
            self.wrong = str(error)
            logger.error("lineages.malformed", error=self.wrong)
        finally:
            self.reading.set()
            self.reading = None


Read: TypeAlias = Mapping[str, KnownZnode[Any]]
"""The znodes that were read just now, by path. If a znode was absent, it counts as absent."""
NOTHING_READ: Final[Read] = MappingProxyType({})


class LineageReader:
    """The answers to PartitionLeaderEpochsForPartitions (25301)."""

    def __init__(self, zk: ZkStore, metadata: MetadataCache, max_bytes: int = MAX_BYTES) -> None:
        self._zk = zk
        self._metadata = metadata
        self._max_bytes = max_bytes
        self._known: OrderedDict[str, KnownZnode[Any]] = OrderedDict()
        self.size_bytes = 0
        """Bytes of the kept znodes that are read completely."""

    def answer(self, question: LineageQuestion, read: Read = NOTHING_READ) -> PartitionAnswer | None:
        """The answer. If it is None, call ``read`` and pass its result; a second None means: not known."""
        tp = question.tp
        if tp.topic not in self._metadata.topics:
            # Before the first UpdateMetadata, an unknown topic may still exist.
            return refusal(tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if self._metadata.brokers else None
        topic = self._current_topic(question, read)
        if topic is None:
            return self._malformed(tp, TopicZnode.path(tp.topic), read)
        over = topic.last_leader_epochs.get(tp.partition, NO_EPOCH)
        over_end = topic.base_offset(tp.partition) if over >= 0 else NO_OFFSET
        if over < 0 and tp.partition not in topic.partitions:
            return refusal(tp, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        path = PartitionState.path(*tp)
        known: KnownZnode[StoredLineage] | None = self._find(path, read)
        stored = None if known is None else known.current()
        if stored is not None and stored.is_complete:
            return PartitionAnswer(
                partition_index=tp.partition,
                as_of=stored.as_of,
                over=over,
                over_end_offset=over_end,
                floor=stored.floor,
                lineage=stored.entries,
            )
        if path in read and read[path].is_absent and over >= 0:
            return PartitionAnswer(partition_index=tp.partition, over=over, over_end_offset=over_end)
        return self._malformed(tp, path, read)

    def topic_incarnation(self, name: str, read: Read = NOTHING_READ) -> int:
        """The czxid of a topic's znode, -1 where it is not known."""
        known = self._find(TopicZnode.path(name), read)
        return NO_INCARNATION if known is None or known.current() is None else known.czxid

    async def first_kept_epoch(self, tp: TopicPartition) -> int:
        """The first leader epoch whose tombstones stay in the partition.

        If that epoch is not known, the result is ``BELOW_EVERY_EPOCH``, so that all tombstones stay. A lineage from an
        earlier read is sufficient, so a znode is not read again.
        """
        question, read = LineageQuestion(tp), NOTHING_READ
        answer = self.answer(question)
        if answer is None:
            read = await self.read([question])
            answer = self.answer(question, read)
        topic = self._current_topic(question, read)
        lineage = None if answer is None else Lineage.of_answer(answer)
        if topic is None or lineage is None:
            return BELOW_EVERY_EPOCH
        return kept_tombstones.first_kept_epoch(lineage.entries, lineage.as_of, topic.last_leader_epochs)

    def _malformed(self, tp: TopicPartition, path: str, read: Read) -> PartitionAnswer | None:
        known = self._find(path, read)
        if known is None or not known.is_malformed():
            return None
        return refusal(tp, ErrorCode.LEADER_NOT_AVAILABLE, known.wrong)

    def _current_topic(self, question: LineageQuestion, read: Read) -> TopicZnode | None:
        known: KnownZnode[TopicZnode] | None = self._find(TopicZnode.path(question.tp.topic), read)
        return None if known is None or known.czxid < question.topic_incarnation else known.current()

    def _find(self, path: str, read: Read) -> KnownZnode[Any] | None:
        if path in self._known:
            self._known.move_to_end(path)
        return read.get(path) or self._known.get(path)

    async def read(self, questions: Collection[LineageQuestion]) -> Read:
        """Read the znodes that the answers need, after a ``sync``. A znode that is still watched then is up to date.

        The topic is read before the states, so that no state is read for a partition that never existed. The topic is
        read again after them if it changed. A removal deletes the state of a partition and notes its last leader epoch
        in the topic's znode, in one write. So if a state is absent, the topic's znode has that note, or has changed.
        """
        asked = [question for question in questions if question.tp.topic in self._metadata.topics]
        topics = {name: self._kept(TopicZnode.path(name), TopicZnode.decode) for name in {q.tp.topic for q in asked}}
        if not topics:
            return NOTHING_READ
        try:
            await self._zk.sync(TopicZnode.path(asked[0].tp.topic))
        except ZkError as error:
            logger.warning("lineages.not_read", error=str(error))
            return NOTHING_READ
        await self._read_all(topics.values())
        states = [
            self._kept(PartitionState.path(*question.tp), _decode)
            for question in asked
            if self.answer(question._replace(topic_incarnation=NO_INCARNATION)) is None
        ]
        await self._read_all(states)
        await self._read_all(topics.values())
        found: list[KnownZnode[Any]] = [*topics.values(), *states]
        self._keep(found)
        return {known.path: known for known in found}

    async def _read_all(self, znodes: Collection[KnownZnode[Any]]) -> None:
        unread = [known for known in znodes if known.current() is None]
        for start in range(0, len(unread), _READS_AT_ONCE):
            async with trio.open_nursery() as nursery:
                for known in unread[start : start + _READS_AT_ONCE]:
                    nursery.start_soon(known.read, self._zk)

    def _kept(self, path: str, decode: Callable[[str, bytes], T]) -> KnownZnode[T]:
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = KnownZnode(path, decode)
        else:
            self._known.move_to_end(path)
        return known

    def _keep(self, read: Collection[KnownZnode[Any]]) -> None:
        """Keep at most ``max_bytes`` of znodes. The caller itself still has the znodes that it has just read."""
        for known in read:
            if self._known.get(known.path) is known:
                self.size_bytes += known.size - known.counted
                known.counted = known.size
        while self.size_bytes > self._max_bytes:
            self.size_bytes -= self._known.popitem(last=False)[1].counted


def _decode(path: str, data: bytes) -> StoredLineage:
    """Raises ``MalformedZnodeError``."""
    state = PartitionState.decode(path, data)
    entries = [
        Entry(
            epoch=epoch,
            losers=[Loser(partition_index=loser, leader_epoch=last) for loser, last in losers.items()],
            written_ms=state.lineage_times.get(epoch, NO_TIMESTAMP),
        )
        for epoch, losers in state.lineage
    ]
    return StoredLineage(state.leader_epoch, state.floor, entries, state.leader_epoch >= 0)


def refusal(tp: TopicPartition, code: ErrorCode, why: str | None = None) -> PartitionAnswer:
    """The answer with only an error."""
    return PartitionAnswer(partition_index=tp.partition, error_code=code, error_message=why)
