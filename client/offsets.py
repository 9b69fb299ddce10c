"""Asks brokers about offsets: by time, at the ends, and where a leader epoch ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import anyio

from client.cluster import Node
from client.connections import Connections, backoff_ms
from client.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for
from client.metadata import Metadata
from protocol.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.primitives import Message
from protocol.types import TopicPartition
from runtime.env import Env

T = TypeVar("T")


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time. ``timestamp`` is -1 when the question was for an end of the log."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """Where a leader epoch ended: ``end_offset`` is exclusive, -1 when the leader does not know."""

    leader_epoch: int
    end_offset: int


class OffsetQueries:
    """Questions that go to the leaders of partitions, repeated until all are answered."""

    def __init__(
        self,
        env: Env,
        metadata: Metadata,
        connections: Connections,
        *,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
    ) -> None:
        self._env = env
        self._metadata = metadata
        self._connections = connections
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self.unanswered: KafkaError | None = None
        """Why a partition had no answer the last time anything was asked."""

    async def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        timeout_ms: float,
        *,
        read_committed: bool = False,
        once: bool = False,
        partial: bool = False,
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        """The first offset at or after each timestamp (ms); -1 asks for the end, -2 the start, -3 the newest record.

        A partition with nothing that young is missing from the result; with ``once`` also one without an answer now,
        with ``partial`` one without an answer in time and one that its topic has not.
        """

        def build(tps: Iterable[TopicPartition]) -> Message:
            topics: dict[str, ListOffsetsTopic] = {}
            for tp in tps:
                topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic)).partitions.append(
                    ListOffsetsPartition(
                        partition_index=tp.partition,
                        current_leader_epoch=self._metadata.cluster.leader_epoch(tp),
                        timestamp=timestamps[tp],
                    )
                )
            return ListOffsetsRequest(
                replica_id=-1, isolation_level=1 if read_committed else 0, topics=list(topics.values())
            )

        def read(response: ListOffsetsResponse) -> dict[TopicPartition, tuple[int, OffsetAndTimestamp]]:
            return {
                TopicPartition(topic.name, p.partition_index): (
                    p.error_code,
                    OffsetAndTimestamp(p.offset, p.timestamp, p.leader_epoch),
                )
                for topic in response.topics
                for p in topic.partitions
            }

        found = await self._ask_leaders(timestamps, build, read, timeout_ms, "ListOffsets", once, partial)
        return {tp: answer for tp, answer in found.items() if answer.offset >= 0}

    async def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], timeout_ms: float, *, once: bool = False, partial: bool = False
    ) -> dict[TopicPartition, EpochEnd]:
        """The largest epoch at most the given one that the leader knows, and where it ended.

        With ``once`` a partition without an answer now is missing from the result; ``partial`` as in ``list_offsets``.
        """

        def build(tps: Iterable[TopicPartition]) -> Message:
            topics: dict[str, OffsetForLeaderTopic] = {}
            for tp in tps:
                topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic)).partitions.append(
                    OffsetForLeaderPartition(
                        partition=tp.partition,
                        current_leader_epoch=self._metadata.cluster.leader_epoch(tp),
                        leader_epoch=epochs[tp],
                    )
                )
            return OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))

        def read(response: OffsetForLeaderEpochResponse) -> dict[TopicPartition, tuple[int, EpochEnd]]:
            return {
                TopicPartition(topic.topic, p.partition): (p.error_code, EpochEnd(p.leader_epoch, p.end_offset))
                for topic in response.topics
                for p in topic.partitions
            }

        return await self._ask_leaders(epochs, build, read, timeout_ms, "OffsetForLeaderEpoch", once, partial)

    async def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        build: Callable[[Iterable[TopicPartition]], Message],
        read: Callable[[Any], dict[TopicPartition, tuple[int, T]]],
        timeout_ms: float,
        what: str,
        once: bool,
        partial: bool,
    ) -> dict[TopicPartition, T]:
        """Ask each partition's leader until all have answered; the last error is raised after ``timeout_ms``.

        With ``once`` there is one try, with ``partial`` nothing is raised after ``timeout_ms``; ``unanswered`` is the
        last error of those left.
        """
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        open_questions = set(partitions)
        found: dict[TopicPartition, T] = {}
        last: KafkaError | None = None
        attempt = 0
        while open_questions:
            attempt += 1
            by_node: dict[Node, list[TopicPartition]] = {}
            for tp in sorted(open_questions):
                self._metadata.ensure(tp.topic)
                leader = self._metadata.leader(tp)
                if leader is not None:
                    by_node.setdefault(leader, []).append(tp)
                elif partial and self._metadata.cluster.knows_removed(tp, -1):
                    open_questions.discard(tp)
                else:
                    last = self._no_leader(tp)
            for node, tps in by_node.items():
                left_ms = (deadline - self._env.clock.monotonic()) * 1000
                try:
                    answers = read(await self._connections.request(node, build(tps), timeout_ms=max(left_ms, 1.0)))
                except KafkaError as error:
                    if not error.code.retriable:
                        raise
                    last = error
                    continue
                for tp, (code, answer) in answers.items():
                    if not code:
                        found[tp] = answer
                        open_questions.discard(tp)
                    elif ErrorCode.of(code).retriable:
                        last = error_for(code, f"{tp}: {ErrorCode.of(code).message}")
                    else:
                        raise error_for(code, f"{tp}: {ErrorCode.of(code).message}")
            self.unanswered = last if open_questions else None
            if once or (partial and self._env.clock.monotonic() >= deadline):
                break
            if open_questions:
                await self._pause(deadline, attempt, f"{what} of {sorted(open_questions)[0]}", last, timeout_ms)
        return found

    async def _pause(
        self, deadline: float, attempt: int, what: str, last: KafkaError | None, timeout_ms: float
    ) -> None:
        left = deadline - self._env.clock.monotonic()
        if left <= 0:
            raise KafkaTimeoutError(f"{what} has no answer after {timeout_ms:.0f} ms: {last}")
        self._metadata.request_update()
        pause = backoff_ms(attempt, self._retry_backoff_ms, self._retry_backoff_max_ms, self._env.rng.random()) / 1000
        if self._metadata.cluster.nodes:
            await anyio.sleep(min(pause, left))
        else:
            await self._metadata.wait_update(left)

    def _no_leader(self, tp: TopicPartition) -> KafkaError:
        topic = self._metadata.cluster.topics.get(tp.topic)
        if topic is not None and topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise error_for(topic.error, f"{tp.topic}: {topic.error.message}")
        if self._metadata.cluster.knows_removed(tp, -1):
            return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp.topic} has no partition {tp.partition}")
        return error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")
