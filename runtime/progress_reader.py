"""Asks other brokers how far groups have read: coordinators for readers, leaders for the starts and ends of logs.

Brokers and controllers ask over connections of their own, so that no other request waits behind these questions.
``ordered_resize.progress`` judges the answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import anyio

from anabranch.protocol import offset_requests
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersResponse,
    TopicReadersResponseGroup,
)
from anabranch.protocol.sentinels import CONSUMER_REPLICA_ID
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env
from anabranch.zk_schemas.broker_registration import Endpoint


class Coordinated(NamedTuple):
    """The groups that a broker coordinates, from its answers to one or more requests."""

    as_of: Mapping[int, float]
    """For each partition of the offsets topic, the time until which the broker surely was the only leader, in seconds
    of the monotonic clock. A later leader may have other groups."""
    readers: Mapping[str, Sequence[TopicReadersResponseGroup]]
    """By topic, the groups that may read it."""


class ConnectionTasks(Protocol):
    """A nursery, as far as connections need it."""

    def start_soon(self, task: Callable[[], Awaitable[object]], /) -> None: ...


class ProgressReader:
    """One connection to each broker, the own one too. ``open`` it before the first question."""

    def __init__(self, env: Env, client_id: str, endpoint: Callable[[int], Endpoint | None], timeout_s: float) -> None:
        """``endpoint`` finds a broker's address; None if the broker is not live. ``timeout_s`` limits each request."""
        self._clock = env.clock
        self._network = env.network
        self._client_id = client_id
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._tasks: ConnectionTasks | None = None
        self._channels: dict[int, Channel] = {}
        self._connecting: defaultdict[int, anyio.Lock] = defaultdict(anyio.Lock)

    def open(self, tasks: ConnectionTasks) -> None:
        """Connections run in ``tasks`` from now on."""
        self._tasks = tasks

    async def ask(self, broker_id: int, body: Any) -> Any:
        """Send a request to a broker and return its response. Raises ``OSError``, ``KafkaError``."""
        async with self._connecting[broker_id]:
            channel = await self._channel(broker_id)
        return await channel.request(body, timeout_s=self._timeout_s)

    async def _channel(self, broker_id: int) -> Channel:
        known = self._channels.get(broker_id)
        if known is not None and not known.closed:
            return known
        endpoint = self._endpoint(broker_id)
        if endpoint is None:
            raise ConnectionError(f"broker {broker_id} is not live, or has no listener for brokers")
        channel = self._channels[broker_id] = await Channel.connect(
            self._network, endpoint.host, endpoint.port, self._client_id, timeout_s=self._timeout_s
        )
        assert self._tasks is not None
        self._tasks.start_soon(channel.run)
        return channel

    # ------------------------------------------------------------ coordinators

    async def coordinated(self, broker_id: int, requests: Iterable[TopicReadersRequest]) -> Coordinated:
        """One coordinator's answer. It counts for what all responses prove. Raises ``OSError``, ``KafkaError``."""
        proofs: list[dict[int, float]] = []
        readers: dict[str, Sequence[TopicReadersResponseGroup]] = {}
        for request in requests:
            sent_at = self._clock.monotonic()
            answer: TopicReadersResponse = await self.ask(broker_id, request)
            proofs.append({one.partition_index: sent_at - one.confirmed_ms_ago / 1000 for one in answer.coordinators})
            readers |= {topic.name: topic.groups for topic in answer.topics}
        proved = set(proofs[0]).intersection(*proofs) if proofs else ()
        return Coordinated({index: min(proof[index] for proof in proofs) for index in proved}, readers)

    async def coordinated_by_all(
        self, broker_ids: Iterable[int], requests: Collection[TopicReadersRequest]
    ) -> tuple[dict[int, Coordinated], dict[int, Exception]]:
        """Ask coordinators at the same time. The answers, and the errors of those that did not answer, by broker."""
        answers: dict[int, Coordinated] = {}
        errors: dict[int, Exception] = {}

        async def ask(broker_id: int) -> None:
            try:
                answers[broker_id] = await self.coordinated(broker_id, requests)
            except (OSError, KafkaError) as error:
                errors[broker_id] = error

        async with anyio.create_task_group() as asking:
            for broker_id in broker_ids:
                asking.start_soon(ask, broker_id)
        return dict(sorted(answers.items())), dict(sorted(errors.items()))

    # ------------------------------------------------------------ leaders

    async def offsets(
        self,
        leader: int,
        partitions: Mapping[str, Iterable[tuple[int, int]]],
        timestamp: int,
        replica_id: int = CONSUMER_REPLICA_ID,
    ) -> dict[TopicPartition, int]:
        """The offsets that a leader answers without an error; see ``offset_requests.list_offsets``.

        A replica or a controller gets the log end instead of the high watermark.

        Raises ``OSError``, ``KafkaError``.
        """
        answer = await self.ask(leader, offset_requests.list_offsets(partitions, timestamp, replica_id))
        return {
            TopicPartition(topic.name, found.partition_index): found.offset
            for topic in answer.topics
            for found in topic.partitions
            if found.error_code == ErrorCode.NONE
        }

    async def epoch_ends(
        self, leader: int, topic: str, asked: Sequence[tuple[int, int, int]]
    ) -> dict[tuple[int, int], int]:
        """The ends that a leader knows, by partition and awaited epoch; see ``offset_requests.epoch_ends``.

        Raises ``OSError``, ``KafkaError``.
        """
        if not asked:
            return {}
        answer = await self.ask(leader, offset_requests.epoch_ends(topic, asked))
        return {
            (index, epoch): found.end_offset
            for (index, _, epoch), found in zip(asked, answer.topics[0].partitions, strict=True)
            if found.error_code == ErrorCode.NONE and found.end_offset >= 0
        }
