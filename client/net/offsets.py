"""Asks brokers for offsets (by time, at the ends of logs and of leader epochs) and for lineages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import anyio

from anabranch.client.cluster import Node
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, KafkaTimeoutError, error_for
from anabranch.client.net.connections import Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.protocol.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from anabranch.protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.message import Message
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID, NO_INCARNATION, READ_COMMITTED
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

T = TypeVar("T")
_SHORT_TRY_MS = 100


class OffsetAndTimestamp(NamedTuple):
    """An offset found by time. ``timestamp`` is -1 if an end of the log was requested."""

    offset: int
    timestamp: int
    leader_epoch: int


class EpochEnd(NamedTuple):
    """The end of a leader epoch. ``end_offset`` is exclusive, and -1 if the leader does not know the epoch's end."""

    leader_epoch: int
    end_offset: int


class OffsetQueries:
    """Sends requests to the leaders of partitions, and repeats them until all partitions have an answer."""

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
        """The last error that left a partition without an answer in the last call; None if all have an answer."""

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

        The result lacks partitions without a record at or after the timestamp. With ``once`` it also lacks partitions
        without an answer to the first try. With ``partial`` it also lacks partitions without an answer in time.
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
                replica_id=CONSUMER_REPLICA_ID,
                isolation_level=READ_COMMITTED if read_committed else 0,
                topics=list(topics.values()),
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
        """The largest epoch known to the leader that is not above the given epoch, and its end offset.

        ``once`` and ``partial`` are as in ``list_offsets``.
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
            return OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values()))

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
        """Ask each partition's leader until all have answered. After ``timeout_ms`` the last error is raised.

        With ``once`` there is one try. With ``partial`` nothing is raised after ``timeout_ms``. If partitions stay
        without an answer, ``self.unanswered`` is the last error.
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
                else:
                    last = self._no_leader(tp)
            left_ms = max((deadline - self._env.clock.monotonic()) * 1000, 1.0)
            replies = await self._ask_each({node: build(tps) for node, tps in by_node.items()}, left_ms)
            for reply in replies:
                if isinstance(reply, KafkaError):
                    last = telling_cause(last, reply, left_ms)
                    continue
                for tp, (code, answer) in read(reply).items():
                    if not code:
                        found[tp] = answer
                        open_questions.discard(tp)
                        continue
                    last = error_for(code, f"{tp}: {ErrorCode.of(code).message}")
                    if not last.code.retriable:
                        raise last
            self.unanswered = last if open_questions else None
            left_s = deadline - self._env.clock.monotonic()
            if once or (partial and left_s <= 0):
                break
            if open_questions:
                await self._pause(left_s, attempt, f"{what} of {sorted(open_questions)[0]}", last, timeout_ms)
        return found

    async def _ask_each(self, requests: Mapping[Node, Message], timeout_ms: float) -> list[Any]:
        """Ask brokers concurrently. Returns responses, or retriable errors; raises any other error."""
        replies: dict[Node, Any] = {}

        async def ask(node: Node) -> None:
            try:
                replies[node] = await self._connections.request(node, requests[node], timeout_ms=timeout_ms)
            except (KafkaError, ClientClosedError) as error:
                replies[node] = error

        async with anyio.create_task_group() as tasks:
            for node in requests:
                tasks.start_soon(ask, node)
        for reply in replies.values():
            if isinstance(reply, ClientClosedError) or (isinstance(reply, KafkaError) and not reply.code.retriable):
                raise reply
        return [replies[node] for node in requests]

    async def _pause(self, left_s: float, attempt: int, what: str, last: KafkaError | None, timeout_ms: float) -> None:
        if left_s <= 0:
            raise KafkaTimeoutError(f"{what} has no answer after {timeout_ms:.0f} ms: {last}")
        self._metadata.request_update()
        pause = backoff_ms(attempt, self._retry_backoff_ms, self._retry_backoff_max_ms, self._env.rng.random()) / 1000
        if self._metadata.cluster.nodes:
            await anyio.sleep(min(pause, left_s))
        else:
            await self._metadata.wait_update(left_s)

    def _no_leader(self, tp: TopicPartition) -> KafkaError:
        topic = self._metadata.cluster.topics.get(tp.topic)
        if topic is not None and topic.error is ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            raise error_for(topic.error, f"{tp.topic}: {topic.error.message}")
        if topic is not None and topic.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return error_for(topic.error, f"topic {tp.topic} does not exist")
        if self._metadata.cluster.knows_removed(tp, NO_INCARNATION):
            return error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{tp.topic} has no partition {tp.partition}")
        return error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{tp} has no leader")


def telling_cause(before: KafkaError | None, failure: KafkaError, limit_ms: float) -> KafkaError:
    """The cause of a time-out: the last failure, or the one before if the last try had less than 100 ms."""
    return failure if before is None or limit_ms >= _SHORT_TRY_MS else before


def one_epoch_each(wanted: Iterable[tuple[TopicPartition, int]]) -> list[dict[TopicPartition, int]]:
    """Group partitions and epochs so that no group names a partition twice.

    A response does not name the leader epoch that was asked for.
    """
    groups: list[dict[TopicPartition, int]] = []
    for tp, epoch in wanted:
        group = next((group for group in groups if tp not in group), None)
        if group is None:
            group = {}
            groups.append(group)
        group[tp] = epoch
    return groups


def in_requests(partitions: Sequence[TopicPartition], at_once: int) -> Iterator[Sequence[TopicPartition]]:
    """The partitions of each request: at most ``at_once``, because a very long response takes long to read."""
    return (partitions[first : first + at_once] for first in range(0, len(partitions), at_once))


async def ask_lineages(
    connections: Connections,
    metadata: Metadata,
    partitions: Iterable[TopicPartition],
    topic_incarnation: Callable[[str], int],
) -> PartitionLeaderEpochsForPartitionsResponse:
    """Ask any broker once for lineages (25301). Raises UNSUPPORTED_VERSION if the broker does not know lineages.

    ``topic_incarnation`` gives the incarnation of the topic that is meant, -1 for any.
    """
    topics: dict[str, PartitionLeaderEpochsForPartitionsRequestTopic] = {}
    for name, partition in partitions:
        topic = topics.get(name)
        if topic is None:
            topic = topics[name] = PartitionLeaderEpochsForPartitionsRequestTopic(
                name=name, topic_incarnation=topic_incarnation(name)
            )
        topic.partitions.append(PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=partition))
    request = PartitionLeaderEpochsForPartitionsRequest(topics=list(topics.values()))
    response: PartitionLeaderEpochsForPartitionsResponse = await connections.request(metadata.any_node(), request)
    return response
