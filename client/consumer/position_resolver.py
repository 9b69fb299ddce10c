"""Finds positions from committed offsets and resets, and validates them after a leader change."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping

import anyio

from anabranch.client.cluster import TopicInfo
from anabranch.client.config import ConsumerConfig
from anabranch.client.consumer.fetcher import RESET_TIMESTAMPS, truncate
from anabranch.client.errors import ClientClosedError, KafkaError, NoOffsetForPartitionError
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.client.net.connections import backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.client.net.offsets import OffsetQueries
from anabranch.client.subscription.subscription import AssignedPartition, FetchState, Subscription
from anabranch.client.tasks import Tasks
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_log = logging.getLogger(__name__)

_WARN_AFTER_ATTEMPTS = 5
"""Number of rounds without an answer until a warning is logged. Elections and new metadata take fewer rounds."""


class PositionResolver:
    """Finds positions for waiting partitions, in a task of its own. So a user's timeout loses no response."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        subscription: Subscription,
        queries: OffsetQueries,
        metadata: Metadata,
        link: CoordinatorLink | None,
        tasks: Tasks,
        reports_divergence: Callable[[TopicPartition], bool],
        on_change: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self._subscription = subscription
        self._queries = queries
        self._metadata = metadata
        self._link = link
        self._tasks = tasks
        self._reports_divergence = reports_divergence
        self._on_change = on_change
        self._running = False
        self._attempt = 0
        """Rounds in a row that left a partition without an answer."""
        self._left: dict[TopicPartition, tuple[int, int]] = {}
        """The leader and leader epoch of each partition that waits for the end of the pause after a round."""
        self._again = Signal()
        self.settled = Signal()
        """Set when a round has sent its requests, and at the end of the round."""
        self.failure: KafkaError | None = None
        """The error of the last round that failed or left a partition waiting; else None."""
        self._first_seen: dict[str, TopicInfo] = {}

    def on_metadata(self, topics: Mapping[str, TopicInfo]) -> None:
        """Remember each topic as this client first saw it. Partitions that appear later are new to the client.

        If a waiting partition has a new leader, the leader is asked at once.
        """
        self._leave_to_fetches()
        self._wake_for_new_leaders()
        for name, topic in topics.items():
            if name not in self._first_seen and topic.layout_version >= 0 and topic.partitions:
                self._first_seen[name] = topic

    def start(self) -> None:
        """Begin a round if a partition waits and no round is running. A new partition ends the pause after a round."""
        self._leave_to_fetches()
        if not self._running:
            if any(self._waiting()):
                self._running = True
                self._again.clear()
                self._tasks.start_soon(self._round)
        elif self._left and any(tp not in self._left for tp in self._waiting()):
            self._again.set()

    def _leave_to_fetches(self) -> None:
        """Skip validation if the next fetch response validates: a separate validation would delay the fetch."""
        for state in self._subscription.partitions.values():
            if state.state is FetchState.AWAIT_VALIDATION and self._reports_divergence(state.tp):
                state.validated()

    def _waiting(self) -> Iterator[TopicPartition]:
        for state in self._subscription.partitions.values():
            if state.state is not FetchState.FETCHING and state.error is None:
                yield state.tp

    def _wake_for_new_leaders(self) -> None:
        if any(self._leader(tp) != known for tp, known in self._left.items()):
            self._again.set()

    def _leader(self, tp: TopicPartition) -> tuple[int, int]:
        return self._metadata.cluster.leader(tp), self._metadata.cluster.leader_epoch(tp)

    async def _round(self) -> None:
        """Try once for each partition. A partition that has no leader or was removed does not delay the others."""
        self.failure = None
        asked = {tp: self._leader(tp) for tp in self._waiting()}
        try:
            await self._from_committed(self._subscription.in_state(FetchState.INITIALIZING))
            await self._from_reset(self._subscription.in_state(FetchState.AWAIT_RESET))
            self._leave_to_fetches()
            await self._validate(self._subscription.in_state(FetchState.AWAIT_VALIDATION))
            if self.failure is None:
                self._attempt = 0
            else:
                await self._pause(asked)
        except KafkaError as error:
            self.failure = error
            if not error.code.retriable:
                for state in self._subscription.partitions.values():
                    if state.state is not FetchState.FETCHING:
                        state.error = error
            await anyio.sleep(self._config.retry_backoff_ms / 1000)
        except ClientClosedError:
            return
        finally:
            self._running = False
            self.settled.set()
            self._on_change()

    async def _pause(self, asked: Mapping[TopicPartition, tuple[int, int]]) -> None:
        """Let partitions with a position continue. Ask for the others after a pause, or once a leader changes.

        ``asked`` has the leaders that the round meant to ask.
        """
        config = self._config
        self._attempt += 1
        self._metadata.request_update()
        self._left = {tp: asked.get(tp, self._leader(tp)) for tp in self._waiting()}
        if self._attempt == _WARN_AFTER_ATTEMPTS:
            waiting = ", ".join(str(tp) for tp in self._left)
            _log.warning(
                "%s: no records are read until a broker answers with an offset to start at: %s", waiting, self.failure
            )
        self._wake_for_new_leaders()
        self.settled.set()
        self._on_change()
        pause_ms = backoff_ms(
            self._attempt, config.retry_backoff_ms, config.retry_backoff_max_ms, self._env.rng.random()
        )
        await self._again.wait(pause_ms / 1000)
        self._left = {}

    async def _from_committed(self, states: list[AssignedPartition]) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        committed = {}
        if self._link is not None:
            committed = await self._link.fetch_offsets(
                versions,
                self._config.default_api_timeout_ms,
                require_stable=self._config.isolation_level == "read_committed",
            )
        groups_topics: set[str] = set()
        if self._config.auto_offset_reset == "latest":
            groups_topics = await self._topics_of_group([state.tp for state in states if state.tp not in committed])
        missing: list[TopicPartition] = []
        for state in states:
            if state.version != versions[state.tp] or state.state is not FetchState.INITIALIZING:
                continue
            offset = committed.get(state.tp)
            if offset is not None and 0 <= state.incarnation < offset.incarnation:
                self._metadata.request_update()  # the partition is newer than this client knows
            elif offset is not None and not 0 <= offset.incarnation < state.incarnation:
                state.seek(offset.offset, offset.leader_epoch)
            elif offset is not None or self._is_created_later(state.tp, groups_topics):
                state.reset(RESET_TIMESTAMPS["earliest"])
            elif self._config.auto_offset_reset in RESET_TIMESTAMPS:
                state.reset(RESET_TIMESTAMPS[self._config.auto_offset_reset])
                state.uncommitted_start = -1 if self._config.auto_offset_reset == "latest" else None
            else:
                missing.append(state.tp)
        if missing:
            error = NoOffsetForPartitionError(missing)
            for tp in missing:
                self._subscription.partitions[tp].error = error

    async def _topics_of_group(self, tps: Iterable[TopicPartition]) -> set[str]:
        """The resized topics of ``tps`` in which the group has committed an offset of any partition."""
        cluster = self._metadata.cluster
        asked = [
            TopicPartition(name, p)
            for name in dict.fromkeys(tp.topic for tp in tps)
            if cluster.is_resized(name)
            for p in cluster.topics[name].partitions
        ]
        if not asked or self._link is None:
            return set()
        return {tp.topic for tp in await self._link.fetch_offsets(asked, self._config.default_api_timeout_ms)}

    def _is_created_later(self, tp: TopicPartition, groups_topics: Container[str]) -> bool:
        """Whether a partition without a committed offset was created after the group began to read its topic.

        Then all records of the partition are new to the group, and ``auto_offset_reset="latest"`` would lose the first
        (KAFKA-12261). The group began to read the topic when this member first saw it, or when the group first
        committed an offset of the topic.
        """
        if self._config.auto_offset_reset != "latest":
            return False
        first = self._first_seen.get(tp.topic)
        if first is None:
            return False
        known, now = first.partitions.get(tp.partition), self._metadata.cluster.partition(tp)
        if known is None or (now is not None and now.incarnation != known.incarnation):
            return True
        return tp.partition >= first.initial_partition_count and tp.topic in groups_topics

    async def _from_reset(self, states: list[AssignedPartition]) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        found = await self._queries.list_offsets(
            {state.tp: state.reset_timestamp for state in states},
            self._config.default_api_timeout_ms,
            read_committed=self._config.isolation_level == "read_committed",
            once=True,
        )
        self.failure = self.failure or self._queries.unanswered
        for state in states:
            answer = found.get(state.tp)
            if answer is not None and state.version == versions[state.tp] and state.state is FetchState.AWAIT_RESET:
                is_start = state.uncommitted_start is not None and self._metadata.cluster.is_resized(state.tp.topic)
                state.seek(answer.offset)
                state.uncommitted_start = answer.offset if is_start else None

    async def _validate(self, states: list[AssignedPartition]) -> None:
        """Check that the new leader has the records read. Its log may end earlier in their epoch (KIP-320)."""
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        ends = await self._queries.epoch_ends(
            {state.tp: state.last_fetched_epoch for state in states}, self._config.default_api_timeout_ms, once=True
        )
        self.failure = self.failure or self._queries.unanswered
        for state in states:
            end = ends.get(state.tp)
            if end is None or state.version != versions[state.tp] or state.state is not FetchState.AWAIT_VALIDATION:
                continue
            if end.end_offset >= 0 and end.end_offset < state.fetch_offset:
                truncate(state, end.end_offset, end.leader_epoch, self._config.auto_offset_reset)
            else:
                state.validated()
