"""Reads ranges of offsets and metadata of partitions, for engines that keep positions themselves, such as Spark.

There is no subscription. Nothing is blocked here: the caller keeps the order of keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import anyio

from anabranch.client.cluster import Cluster
from anabranch.client.config import ConsumerConfig
from anabranch.client.consumer.read_committed import visible_batches
from anabranch.client.errors import (
    ClientClosedError,
    ErrorCode,
    KafkaError,
    KafkaTimeoutError,
    OffsetOutOfRangeError,
    error_for,
)
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata
from anabranch.client.lifecycle import Client
from anabranch.client.net.connections import FETCH, backoff_ms
from anabranch.client.net.offsets import (
    EpochEnd,
    OffsetAndTimestamp,
    OffsetQueries,
    ask_lineages,
    in_requests,
    one_epoch_each,
)
from anabranch.client.tasks import Tasks
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic, PartitionData
from anabranch.protocol.records import RecordBatch, iter_batches
from anabranch.protocol.sentinels import (
    CONSUMER_REPLICA_ID,
    FINAL_SESSION_EPOCH,
    INVALID_SESSION_ID,
    NO_EPOCH,
    NO_INCARNATION,
    READ_COMMITTED,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

_TRIED_AGAIN = frozenset(
    {
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    }
)
"""Errors that are tried again besides retriable ones: a new leader or newer metadata is about to follow."""


class LineageAnswer(NamedTuple):
    """The answer of API 25301 for a partition."""

    lineage: Lineage | None
    """None if the partition does not exist."""
    over: int
    """The last leader epoch of the latest removed partition with this number; -1 if no such partition was removed."""
    over_end_offset: int
    """The end offset of that removed partition; -1 if the broker does not send this offset."""


class Fetched(NamedTuple):
    """The batches of a partition from an offset on."""

    batches: list[tuple[RecordBatch, bool]]
    """Each batch, and whether readers get its records. Readers get no control batches and no aborted transactions."""
    next_offset: int
    is_end: bool
    """Whether the log has no batch before ``next_offset``. If so, ``next_offset`` is the end for readers."""


class LogReader(Client[ConsumerConfig]):
    """A client that reads logs. Its keyword arguments are those of ``Consumer``; enter it with ``async with``."""

    def __init__(self, *, env: Env, **config: Any) -> None:
        super().__init__(ConsumerConfig.parse(config), env)
        self._queries: OffsetQueries
        self._link: CoordinatorLink | None = None

    async def _start(self, tasks: Tasks) -> None:
        config = self._config
        self._metadata = self._make_metadata(allow_auto_create=False)
        self._queries = self._make_queries()
        if config.group_id is not None:
            self._link = self._make_link(config.group_id)
        self._connections.on_lost = lambda node_id: self._metadata.request_update()
        tasks.start_soon(self._metadata.run)

    # ------------------------------------------------------------ requests

    async def cluster(self, topics: Iterable[str] | None) -> Cluster:
        """The cluster with these topics (None: all topics), as a broker describes the cluster now."""
        self._ensure_open()
        self._metadata.all_topics = topics is None
        self._metadata.want_only(topics or ())
        deadline = self._env.clock.monotonic() + self._config.default_api_timeout_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            try:
                await self._metadata.refresh()
                return self._metadata.cluster
            except KafkaError as error:
                await self._pause(attempt, deadline, "metadata", error)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, timeout_ms: float | None = None, partial: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """Like ``OffsetQueries.list_offsets``, for readers of the configured isolation level."""
        self._ensure_open()
        return await self._queries.list_offsets(
            timestamps,
            self._config.default_api_timeout_ms if timeout_ms is None else timeout_ms,
            read_committed=self._config.isolation_level == "read_committed",
            partial=partial,
        )

    async def lineages(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LineageAnswer]:
        """Returns the lineages (25301) that a broker knows now, except for partitions without an answer."""
        self._ensure_open()
        cluster = self._metadata.cluster
        found: dict[TopicPartition, LineageAnswer] = {}

        def incarnation(name: str) -> int:
            topic = cluster.topics.get(name)
            return topic.incarnation if topic is not None else NO_INCARNATION

        for some in in_requests(sorted(partitions), self._config.ordered_delivery_partitions_per_request):
            try:
                response = await ask_lineages(self._connections, self._metadata, some, incarnation)
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                self._metadata.request_update()
                continue
            for topic in response.topics:
                for p in topic.partitions:
                    if not p.error_code and topic.topic_incarnation == incarnation(topic.name):
                        found[TopicPartition(topic.name, p.partition_index)] = LineageAnswer(
                            Lineage.of_answer(p), p.over, p.over_end_offset
                        )
        return found

    async def epoch_ends(
        self, epochs: Iterable[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], EpochEnd]:
        """Returns the ends of leader epochs, except for partitions where no leader of a later epoch answers now."""
        self._ensure_open()
        found: dict[tuple[TopicPartition, int], EpochEnd] = {}
        cluster = self._metadata.cluster
        ended = [(tp, epoch) for tp, epoch in epochs if cluster.leader_epoch(tp) > epoch]
        for group in one_epoch_each(sorted(ended)):
            answers = await self._queries.epoch_ends(group, self._config.request_timeout_ms, once=True)
            found.update(((tp, group[tp]), end) for tp, end in answers.items() if end.end_offset >= 0)
        return found

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Commit for ``group_id``, outside of any membership, and report all earlier records as processed."""
        self._ensure_open()
        if self._link is None:
            raise ValueError("commit needs a group_id")
        await self._link.commit_offsets(offsets, self._config.default_api_timeout_ms, is_processed=True)

    # ------------------------------------------------------------ records

    async def fetch(self, tp: TopicPartition, offset: int, leader_epoch: int = NO_EPOCH) -> Fetched:
        """Fetches the batches from ``offset`` on, perhaps none, from a leader of epoch ``leader_epoch`` or later.

        Tries for at most ``default_api_timeout_ms``. Raises ``OffsetOutOfRangeError``, and UNKNOWN_TOPIC_OR_PARTITION
        for a partition that was removed.
        """
        self._ensure_open()
        self._metadata.ensure(tp.topic)
        deadline = self._env.clock.monotonic() + self._config.default_api_timeout_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            try:
                data = await self._fetch_once(tp, offset, leader_epoch)
                if data.error_code:
                    raise error_for(data.error_code, f"{tp}: {ErrorCode.of(data.error_code).message}")
                found = self._read(data, offset)
                if found.batches or found.is_end:
                    return found
                error: KafkaError = KafkaTimeoutError(f"the leader does not have offset {offset} yet")
            except KafkaError as failed:
                error = failed
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    raise OffsetOutOfRangeError({tp: offset}) from None
                if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and await self.find_removed(tp, leader_epoch):
                    raise
                if not (error.code.retriable or error.code.refreshes_metadata or error.code in _TRIED_AGAIN):
                    raise
            await self._pause(attempt, deadline, f"fetch of {tp} from offset {offset}", error)

    async def find_removed(self, tp: TopicPartition, leader_epoch: int) -> bool:
        """Find out whether the partition with this leader epoch was removed, as far as a broker knows."""
        try:
            await self._metadata.refresh()
            answer = (await self.lineages([tp])).get(tp)
        except KafkaError:
            return False
        return answer is not None and answer.over >= max(leader_epoch, 0)

    async def _fetch_once(self, tp: TopicPartition, offset: int, leader_epoch: int) -> PartitionData:
        config = self._config
        if self._metadata.leader(tp) is None:
            await self._metadata.refresh()
        node, cluster = self._metadata.leader(tp), self._metadata.cluster
        if node is None:
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
        asked = FetchPartition(
            partition=tp.partition,
            current_leader_epoch=max(cluster.leader_epoch(tp), leader_epoch),
            fetch_offset=offset,
            partition_max_bytes=config.max_partition_fetch_bytes,
        )
        request = FetchRequest(
            replica_id=CONSUMER_REPLICA_ID,
            max_wait_ms=config.fetch_max_wait_ms,
            min_bytes=1,
            max_bytes=config.fetch_max_bytes,
            isolation_level=READ_COMMITTED if config.isolation_level == "read_committed" else 0,
            session_id=INVALID_SESSION_ID,
            session_epoch=FINAL_SESSION_EPOCH,
            topics=[FetchTopic(topic=tp.topic, partitions=[asked])],
            rack_id="",
        )
        timeout_ms = config.request_timeout_ms + config.fetch_max_wait_ms
        response: FetchResponse = await self._connections.request(node, request, purpose=FETCH, timeout_ms=timeout_ms)
        if response.error_code:
            raise error_for(response.error_code, f"{tp}: {error_for(response.error_code).message}")
        return response.responses[0].partitions[0]

    def _read(self, data: PartitionData, offset: int) -> Fetched:
        committed = self._config.isolation_level == "read_committed"
        end = data.last_stable_offset if committed and data.last_stable_offset >= 0 else data.high_watermark
        if not isinstance(data.records, bytes | bytearray | memoryview) or not len(data.records):
            return Fetched([], end, is_end=end > offset)
        aborted = [(a.producer_id, a.first_offset) for a in data.aborted_transactions or ()]
        found: list[tuple[RecordBatch, bool]] = []
        next_offset = offset
        largest = self._config.max_decompressed_batch_bytes
        batches = iter_batches(data.records, allow_partial_tail=True, max_decompressed_bytes=largest)
        for batch, is_visible in visible_batches(batches, aborted, read_committed=committed):
            if batch.last_offset >= offset:
                if self._config.check_crcs:
                    batch.ensure_valid()
                found.append((batch, is_visible))
                next_offset = batch.next_offset
        return Fetched(found, next_offset, is_end=False)

    async def _pause(self, attempt: int, deadline: float, what: str, error: KafkaError) -> None:
        config, clock = self._config, self._env.clock
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            raise KafkaTimeoutError(
                f"{what} did not succeed within {config.default_api_timeout_ms} ms: {error}"
            ) from error
        pause_ms = backoff_ms(attempt, config.retry_backoff_ms, config.retry_backoff_max_ms, self._env.rng.random())
        await anyio.sleep(min(pause_ms / 1000, left_s))
        if self._closed:
            raise ClientClosedError("the client was closed")
        self._metadata.request_update()
