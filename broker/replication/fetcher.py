"""Follows the partitions that one other broker leads: one connection, one incremental fetch session.

A response is applied, and the next request sent, in the turn of the event loop in which the response is received.
``_fetch_on`` continues where something has to be waited for: long work, the disk, a quota, a retry.

A leader with nothing to send parks a fetch for ``replica.fetch.wait.max.ms``. Meanwhile the controller may add a
partition, or give a partition a new leader epoch. Then another task makes the leader answer at once.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterator
from functools import partial
from itertools import chain
from typing import Protocol, TypeAlias

import structlog
import trio

from anabranch.broker.log.producer_files import NO_FILES, ProducerFiles
from anabranch.broker.replication.fetch_plan import FetchPlan
from anabranch.broker.replication.fetcher_config import FetcherConfig
from anabranch.broker.replication.follower import FetchOutcome, FollowedPartition, in_pieces, storage_failure
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.describe_producers import DescribeProducersRequest, TopicRequest
from anabranch.protocol.generated.fetch import FetchRequest, FetchResponse, PartitionData
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel, Pending
from anabranch.runtime.env import Clock, Network
from anabranch.runtime.turns import pause

logger = structlog.get_logger(__name__)

FETCH_VERSION = 12
FULL_RETRY_S = 2.0
"""How long a partition in a full log dir waits before the next check for room."""
_LIST_OFFSETS_VERSION = 6
_DESCRIBE_PRODUCERS_VERSION = 0


Wait: TypeAlias = Callable[[], Awaitable[object]]


class Throttle(Protocol):
    """Decides which followed partitions may not be fetched now, because their quota is used up."""

    def is_throttled(self, key: TopicPartition) -> bool: ...
    def used(self, key: TopicPartition, size_bytes: int) -> None: ...
    def retry_at(self) -> float: ...


class _Release:
    """A request in flight that makes the leader answer the request before it. ``response`` is None if it failed."""

    __slots__ = ("answered", "response")

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.response: FetchResponse | None = None


class ReplicaFetcher:
    """The fetcher for one leader. ``run`` ends when no partition is left. ``address`` looks up the leader's address."""

    def __init__(
        self,
        leader_id: int,
        config: FetcherConfig,
        clock: Clock,
        network: Network,
        address: Callable[[], tuple[str, int] | None],
        broker_epoch: Callable[[], int],
        throttle: Throttle,
    ) -> None:
        self.leader_id = leader_id
        self._config = config
        self._clock = clock
        self._network = network
        self._address = address
        self._broker_epoch = broker_epoch
        self._throttle = throttle
        self._plan = FetchPlan()
        self._followed: dict[TopicPartition, FollowedPartition] = {}
        self._waiting: dict[TopicPartition, None] = {}
        """Partitions that are not fetched before their ``retry_at``."""
        self._without_room: list[FollowedPartition] = []
        """Partitions in full log dirs. Only their log starts are requested from the leader."""
        self._wake = trio.Event()
        self._added = trio.Event()
        """Set when a partition was added."""
        self._is_parked = False
        """Whether the leader may park a fetch now. A partition that was added after the fetch was sent is not in it."""
        self._lacks_added = False
        """Whether a partition was added after the parked fetch was sent."""
        self._release: _Release | None = None
        self._sent: Pending | None = None
        """The fetch that is not answered yet, unless it is large."""
        self._due_at = math.inf
        """The time of ``env.clock.monotonic()`` at which its response is due."""
        self._waits: Iterator[Wait] = iter(())
        """What the response of the last fetch still needs."""
        self._stopped = trio.Event()
        """Set when ``_fetch_on`` has to continue."""

    @property
    def is_idle(self) -> bool:
        return not self._followed

    # ------------------------------------------------------------ what to follow

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its log end on, in its leader epoch."""
        key = partition.key
        followed = self._followed[key] = FollowedPartition(partition)
        self._waiting.pop(key, None)
        self._plan.want(key)
        if partition.log.is_full:
            self._retry_later(key, followed)
        self._wake.set()
        self._lacks_added = True
        self._added.set()

    def unfollow(self, key: TopicPartition) -> None:
        if self._followed.pop(key, None) is not None:
            self._waiting.pop(key, None)
            self._plan.drop(key)
            self._wake.set()

    # ------------------------------------------------------------ fetching

    async def run(self) -> None:
        """Fetch until there is nothing to follow; connect again whenever the connection fails."""
        failures = 0
        while self._followed:
            self._plan.start_over(self._followed)
            address = self._address()
            try:
                if address is not None:
                    async with Channel.open(
                        self._network,
                        *address,
                        f"broker-{self._config.broker_id}-fetcher",
                        timeout_s=self._config.socket_timeout_s,
                    ) as channel:
                        failures = 0
                        await self._serve(channel)
                    continue
            except (OSError, KafkaError) as error:
                logger.info("replica.fetcher_disconnected", leader=self.leader_id, error=str(error))
            backoff_s = min(self._config.backoff_s, 0.05 * 2**failures)
            failures = min(failures + 1, 16)
            await trio.sleep(backoff_s)

    async def _serve(self, channel: Channel) -> None:
        failure: Exception | None = None
        self._is_parked, self._release, self._sent = False, None, None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._release_parked, channel)
            nursery.start_soon(self._limit_waits, channel)
            try:
                await self._fetch_on(channel)
            except (OSError, KafkaError) as error:
                failure = error  # raised below, outside of an exception group
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _release_parked(self, channel: Channel) -> None:
        """Make the leader answer a parked fetch whenever a partition is added."""
        while True:
            await self._added.wait()
            self._added = trio.Event()
            if not (self._is_parked and self._lacks_added) or self._release is not None:
                continue
            release = self._release = _Release()
            try:
                release.response = await channel.request(
                    self._plan.release(self._config), version=FETCH_VERSION, timeout_s=self._config.socket_timeout_s
                )
            except (OSError, KafkaError):
                channel.close("a fetch failed")  # the parked fetch has to fail as well
            release.answered.set()

    async def _limit_waits(self, channel: Channel) -> None:
        """Close the channel when a response is late: one timer for all fetches, which are sent one after the other."""
        timeout_s = self._config.socket_timeout_s
        while True:
            sent, left_s = self._sent, self._due_at - self._clock.monotonic()
            if sent is not None and left_s <= 0:
                channel.close_late(sent.api_key, timeout_s)
                return
            await trio.sleep(timeout_s if sent is None else min(left_s, timeout_s))

    async def _fetch_on(self, channel: Channel) -> None:
        """Fetch over one connection until nothing is left to follow. Raises ``OSError``, ``KafkaError``."""
        config = self._config
        while self._followed:
            wake = self._wake = trio.Event()
            resumes_at = self._resume_waiting()
            if self._without_room:
                await self._follow_log_starts(channel)
                continue
            if self._plan.is_empty:
                with trio.move_on_at(resumes_at):
                    await wake.wait()
                continue
            if config.flushes and (unsynced := self.unsynced()):
                await self.flush_appended(unsynced)
                continue  # a request of the controller may have arrived meanwhile
            now = self._clock.monotonic()
            wait_ms = config.wait_max_ms
            if resumes_at < now + wait_ms / 1000:
                wait_ms = max(0, math.ceil((resumes_at - now) * 1000))
            if self._plan.is_small(self._broker_epoch()):
                self._stopped = trio.Event()
                self._send(channel, now, wait_ms)
                await self._stopped.wait()
            else:
                await self._send_large(channel, wait_ms)
            for wait in self._waits:
                await wait()
            if self._release is not None:
                await self._release.answered.wait()
                released, self._release = self._release.response, None
                if released is not None and self._plan.has_session:
                    for wait in self._answered(channel, released):
                        await wait()

    def _request(self, wait_ms: int) -> FetchRequest:
        self._is_parked, self._lacks_added = self._plan.has_session and wait_ms > 0, False
        return self._plan.request(self._followed, self._config, self._broker_epoch(), wait_ms)

    async def _send_large(self, channel: Channel, wait_ms: int) -> None:
        """Fetch with a request that is encoded with pauses."""
        timeout_s = self._config.socket_timeout_s + wait_ms / 1000
        response = await channel.request(self._request(wait_ms), version=FETCH_VERSION, timeout_s=timeout_s)
        self._is_parked = False
        self._waits = self._answered(channel, response)

    def _send(self, channel: Channel, now: float, wait_ms: int) -> None:
        """Send the next request. ``_received`` is called with its response."""
        self._due_at = now + self._config.socket_timeout_s + wait_ms / 1000
        sent = self._sent = channel.post(self._request(wait_ms), version=FETCH_VERSION)
        sent.on_settled = partial(self._settled, channel)
        if sent.settled:
            self._settled(channel)

    def _settled(self, channel: Channel) -> None:
        try:
            self._received(channel)
        except Exception as error:  # any error: it belongs to the fetcher's task, not to the channel's
            self._waits = iter([partial(_fail, error)])
            self._stopped.set()

    def _received(self, channel: Channel) -> None:
        """Apply a response and send the next request, up to where something has to be waited for."""
        sent, self._sent = self._sent, None
        assert sent is not None
        self._is_parked = False
        if sent.error is not None:
            self._waits = iter([partial(_fail, sent.error)])
            self._stopped.set()
            return
        waits = self._answered(channel, sent.response)
        wait = next(waits, None)
        if wait is not None:
            self._waits = chain([wait], waits)
            self._stopped.set()
        elif self._may_go_on():
            self._send(channel, self._clock.monotonic(), self._config.wait_max_ms)
        else:
            self._waits = waits
            self._stopped.set()

    def _may_go_on(self) -> bool:
        """Whether the next request may be sent at once."""
        is_waiting = self._waiting or self._without_room or self._release is not None or self._config.flushes
        return not is_waiting and self._plan.is_small(self._broker_epoch())

    def _answered(self, channel: Channel, response: FetchResponse) -> Iterator[Wait]:
        """Apply a response. Yields what has to be waited for before the next step."""
        asked = self._plan.asked
        if self._plan.answered(ErrorCode.of(response.error_code), response.session_id, self._followed):
            yield from self._take(channel, response, asked)

    def unsynced(self) -> list[FollowedPartition]:
        """Partitions with unsynced records or truncations that the next request would report.

        A fetcher syncs its own appends. What remains are its truncations, and records that an earlier process or a
        fetcher of an earlier epoch appended.
        """
        followed = [self._followed[key] for key in self._plan.changed]
        return [one for one in followed if not one.partition.log.is_synced]

    def _resume_waiting(self) -> float:
        """Fetch partitions again that waited long enough; returns the time of the next such partition, ``inf`` if none.

        A partition in a full log dir has to wait: a replica that fetches may join the ISR, and producers would wait for
        the replica.
        """
        now, resumes_at = self._clock.monotonic(), math.inf
        for key in list(self._waiting):
            followed = self._followed[key]
            if followed.retry_at <= now and followed.partition.log.is_full:
                self._without_room.append(followed)
                followed.retry_at = now + FULL_RETRY_S
            if followed.retry_at <= now and self._is_throttled(key, followed):
                followed.retry_at = self._throttle.retry_at()
            if followed.retry_at <= now:
                del self._waiting[key]
                self._plan.want(key)
            else:
                resumes_at = min(resumes_at, followed.retry_at)
        return resumes_at

    # ------------------------------------------------------------ taking answers

    def _take(
        self, channel: Channel, response: FetchResponse, asked: dict[TopicPartition, FollowedPartition]
    ) -> Iterator[Wait]:
        out_of_range: list[FollowedPartition] = []
        appended: list[FollowedPartition] = []
        for topic in response.responses:
            for data in topic.partitions:
                key = TopicPartition(topic.topic, data.partition_index)
                followed = self._followed.get(key)
                if followed is None or asked.get(key) is not followed or not followed.is_current:
                    continue  # the controller changed the partition meanwhile
                outcome = yield from self._take_partition(key, followed, data)
                if outcome is FetchOutcome.APPENDED:
                    appended.append(followed)
                elif outcome is FetchOutcome.OUT_OF_RANGE:
                    out_of_range.append(followed)
        if appended and self._config.flushes:
            yield partial(self.flush_appended, appended)
        if out_of_range:
            yield partial(self._find_range, channel, out_of_range)

    def _take_partition(
        self, key: TopicPartition, followed: FollowedPartition, data: PartitionData
    ) -> Generator[Wait, None, FetchOutcome]:
        """Apply an answer; a large answer is applied in pieces. A new role between two pieces ends the work."""
        fetch_offset = self._plan.offset(key)
        outcome = FetchOutcome.NOTHING_NEW
        for number, piece in enumerate(in_pieces(data)):
            if number:
                yield pause
                if self._followed.get(key) is not followed or not followed.is_current:
                    return FetchOutcome.MOVED
            outcome = self._take_piece(followed, fetch_offset, piece)
            if outcome is not FetchOutcome.APPENDED:
                break
            fetch_offset = followed.partition.log.log_end_offset
        self._settle(key, followed, outcome, len(data.records or b""))
        return outcome

    @staticmethod
    def _take_piece(followed: FollowedPartition, fetch_offset: int, piece: PartitionData) -> FetchOutcome:
        try:
            return followed.take(fetch_offset, piece)
        except Exception as error:  # any error: the other partitions of this leader are still followed
            storage_failure(followed, error)
            return FetchOutcome.FENCED if followed.partition.failed else FetchOutcome.RETRY_LATER

    def _settle(self, key: TopicPartition, followed: FollowedPartition, outcome: FetchOutcome, size_bytes: int) -> None:
        """Decide whether and when a partition is fetched next."""
        if outcome is FetchOutcome.FENCED:
            self.unfollow(key)
        elif outcome is FetchOutcome.RETRY_LATER or outcome is FetchOutcome.OUT_OF_RANGE:
            self._retry_later(key, followed)
        elif outcome is not FetchOutcome.NOTHING_NEW:
            self._plan.want(key)
            self._throttle.used(key, size_bytes)
        if outcome in (FetchOutcome.APPENDED, FetchOutcome.NOTHING_NEW) and self._is_throttled(key, followed):
            followed.retry_at = self._throttle.retry_at()
            self._waiting[key] = None
            self._plan.drop(key)

    def _is_throttled(self, key: TopicPartition, followed: FollowedPartition) -> bool:
        """Whether the partition must wait. A replica in sync never waits: it would hold up producers (KIP-73)."""
        return not followed.is_caught_up and self._throttle.is_throttled(key)

    def _retry_later(self, key: TopicPartition, followed: FollowedPartition) -> None:
        now = self._clock.monotonic()
        followed.retry(now, self._config.backoff_s)
        if followed.partition.log.is_full:
            followed.retry_at = now  # the leader is told at once
        self._waiting[key] = None
        self._plan.drop(key)

    async def flush_appended(self, appended: list[FollowedPartition]) -> None:
        """Return when everything appended is on disk. A partition whose sync failed is not followed any more."""

        async def flush(followed: FollowedPartition) -> None:
            try:
                await followed.partition.log.flush()
            except Exception as error:  # any error: the leader must not count records that may not be on disk
                storage_failure(followed, error)
                key = followed.partition.key
                is_current = self._followed.get(key) is followed
                if isinstance(error, KafkaError) and not followed.partition.log.is_broken:
                    if is_current:
                        self._retry_later(key, followed)  # no space, or no descriptor: synced before the next fetch
                    return
                followed.partition.fail()
                if is_current:
                    self.unfollow(key)

        async with trio.open_nursery() as nursery:
            for followed in appended:
                nursery.start_soon(flush, followed)

    async def _find_range(self, channel: Channel, lost: list[FollowedPartition]) -> None:
        """Ask the leader for the starts and ends of the logs, and bring the local logs into that range."""
        ends = await self._list_offsets(channel, lost, LATEST_TIMESTAMP)
        starts = await self._list_offsets(channel, lost, EARLIEST_TIMESTAMP)
        ranges = {key: (starts[key], ends[key]) for key in starts.keys() & ends.keys()}
        known = [followed for followed in lost if followed.partition.key in ranges]
        # Snapshots are requested after the log starts. If records are deleted in between, the snapshots cover the
        # producers of those records, and the next fetch is out of range.
        again = [followed for followed in known if followed.starts_again(*ranges[followed.partition.key])]
        snapshots = await self._producers_without_records(channel, again)
        for followed in known:
            key = followed.partition.key
            if self._followed.get(key) is not followed or not followed.is_current:
                continue
            if key not in snapshots and followed.starts_again(*ranges[key]):
                continue  # without a snapshot from the leader, the partition is tried again later
            try:
                followed.reset_to_range(*ranges[key], snapshots.get(key, NO_FILES))
            except Exception as error:
                storage_failure(followed, error)
                continue
            followed.retry_at = -math.inf

    async def _follow_log_starts(self, channel: Channel) -> None:
        """In partitions without room, delete the records that the leader has deleted: that may make room.

        The same request tells the leader that there is no room, so that no producer waits for this replica.
        """
        waiting, self._without_room = self._without_room, []
        starts = await self._list_offsets(channel, waiting, EARLIEST_TIMESTAMP, has_no_room=True)
        for followed in waiting:
            key = followed.partition.key
            if key in starts and self._followed.get(key) is followed and followed.is_current:
                try:
                    followed.raise_log_start(min(starts[key], followed.partition.log.log_end_offset))
                except Exception as error:
                    storage_failure(followed, error)

    async def _producers_without_records(
        self, channel: Channel, lost: list[FollowedPartition]
    ) -> dict[TopicPartition, ProducerFiles]:
        """For each partition that the leader answers, the files of producers whose records the leader has deleted."""
        if not lost:
            return {}
        topics: dict[str, TopicRequest] = {}
        for followed in lost:
            key = followed.partition.key
            topics.setdefault(key.topic, TopicRequest(name=key.topic)).partition_indexes.append(key.partition)
        response = await channel.request(
            DescribeProducersRequest(topics=list(topics.values()), without_records=True),
            version=_DESCRIBE_PRODUCERS_VERSION,
            timeout_s=self._config.socket_timeout_s,
        )
        return {
            TopicPartition(topic.name, found.partition_index): ProducerFiles(bytes(found.snapshot), bytes(found.kept))
            for topic in response.topics
            for found in topic.partitions
            if not found.error_code
        }

    async def _list_offsets(
        self, channel: Channel, lost: list[FollowedPartition], timestamp: int, *, has_no_room: bool = False
    ) -> dict[TopicPartition, int]:
        topics: dict[str, ListOffsetsTopic] = {}
        for followed in lost:
            key = followed.partition.key
            topics.setdefault(key.topic, ListOffsetsTopic(name=key.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=key.partition, current_leader_epoch=followed.leader_epoch, timestamp=timestamp
                )
            )
        request = ListOffsetsRequest(
            replica_id=self._config.broker_id, topics=list(topics.values()), has_no_room=has_no_room
        )
        response = await channel.request(
            request, version=_LIST_OFFSETS_VERSION, timeout_s=self._config.socket_timeout_s
        )
        return {
            TopicPartition(topic.name, found.partition_index): found.offset
            for topic in response.topics
            for found in topic.partitions
            if not found.error_code
        }


async def _fail(error: Exception) -> None:
    raise error
