"""Finds answers to the questions of the delivery gates: lineages, ends of leader epochs, starts of logs."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import anyio

from anabranch.client.cluster import Node
from anabranch.client.config import ConsumerConfig
from anabranch.client.errors import ClientClosedError, ErrorCode, KafkaError, error_for
from anabranch.client.net.connections import Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.client.net.offsets import ask_lineages, in_requests, one_epoch_each
from anabranch.client.ordered_delivery.topic_gates import Questions, TopicGates
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID, EARLIEST_TIMESTAMP, NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_log = logging.getLogger(__name__)

_Key = tuple[object, ...]
"""A question, and whom it is for."""
_WARN_AFTER_TRIES = 5
"""Number of tries without an answer until a warning is logged. A resize and elections take fewer tries."""


class _Tries(NamedTuple):
    number: int
    pause_until: float


class GateQueries:
    """One task that asks until the gates have no more questions.

    A new question is asked at once, also while brokers owe answers to others: a broker that died answers nothing until
    the pause before the next connection is over. A question without a useful answer is asked again after a pause of its
    own. While anything waits, facts that may change without notice are asked for again every ``heartbeat_interval_ms``.
    Metadata that turns out to be too old is refreshed without a further pause, so the only pauses are those here.
    """

    def __init__(
        self,
        env: Env,
        config: ConsumerConfig,
        gates: TopicGates,
        questions: Callable[[bool], Questions],
        metadata: Metadata,
        connections: Connections,
        on_answer: Callable[[], None],
    ) -> None:
        """``questions`` returns the gates' questions; its argument is ``recheck`` of ``TopicGates.questions``."""
        self._env = env
        self._config = config
        self._gates = gates
        self._questions = questions
        self._metadata = metadata
        self._connections = connections
        self._on_answer = on_answer
        self._asked = Signal()
        self._refused: KafkaError | None = None
        self._being_asked: set[_Key] = set()
        self._tries: dict[_Key, _Tries] = {}
        """Questions without a useful answer so far."""

    def ask(self) -> None:
        """Look for new questions of the gates."""
        self._asked.set()

    async def run(self) -> None:
        """Ask until the client is closed."""
        async with anyio.create_task_group() as tasks:
            while True:
                questions = await self._next()
                keys = self._keys(questions)
                for ask, what, asked in self._requests(questions):
                    self._being_asked |= asked
                    tasks.start_soon(self._guarded, ask, what, asked)
                self._pause(keys - self._being_asked)  # those that no broker can answer now

    def _keys(self, questions: Questions) -> set[_Key]:
        """The questions with the leader of each, to distinguish new questions from those just asked."""
        return {
            *questions.lineages.items(),
            *(self._key_of_end(tp, epoch) for tp, epoch in questions.ends),
            *map(self._key_of_start, questions.log_starts),
        }

    def _key_of_end(self, tp: TopicPartition, epoch: int) -> _Key:
        cluster = self._metadata.cluster
        return tp, epoch, cluster.leader(tp), cluster.leader_epoch(tp)

    def _key_of_start(self, tp: TopicPartition) -> _Key:
        cluster = self._metadata.cluster
        return tp, cluster.leader(tp), cluster.leader_epoch(tp)

    async def _next(self) -> Questions:
        """Wait for questions. New questions are asked at once, repeated questions after a pause."""
        clock, interval_s = self._env.clock, self._config.heartbeat_interval_ms / 1000
        recheck_at = clock.monotonic() + interval_s
        while True:
            questions, now = self._questions(False), clock.monotonic()
            keys = self._keys(questions)
            self._tries = {key: tries for key, tries in self._tries.items() if key in keys}
            due = self._due(questions, now)
            if due.any_to_ask:
                return due
            if questions.any_to_ask:
                pausing = [tries.pause_until for key, tries in self._tries.items() if key not in self._being_asked]
                await self._asked.wait(min(pausing) - now if pausing else None)
            elif not self._gates.is_waiting:
                await self._asked.wait()
            elif recheck_at > now:
                await self._asked.wait(recheck_at - now)
            else:
                recheck_at = now + interval_s
                due = self._due(self._questions(True), now)
                if due.any_to_ask:
                    return due

    def _due(self, questions: Questions, now: float) -> Questions:
        """The questions that are not being asked and whose pause is over."""

        def is_due(key: _Key) -> bool:
            return key not in self._being_asked and (key not in self._tries or self._tries[key].pause_until <= now)

        return Questions(
            lineages={tp: epoch for tp, epoch in questions.lineages.items() if is_due((tp, epoch))},
            ends={(tp, epoch): None for tp, epoch in questions.ends if is_due(self._key_of_end(tp, epoch))},
            log_starts={tp: None for tp in questions.log_starts if is_due(self._key_of_start(tp))},
        )

    def _pause(self, asked: set[_Key]) -> None:
        """Ask those of the questions that are still open again after a pause."""
        questions = self._questions(False)
        config, now = self._config, self._env.clock.monotonic()
        for key in asked & self._keys(questions):
            number = self._tries[key].number + 1 if key in self._tries else 1
            pause_ms = backoff_ms(
                number, config.layout_backoff_ms, config.layout_backoff_max_ms, self._env.rng.random()
            )
            self._tries[key] = _Tries(number, now + pause_ms / 1000)
        numbers = [self._tries[key].number for key in asked & questions.lineages.items() if key in self._tries]
        if _WARN_AFTER_TRIES in numbers:
            waiting = ", ".join(f"{topic}-{partition}" for topic, partition in sorted(questions.lineages))
            why = self._refused or "the lineages in the answers are older than the records"
            _log.warning("records of %s wait until a broker answers with the lineage: %s", waiting, why)

    def _requests(self, questions: Questions) -> Iterator[tuple[Callable[[Any], Awaitable[None]], Any, set[_Key]]]:
        """One request after the other: the function that sends it, what the request is about, and its questions."""
        at_once = self._config.ordered_delivery_partitions_per_request
        for some in in_requests(list(questions.lineages), at_once):
            yield self._ask_lineages, some, {(tp, questions.lineages[tp]) for tp in some}
        for epochs in one_epoch_each(questions.ends):
            for node, tps in self._by_leader(self._that_ended(epochs)).items():
                ends = {tp: epochs[tp] for tp in tps}
                yield self._ask_ends, (node, ends), {self._key_of_end(tp, epoch) for tp, epoch in ends.items()}
        for node, tps in self._by_leader(questions.log_starts).items():
            yield self._ask_starts, (node, tps), set(map(self._key_of_start, tps))

    def _that_ended(self, epochs: Mapping[TopicPartition, int]) -> list[TopicPartition]:
        """Partitions whose leader epoch is above the epoch asked about. The end of the present epoch still moves."""
        cluster = self._metadata.cluster
        for tp in epochs:
            if cluster.knows_removed(tp, NO_INCARNATION):
                self._gates.on_missing(tp)
        ended = [tp for tp, epoch in epochs.items() if cluster.leader_epoch(tp) > epoch]
        if len(ended) < len(epochs):
            self._metadata.hurry_update()
        return ended

    async def _guarded(self, ask: Callable[[Any], Awaitable[None]], what: Any, asked: set[_Key]) -> None:
        """Ask one broker. If it does not answer, its questions stay open."""
        try:
            await ask(what)
        except KafkaError as error:
            self._refused = error
            self._metadata.hurry_update()
        except ClientClosedError:
            return
        self._being_asked -= asked
        self._on_answer()
        self._pause(asked)
        self._asked.set()

    def _by_leader(self, tps: Iterable[TopicPartition]) -> dict[Node, list[TopicPartition]]:
        found: dict[Node, list[TopicPartition]] = {}
        for tp in tps:
            leader = self._metadata.leader(tp)
            if leader is not None:
                found.setdefault(leader, []).append(tp)
            else:
                self._metadata.hurry_update()
        return found

    def _refuse(self, tp: TopicPartition, code: int) -> None:
        self._refused = error_for(code, f"{tp}: {ErrorCode.of(code).message}")
        self._metadata.hurry_update()
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._gates.on_missing(tp)

    # ------------------------------------------------------------ requests

    async def _ask_lineages(self, tps: Sequence[TopicPartition]) -> None:
        response = await ask_lineages(self._connections, self._metadata, tps, self._gates.topic_incarnation)
        for answer in response.topics:
            if answer.topic_incarnation != self._gates.topic_incarnation(answer.name):
                self._metadata.hurry_update()  # another topic has this name now
                continue
            for p in answer.partitions:
                tp = TopicPartition(answer.name, p.partition_index)
                if p.error_code:
                    why = p.error_message or ErrorCode.of(p.error_code).message
                    self._refused = error_for(p.error_code, f"{tp}: {why}")
                else:
                    self._gates.on_lineage(tp, Lineage.of_answer(p), p.over)

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
        request = OffsetForLeaderEpochRequest(replica_id=CONSUMER_REPLICA_ID, topics=list(topics.values()))
        response = await self._connections.request(node, request)
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.topic, p.partition)
                if p.error_code:
                    self._refuse(tp, p.error_code)
                elif tp in epochs:
                    self._gates.on_end(tp, epochs[tp], leader_epochs[tp], p.end_offset)

    async def _ask_starts(self, asked: tuple[Node, list[TopicPartition]]) -> None:
        node, tps = asked
        cluster = self._metadata.cluster
        topics: dict[str, ListOffsetsTopic] = {}
        for tp in tps:
            topics.setdefault(tp.topic, ListOffsetsTopic(name=tp.topic)).partitions.append(
                ListOffsetsPartition(
                    partition_index=tp.partition,
                    current_leader_epoch=cluster.leader_epoch(tp),
                    timestamp=EARLIEST_TIMESTAMP,
                )
            )
        request = ListOffsetsRequest(replica_id=CONSUMER_REPLICA_ID, isolation_level=0, topics=list(topics.values()))
        response = await self._connections.request(node, request)
        for topic in response.topics:
            for p in topic.partitions:
                tp = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    self._refuse(tp, p.error_code)
                else:
                    self._gates.on_log_start(tp, p.offset)
