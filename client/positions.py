"""Finds where to read: committed offsets, resets, and whether what was read is still in the log."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

import anyio
from anyio.abc import TaskGroup

from client.cluster import TopicInfo
from client.config import ConsumerConfig
from client.coordinator_link import CoordinatorLink
from client.errors import ClientClosedError, KafkaError, NoOffsetForPartitionError
from client.fetcher import RESET_TIMESTAMPS, truncate
from client.metadata import Metadata
from client.offsets import OffsetQueries
from client.signal import Signal
from client.subscription import FetchState, PartitionState, Subscription
from protocol.types import TopicPartition
from runtime.env import Env


class PositionResolver:
    """Moves partitions that wait for a position on, in a task of its own so that no answer is lost to a timeout."""

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        subscription: Subscription,
        queries: OffsetQueries,
        metadata: Metadata,
        link: CoordinatorLink | None,
        tasks: TaskGroup,
        on_change: Callable[[], None],
    ) -> None:
        self._env = env
        self._config = config
        self._subscription = subscription
        self._queries = queries
        self._metadata = metadata
        self._link = link
        self._tasks = tasks
        self._on_change = on_change
        self._running = False
        self.settled = Signal()
        """Set at the end of each round."""
        self.failure: KafkaError | None = None
        """Why the last round failed, None after one that did not."""
        self._first_seen: dict[str, TopicInfo] = {}

    def on_metadata(self, topics: Mapping[str, TopicInfo]) -> None:
        """Remember how each topic was when this client first saw it: what comes later is new to it."""
        for name, topic in topics.items():
            if name not in self._first_seen and topic.layout_version >= 0 and topic.partitions:
                self._first_seen[name] = topic

    def start(self) -> None:
        """Begin a round if a partition waits and none is under way."""
        if not self._running and any(
            state.state is not FetchState.FETCHING and state.error is None
            for state in self._subscription.partitions.values()
        ):
            self._running = True
            self._tasks.start_soon(self._round)

    async def _round(self) -> None:
        try:
            await self._from_committed(self._subscription.in_state(FetchState.INITIALIZING))
            await self._from_reset(self._subscription.in_state(FetchState.AWAIT_RESET))
            await self._validate(self._subscription.in_state(FetchState.AWAIT_VALIDATION))
            self.failure = None
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

    async def _from_committed(self, states: list[PartitionState]) -> None:
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
            elif offset is not None or self._is_born_later(state.tp, groups_topics):
                state.reset(RESET_TIMESTAMPS["earliest"])
            elif self._config.auto_offset_reset in RESET_TIMESTAMPS:
                state.reset(RESET_TIMESTAMPS[self._config.auto_offset_reset])
            else:
                missing.append(state.tp)
        if missing:
            error = NoOffsetForPartitionError(missing)
            for tp in missing:
                self._subscription.partitions[tp].error = error

    async def _topics_of_group(self, tps: Iterable[TopicPartition]) -> set[str]:
        """The resized topics of these partitions of which the group has committed offsets."""
        topics = self._metadata.cluster.topics
        asked = [
            TopicPartition(name, p)
            for name in dict.fromkeys(tp.topic for tp in tps)
            if (topic := topics.get(name)) is not None and topic.layout_version > 0
            for p in topic.partitions
        ]
        if not asked or self._link is None:
            return set()
        return {tp.topic for tp in await self._link.fetch_offsets(asked, self._config.default_api_timeout_ms)}

    def _is_born_later(self, tp: TopicPartition, groups_topics: Container[str]) -> bool:
        """Whether a partition without a committed offset is younger than the group's reading of its topic.

        Its records are then all new to the group: with ``auto_offset_reset="latest"`` the first would be lost
        (KAFKA-12261). A group reads the topic since this member first saw it, or since it committed anything there.
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

    async def _from_reset(self, states: list[PartitionState]) -> None:
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        found = await self._queries.list_offsets(
            {state.tp: state.reset_timestamp for state in states},
            self._config.default_api_timeout_ms,
            read_committed=self._config.isolation_level == "read_committed",
        )
        for state in states:
            answer = found.get(state.tp)
            if answer is not None and state.version == versions[state.tp] and state.state is FetchState.AWAIT_RESET:
                state.seek(answer.offset)

    async def _validate(self, states: list[PartitionState]) -> None:
        """Has the new leader what was read? Its log may end earlier in that epoch (KIP-320)."""
        if not states:
            return
        versions = {state.tp: state.version for state in states}
        ends = await self._queries.epoch_ends(
            {state.tp: state.last_fetched_epoch for state in states}, self._config.default_api_timeout_ms
        )
        for state in states:
            end = ends.get(state.tp)
            if end is None or state.version != versions[state.tp] or state.state is not FetchState.AWAIT_VALIDATION:
                continue
            if end.end_offset >= 0 and end.end_offset < state.fetch_offset:
                truncate(state, end.end_offset, end.leader_epoch, self._config.auto_offset_reset)
            else:
                state.validated()
