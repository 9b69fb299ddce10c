"""Finds a group's coordinator and sends it the requests that any client of a group sends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import anyio

from anabranch.client import arguments
from anabranch.client.cluster import Node
from anabranch.client.errors import ErrorCode, KafkaError, KafkaTimeoutError, error_for
from anabranch.client.group.commit_order import CommitOrder
from anabranch.client.group.group_member import Reaction, react
from anabranch.client.net.connections import GROUP, Connections, backoff_ms
from anabranch.client.net.metadata import Metadata
from anabranch.protocol.errors import ClientAction
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from anabranch.protocol.message import Message
from anabranch.protocol.sentinels import NO_EPOCH, NO_GENERATION, NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.runtime.signal import Signal

_GROUP_KEY_TYPE = 0
_FIND_COORDINATOR_VERSION = 3
"""The last version for a single group: higher versions ask for several groups at once."""
_OFFSET_FETCH_VERSION = 7
_UNKNOWN_PARTITION_TRIES = 5
"""The number of tries for a partition unknown to the coordinator. The partition may be too new, or removed for good."""


class OffsetAndMetadata(NamedTuple):
    """A committed offset: the next record to read. ``leader_epoch`` is the epoch of the record before, or -1.

    ``incarnation`` is the incarnation of the partition for which the offset was committed (KIP-253). -1 in a request
    means the broker's present incarnation, and in a response that it is unknown.
    """

    offset: int
    metadata: str = ""
    leader_epoch: int = NO_EPOCH
    incarnation: int = NO_INCARNATION


Offsets = Mapping[TopicPartition, OffsetAndMetadata]


def committed_offset(name: str, value: Any) -> OffsetAndMetadata:
    """The rule for an offset to commit: the offset, or a tuple of the offset and the other fields."""
    if not isinstance(value, tuple):
        return OffsetAndMetadata(arguments.offset(name, value))
    if not 1 <= len(value) <= len(OffsetAndMetadata._fields):
        raise arguments.refused(TypeError, name, value, "an OffsetAndMetadata")
    made = OffsetAndMetadata(*value)
    return OffsetAndMetadata(
        arguments.offset(f"{name}.offset", made.offset),
        "" if made.metadata is None else arguments.text(f"{name}.metadata", made.metadata),
        arguments.leader_epoch(f"{name}.leader_epoch", made.leader_epoch),
        arguments.whole(NO_INCARNATION, arguments.INT64_MAX)(f"{name}.incarnation", made.incarnation),
    )


class CoordinatorLink:
    """The coordinator of one group, looked up again when it moves."""

    def __init__(
        self,
        env: Env,
        group_id: str,
        metadata: Metadata,
        connections: Connections,
        *,
        retry_backoff_ms: float,
        retry_backoff_max_ms: float,
    ) -> None:
        self._env = env
        self.group_id = group_id
        self._metadata = metadata
        self._connections = connections
        self._retry_backoff_ms = retry_backoff_ms
        self._retry_backoff_max_ms = retry_backoff_max_ms
        self._node: Node | None = None
        self.commit_order = CommitOrder()
        self._committing = anyio.Lock()
        """Held while a commit goes out and is answered: on their way, two requests could overtake each other."""

    def moved(self) -> None:
        """Forget the coordinator, because the broker does not answer or is not the coordinator any more."""
        self._node = None

    async def find(self) -> Node:
        """The coordinator's address. Raises the error of a lookup that failed."""
        if self._node is None:
            request = FindCoordinatorRequest(key=self.group_id, key_type=_GROUP_KEY_TYPE)
            response: FindCoordinatorResponse = await self._connections.request(
                self._metadata.any_node(), request, max_version=_FIND_COORDINATOR_VERSION
            )
            if response.error_code:
                why = error_for(response.error_code, response.error_message).message
                raise error_for(response.error_code, f"coordinator of group {self.group_id}: {why}")
            self._node = Node(response.node_id, response.host, response.port)
        return self._node

    async def request(
        self,
        body: Message,
        *,
        timeout_ms: float | None = None,
        max_version: int | None = None,
        purpose: str = GROUP,
    ) -> Any:
        """Send one request to the coordinator. After a retriable error the coordinator is looked up again next time."""
        try:
            node = await self.find()
            return await self._connections.request(
                node, body, purpose=purpose, timeout_ms=timeout_ms, max_version=max_version
            )
        except KafkaError as error:
            if error.code.retriable:
                self.moved()
            raise

    async def pause(self, attempt: int, until: Signal | None = None) -> None:
        """Wait for the backoff before try number ``attempt`` + 1. ``until`` ends the backoff early."""
        if until is None:
            await anyio.sleep(self._backoff_s(attempt))
        else:
            await until.wait(self._backoff_s(attempt))

    def _backoff_s(self, attempt: int) -> float:
        return backoff_ms(attempt, self._retry_backoff_ms, self._retry_backoff_max_ms, self._env.rng.random()) / 1000

    async def fetch_offsets(
        self, partitions: Iterable[TopicPartition] | None, timeout_ms: float, *, require_stable: bool = False
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Committed offsets, except for partitions without one. None asks for all offsets of the group."""
        topics: list[OffsetFetchRequestTopic] | None = None
        if partitions is not None:
            indexes: dict[str, list[int]] = {}
            for tp in partitions:
                indexes.setdefault(tp.topic, []).append(tp.partition)
            topics = [OffsetFetchRequestTopic(name=name, partition_indexes=ps) for name, ps in indexes.items()]
        request = OffsetFetchRequest(group_id=self.group_id, topics=topics, require_stable=require_stable)
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            try:
                response: OffsetFetchResponse = await self.request(request, max_version=_OFFSET_FETCH_VERSION)
                return _read_offsets(self.group_id, response)
            except KafkaError as error:
                if not error.code.retriable:
                    raise
                if error.code.client_action is ClientAction.FIND_COORDINATOR:
                    self.moved()
                if self._env.clock.monotonic() >= deadline:
                    raise KafkaTimeoutError(
                        f"no committed offsets of group {self.group_id} after {timeout_ms:.0f} ms: {error}"
                    ) from error
            await self.pause(attempt)

    async def commit_offsets(
        self,
        offsets: Offsets,
        timeout_ms: float,
        *,
        generation_id: int = NO_GENERATION,
        member_id: str = "",
        group_instance_id: str | None = None,
        is_processed: bool = False,
        call: int | None = None,
    ) -> set[TopicPartition]:
        """Commit offsets. Retriable errors are tried again until ``timeout_ms``; any other error is raised at once.

        ``call`` is the number of the call in ``commit_order``; None: this is the call. Offsets that a later call has
        replaced are left out, and offsets of an incarnation that was removed meanwhile. With ``is_processed`` the
        coordinator also reports the positions to members that wait for them. Returns the partitions whose reports are
        confirmed by the coordinator that answered last. The caller must report the other partitions by
        ConsumerGroupPosition.
        """
        reported: set[TopicPartition] = set()
        call = self.commit_order.call() if call is None else call
        deadline = self._env.clock.monotonic() + timeout_ms / 1000
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._committing:
                    offsets = self.commit_order.going_out(call, offsets)
                    if not offsets:
                        return reported
                    request = OffsetCommitRequest(
                        group_id=self.group_id,
                        generation_id=generation_id,
                        member_id=member_id,
                        group_instance_id=group_instance_id,
                        topics=_commit_topics(offsets, is_processed=is_processed),
                    )
                    response = await self.request(request)
                errors = _commit_errors(response)
                reported = _reported(response)  # an earlier response may come from another coordinator
                error = next(iter(errors.values()), None)
                offsets = {tp: offset for tp, offset in offsets.items() if tp in errors}
            except KafkaError as failed:
                error = failed
            if error is None:
                return reported
            reaction = react(error.code)
            is_unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if reaction is Reaction.FIND_COORDINATOR:
                self.moved()
            elif reaction is not Reaction.RETRY or (is_unknown and attempt >= _UNKNOWN_PARTITION_TRIES):
                raise error
            if self._env.clock.monotonic() >= deadline:
                raise KafkaTimeoutError(
                    f"offsets of group {self.group_id} were not committed within {timeout_ms:.0f} ms: {error}"
                ) from error
            if not is_unknown:
                await self.pause(attempt)
                continue
            left = await self._without_removed(offsets, self._backoff_s(attempt))
            if not left:
                return reported
            if len(left) == len(offsets):
                await self.pause(attempt)
            offsets = left

    async def _without_removed(self, offsets: Offsets, timeout_s: float) -> Offsets:
        """The offsets whose partitions may still exist, according to the next metadata."""
        self._metadata.hurry_update()
        await self._metadata.wait_update(timeout_s)
        cluster = self._metadata.cluster
        return {tp: o for tp, o in offsets.items() if o.incarnation < 0 or not cluster.knows_removed(tp, o.incarnation)}


def _commit_topics(offsets: Offsets, *, is_processed: bool) -> list[OffsetCommitRequestTopic]:
    topics: dict[str, OffsetCommitRequestTopic] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp.topic, OffsetCommitRequestTopic(name=tp.topic)).partitions.append(
            OffsetCommitRequestPartition(
                partition_index=tp.partition,
                committed_offset=offset.offset,
                committed_leader_epoch=offset.leader_epoch,
                committed_metadata=offset.metadata,
                incarnation=offset.incarnation,
                is_processed=is_processed,
            )
        )
    return list(topics.values())


def _commit_errors(response: OffsetCommitResponse) -> dict[TopicPartition, KafkaError]:
    """The partitions whose offsets were not committed, with their errors."""
    return {
        TopicPartition(topic.name, p.partition_index): error_for(
            p.error_code, f"{topic.name}-{p.partition_index}: {ErrorCode.of(p.error_code).message}"
        )
        for topic in response.topics
        for p in topic.partitions
        if p.error_code
    }


def _reported(response: OffsetCommitResponse) -> set[TopicPartition]:
    return {
        TopicPartition(topic.name, p.partition_index)
        for topic in response.topics
        for p in topic.partitions
        if p.is_reported
    }


def _read_offsets(group_id: str, response: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata]:
    if response.error_code:
        raise error_for(response.error_code, f"group {group_id}: {ErrorCode.of(response.error_code).message}")
    found: dict[TopicPartition, OffsetAndMetadata] = {}
    for topic in response.topics:
        for p in topic.partitions:
            if p.error_code:
                raise error_for(p.error_code, f"{topic.name}-{p.partition_index}: {ErrorCode.of(p.error_code).message}")
            if p.committed_offset >= 0:
                found[TopicPartition(topic.name, p.partition_index)] = OffsetAndMetadata(
                    p.committed_offset, p.metadata or "", p.committed_leader_epoch, p.incarnation
                )
    return found
