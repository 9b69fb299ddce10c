"""Finds out what the delivery gate asks: maps of splits and merges, where leader epochs ended, where logs start."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anyio

from client.cluster import Node
from client.config import ConsumerConfig
from client.connections import Connections, backoff_ms
from client.errors import ClientClosedError, ErrorCode, KafkaError
from client.metadata import Metadata
from client.offsets import one_epoch_each
from client.ordered_delivery.barriers import PartitionMap, Questions
from client.ordered_delivery.gate import DeliveryGate
from client.signal import Signal
from protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
)
from protocol.types import TopicPartition
from runtime.env import Env

_EARLIEST = -2


def _keys(questions: Questions) -> set[object]:
    """What is asked, to tell new questions from those just asked."""
    return {
        *((tp, incarnation, "map") for tp, incarnation in questions.maps.items()),
        *questions.end_offsets,
        *((tp, "start") for tp in questions.log_starts),
        *questions.metadata,
    }


class ThresholdQueries:
    """One task that asks until the gate has no more questions.

    A question that is new is asked at once. One without an answer that helps is asked again after a pause, and while
    anything is blocked, what may change without anybody being told is asked again every ``heartbeat_interval_ms``.
    Metadata that turns out to be too old is hurried: the pauses here are the only ones.
    """

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        gate: DeliveryGate,
        metadata: Metadata,
        connections: Connections,
        evaluate: Callable[[], None],
        on_answer: Callable[[], None],
    ) -> None:
        """``evaluate`` has the gate decide anew, unless it is not to."""
        self._env = env
        self._config = config
        self._gate = gate
        self._metadata = metadata
        self._connections = connections
        self._evaluate = evaluate
        self._on_answer = on_answer
        self._asked = Signal()

    def ask(self) -> None:
        """The gate may have questions."""
        self._asked.set()

    async def run(self) -> None:
        """Ask for ever."""
        attempt = 0
        open_keys: set[object] = set()
        try:
            while True:
                questions = await self._next(open_keys, attempt)
                await self._ask_all(questions)
                self._evaluate()
                self._on_answer()
                open_keys = _keys(questions) & _keys(self._gate.questions())
                attempt = attempt + 1 if open_keys else 0
        except ClientClosedError:
            return

    async def _next(self, open_keys: set[object], attempt: int) -> Questions:
        """Wait for something to ask: at once what is new, what was asked before after a pause."""
        config, clock = self._config, self._env.clock
        started = clock.monotonic()
        pause_ms = backoff_ms(
            max(attempt, 1), config.layout_backoff_ms, config.layout_backoff_max_ms, self._env.rng.random()
        )
        recheck_at = started + config.heartbeat_interval_ms / 1000
        while True:
            if self._gate.is_dirty:
                self._evaluate()
                self._on_answer()
            questions = self._gate.questions()
            if questions.any_to_ask:
                left = started + pause_ms / 1000 - clock.monotonic()
                if left <= 0 or not _keys(questions) <= open_keys:
                    return questions
                await self._asked.wait(left)
            elif not self._gate.blocked():
                await self._asked.wait()
            elif (left := recheck_at - clock.monotonic()) > 0:
                await self._asked.wait(left)
            else:
                self._gate.recheck()
                self._evaluate()
                return self._gate.questions()

    async def _ask_all(self, questions: Questions) -> None:
        if questions.metadata:
            self._metadata.hurry_update()
        async with anyio.create_task_group() as tasks:
            if questions.maps:
                tasks.start_soon(self._guarded, self._ask_maps, questions.maps)
            for epochs in one_epoch_each(questions.end_offsets):
                for node, tps in self._by_leader(epochs).items():
                    chosen = {tp: epochs[tp] for tp in tps}
                    tasks.start_soon(self._guarded, self._ask_ends, (node, chosen))
            for node, tps in self._by_leader(questions.log_starts).items():
                tasks.start_soon(self._guarded, self._ask_starts, (node, tps))

    async def _guarded(self, ask: Callable[[Any], Awaitable[None]], what: Any) -> None:
        """A broker that does not answer leaves its questions open."""
        try:
            await ask(what)
        except KafkaError:
            self._metadata.hurry_update()
        except ClientClosedError:
            return

    def _by_leader(self, tps: Iterable[TopicPartition]) -> dict[Node, list[TopicPartition]]:
        found: dict[Node, list[TopicPartition]] = {}
        for tp in tps:
            leader = self._metadata.leader(tp)
            if leader is None:
                self._metadata.hurry_update()
            else:
                found.setdefault(leader, []).append(tp)
        return found

    # ------------------------------------------------------------ requests

    async def _ask_maps(self, incarnations: dict[TopicPartition, int]) -> None:
        topics: dict[str, PartitionLeaderEpochsForPartitionsRequestTopic] = {}
        for tp, incarnation in incarnations.items():
            topics.setdefault(
                tp.topic, PartitionLeaderEpochsForPartitionsRequestTopic(name=tp.topic)
            ).partitions.append(
                PartitionLeaderEpochsForPartitionsRequestPartition(
                    partition_index=tp.partition, incarnation=incarnation
                )
            )
        request = PartitionLeaderEpochsForPartitionsRequest(topics=list(topics.values()))
        response = await self._connections.request(self._metadata.any_node(), request)
        for topic in response.topics:
            for p in topic.partitions:
                if p.error_code:
                    if p.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                        self._metadata.hurry_update()  # it may have been removed
                    continue
                self._gate.on_map(
                    TopicPartition(topic.name, p.partition_index),
                    PartitionMap(
                        p.incarnation,
                        p.created_from,
                        p.leader_epoch_after_creation,
                        p.merged_into,
                        p.leader_epoch_before_deletion,
                        p.sealed_offset,
                    ),
                )

    async def _ask_ends(self, asked: tuple[Node, dict[TopicPartition, int]]) -> None:
        node, epochs = asked
        leader_epochs = {tp: self._metadata.cluster.leader_epoch(tp) for tp in epochs}
        topics: dict[str, OffsetForLeaderTopic] = {}
        for tp, epoch in epochs.items():
            topics.setdefault(tp.topic, OffsetForLeaderTopic(topic=tp.topic)).partitions.append(
                OffsetForLeaderPartition(
                    partition=tp.partition, current_leader_epoch=leader_epochs[tp], leader_epoch=epoch
                )
            )
        request = OffsetForLeaderEpochRequest(replica_id=-1, topics=list(topics.values()))
        response = await self._connections.request(node, request)
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.topic, p.partition)
                if p.error_code:
                    self._metadata.hurry_update()
                elif tp in epochs:
                    self._gate.on_end_offset(tp, epochs[tp], leader_epochs[tp], p.end_offset)

    async def _ask_starts(self, asked: tuple[Node, list[TopicPartition]]) -> None:
        node, tps = asked
        cluster = self._metadata.cluster
        infos = {tp: cluster.partition(tp) for tp in tps}
        topics: dict[str, ListOffsetsTopic] = {}
        for tp in tps:
            topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=cluster.leader_epoch(tp),
                    timestamp=_EARLIEST,
                )
            )
        request = ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=list(topics.values()))
        response = await self._connections.request(node, request)
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                info = infos.get(tp)
                if p.error_code or info is None:
                    self._metadata.hurry_update()
                else:
                    self._gate.on_log_start(tp, info.incarnation, p.offset)
