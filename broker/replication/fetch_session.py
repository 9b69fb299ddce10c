"""Incremental fetch sessions (KIP-227). A session knows which partitions a client fetches and which have changed.

A session has a dirty set. An append, a new high watermark or a change of role adds the partition to the dirty set of
each session that watches it. An incremental fetch looks only at dirty partitions. A dirty partition is not watched
until it is read again. A new high watermark alone does not wake a waiting fetch that reads up to the log end.

A session belongs to the connection of its last fetch, and ends with that connection. A client that reconnects and uses
the session again gets FETCH_SESSION_ID_NOT_FOUND, and begins a new session. Kafka keeps such a session until it needs
the slot. But Java's clients and our own begin a new session in any case when they have lost a connection.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterable, Iterator

from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest
from anabranch.protocol.sentinels import INVALID_SESSION_ID, NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Clock

MAX_EPOCH = 2**31 - 1
_ADDED_AT_ONCE = 256
_TAKEN = FetchPartition()
"""The place of a partition that was taken out of a request."""
EVICTION_S = 120.0
"""A session this old, or this long unused, may be evicted (Kafka's MIN_INCREMENTAL_FETCH_SESSION_EVICTION_MS)."""


class FetchedPartition:
    """A partition as the client last requested it, and its values in the last response."""

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "follower_log_start_offset",
        "high_watermark",
        "is_cut_short",
        "is_new",
        "last_fetched_epoch",
        "log_start_offset",
        "max_bytes",
    )

    def __init__(self, asked: FetchPartition) -> None:
        self.high_watermark = NO_OFFSET
        self.log_start_offset = NO_OFFSET
        self.is_cut_short = False
        """Whether the last response left out records, because it was full or because of a throttle."""
        self.update(asked)

    def update(self, asked: FetchPartition) -> None:
        """Store a new position and new limits."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.follower_log_start_offset = asked.log_start_offset
        self.is_new = True
        """Whether the offset is still to be counted as a follower's progress."""


class FetchTarget:
    """The partitions that one fetch, or a session of fetches, reads."""

    __slots__ = (
        "_purgatory",
        "_reads_log_end",
        "_watched",
        "delayed",
        "dirty",
        "has_changed",
        "is_abandoned",
        "is_read",
        "partitions",
        "session_id",
        "watches",
    )

    def __init__(self, purgatory: Purgatory, session_id: int = INVALID_SESSION_ID) -> None:
        self._purgatory = purgatory
        self.session_id = session_id
        """INVALID_SESSION_ID for a fetch without a session, and for a session that has ended."""
        self.partitions: dict[TopicPartition, FetchedPartition] = {}
        self.dirty: dict[TopicPartition, None] = {}
        """The partitions to look at; the partition that has waited longest is the first."""
        self.is_read = False
        """Whether a fetch of very many partitions is reading them in steps."""
        self.delayed: DelayedOperation | None = None
        self.watches = True
        """Whether the partitions that are read are watched. A fetch that is answered at once need not watch any."""
        self._watched: dict[TopicPartition, Partition] = {}
        self._reads_log_end = False
        self.has_changed = False
        """Whether a partition has changed since the last read. The waiting fetch need not have been woken for it."""
        self.is_abandoned = False
        """Whether the client is gone, so that a fetch must not wait."""

    def add(self, request: FetchRequest) -> None:
        """Add or update the partitions of a request; each is looked at in the next read."""
        for topic in request.topics:
            self._add(topic.topic, topic.partitions)

    def add_in_steps(self, request: FetchRequest) -> Iterator[None]:
        """``add`` for very many partitions: yields between them, and takes them out of the request."""
        for number, topic in enumerate(request.topics, 1):
            for first in range(0, len(topic.partitions), _ADDED_AT_ONCE):
                some = topic.partitions[first : first + _ADDED_AT_ONCE]
                self._add(topic.topic, some)
                topic.partitions[first : first + _ADDED_AT_ONCE] = [_TAKEN] * len(some)
                if first:
                    yield
            if number % _ADDED_AT_ONCE == 0:
                yield

    def _add(self, topic: str, partitions: list[FetchPartition]) -> None:
        for asked in partitions:
            key = TopicPartition(topic, asked.partition)
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = FetchedPartition(asked)
            else:
                known.update(asked)
            self.dirty[key] = None

    def forget(self, keys: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions."""
        for key in keys:
            self.partitions.pop(key, None)
            self.dirty.pop(key, None)
            self._unwatch(key)

    def read_up_to(self, *, log_end: bool) -> None:
        """Begin a fetch that reads up to the log end, or only up to the high watermark as the fetch of a consumer."""
        if self._reads_log_end is not log_end:
            self._reads_log_end = log_end
            for key in list(self._watched):
                self._unwatch(key)
                self.dirty[key] = None

    def watch(self, partition: Partition) -> None:
        """Add a partition to the dirty set at its next change."""
        key = partition.key
        if self._watched.get(key) is not partition:
            self._unwatch(key)
            self._watched[key] = partition
            if self._reads_log_end:
                partition.log_end_readers[self] = None
            else:
                partition.readers[self] = None

    def _unwatch(self, key: TopicPartition) -> None:
        partition = self._watched.pop(key, None)
        if partition is not None:
            partition.readers.pop(self, None)
            partition.log_end_readers.pop(self, None)

    def partition_changed(self, key: TopicPartition) -> None:
        self._watched.pop(key, None)
        self.dirty[key] = None
        self.has_changed = True
        if self.delayed is not None:
            self._purgatory.changed(self.delayed)

    def high_watermark_moved(self, key: TopicPartition) -> None:
        self.dirty[key] = None
        self.has_changed = True

    def answer_parked(self) -> None:
        """Answer the waiting fetch, if there is one, with the present records, because its client sent a new request.

        The fetch reads the dirty partitions once more. Otherwise a change after its last read would count as answered,
        and no later fetch would look at the change.
        """
        delayed = self.delayed
        if delayed is None or delayed.completed:
            return
        delayed.try_complete()
        if not delayed.completed:
            delayed.expire()

    def abandon(self) -> None:
        """End the waiting fetch, because nobody will receive its response."""
        self.is_abandoned = True
        self.answer_parked()

    def close(self) -> None:
        """Stop watching."""
        for key in list(self._watched):
            self._unwatch(key)


class FetchSession(FetchTarget):
    """A session; ``epoch`` is the epoch that the next incremental fetch must have."""

    __slots__ = ("counted", "created_at", "epoch", "is_follower", "last_used", "owner")

    def __init__(self, purgatory: Purgatory, session_id: int, now: float, *, is_follower: bool = False) -> None:
        super().__init__(purgatory, session_id)
        self.is_follower = is_follower
        self.epoch = 1
        self.created_at = now
        self.last_used = now
        self.counted = 0
        """The number of partitions that count in the cache."""
        self.owner: set[int] = set()
        """The ids of the sessions of the connection that this session belongs to."""

    def next_epoch(self) -> None:
        self.epoch = 1 if self.epoch == MAX_EPOCH else self.epoch + 1


class FetchSessionCache:
    """A cache of at most ``slots`` sessions with ``max_partitions`` in all, the least recently used session first."""

    def __init__(self, slots: int, max_partitions: int, clock: Clock, rng: random.Random, purgatory: Purgatory) -> None:
        self._slots = slots
        self._max_partitions = max_partitions
        self.partitions = 0
        """The number of partitions in all sessions."""
        self._clock = clock
        self._rng = rng
        self._purgatory = purgatory
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, session_id: int) -> FetchSession | None:
        return self._sessions.get(session_id)

    def touch(self, session: FetchSession, owner: set[int]) -> None:
        """Note that the session is in use now. ``owner``: the ids of the sessions of its connection."""
        session.last_used = self._clock.monotonic()
        self._sessions.move_to_end(session.session_id)
        if session.owner is not owner:
            session.owner.discard(session.session_id)
            session.owner = owner
            owner.add(session.session_id)

    def count(self, session: FetchSession) -> bool:
        """Count the session's partitions. If there are too many in all, the session is removed: returns False.

        A session that was removed before does not count: also False.
        """
        if session.session_id == INVALID_SESSION_ID:
            return False
        self.partitions += len(session.partitions) - session.counted
        session.counted = len(session.partitions)
        if self.partitions <= self._max_partitions:
            return True
        self.remove(session.session_id)
        return False

    def remove(self, session_id: int) -> None:
        """End a session. If it is being read, or has a waiting fetch, the answer says that the session is closed."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self.partitions -= session.counted
            session.session_id = INVALID_SESSION_ID
            session.owner.discard(session_id)
            session.answer_parked()
            session.close()

    def connection_ended(self, owner: set[int]) -> None:
        """Remove the sessions of a connection."""
        for session_id in list(owner):
            self.remove(session_id)

    def create(self, size: int, *, is_follower: bool = False) -> FetchSession | None:
        """A new session for ``size`` partitions, or None if the cache is full and no session can be evicted."""
        now = self._clock.monotonic()
        if size > self._max_partitions:
            return None
        if len(self._sessions) >= self._slots and not self._evict(size, now, is_follower):
            return None
        while self.partitions + size > self._max_partitions:
            if not self._evict_for_room(now, is_follower):
                return None
        session_id = self._rng.randrange(1, MAX_EPOCH)
        while session_id in self._sessions:
            session_id = self._rng.randrange(1, MAX_EPOCH)
        session = FetchSession(self._purgatory, session_id, now, is_follower=is_follower)
        self._sessions[session_id] = session
        return session

    def _evict(self, size: int, now: float, is_follower: bool) -> bool:
        """Evict a session for one of ``size`` partitions, as in KIP-227; False if there is none to evict.

        A session that was not used for two minutes is evicted first. If there is none, a new session of a follower
        evicts any consumer's session. Otherwise, of the sessions of the same kind that are older than two minutes, the
        smallest is evicted if it is smaller than the new session. So a consumer's session never evicts a follower's
        session in use.
        """
        if self._evict_for_room(now, is_follower):
            return True
        same_kind = [session for session in self._sessions.values() if session.is_follower == is_follower]
        aged = [session for session in same_kind if now - session.created_at > EVICTION_S]
        smallest = min(aged, key=lambda session: len(session.partitions), default=None)
        if smallest is None or len(smallest.partitions) >= size:
            return False
        self.remove(smallest.session_id)
        return True

    def _evict_for_room(self, now: float, is_follower: bool) -> bool:
        """Evict a session that was not used for two minutes, or, for a follower, any consumer's session."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now - oldest.last_used > EVICTION_S:
            self.remove(oldest.session_id)
            return True
        consumer = next((session for session in self._sessions.values() if not session.is_follower), None)
        if is_follower and consumer is not None:
            self.remove(consumer.session_id)
            return True
        return False
