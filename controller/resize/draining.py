"""Emptying partitions marked for deletion once every group has read them: topic key ``delete.records.when.drained``.

Compacted topics and topics whose records never expire could not shrink otherwise (hole 23). A group counts that has
committed an offset of the topic or has a member that subscribes to it; at least one must. Whatever cannot be learnt of
the groups, a coordinator that is loading or away, puts the deletion off to the next round.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from controller.config import ControllerConfig
from controller.context import Context
from controller.image import LiveBroker, OffsetQuestion, TopicImage
from controller.request_batch import inter_broker_endpoint
from controller.resize import plan
from controller.resize.checks import DRAIN_KEY
from controller.topic_config import topic_values
from protocol.errors import ErrorCode, KafkaError
from protocol.framing import FrameError
from protocol.generated.consumer_protocol import ConsumerProtocolSubscription
from protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.generated.describe_groups import DescribeGroupsRequest
from protocol.generated.list_groups import ListGroupsRequest
from protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.primitives import decode_tolerantly
from protocol.types import TopicPartition
from runtime.channel import Channel
from runtime.env import Network

_log = logging.getLogger(__name__)
OFFSETS_TOPIC = "__consumer_offsets"
_CONSUMER_PROTOCOL = "consumer"
_REPLICAS_ANSWER_WITHIN_MS = 5_000
_OFFSET_FETCH_OF_GROUPS = 8


@dataclass(slots=True)
class Group:
    """What is known of a group: ``offsets`` is ``{partition: (committed offset, incarnation or -1)}``."""

    name: str
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)

    def reads(self, topic: str) -> bool:
        return topic in self.subscribed or any(tp.topic == topic for tp in self.offsets)

    def has_read(self, tp: TopicPartition, incarnation: int, end_offset: int) -> bool:
        """Whether the group is done with the partition. An offset of an earlier incarnation says nothing."""
        offset, committed_with = self.offsets.get(tp, (-1, -1))
        return offset >= end_offset and committed_with in (-1, incarnation)


@dataclass(frozen=True, slots=True)
class Leftover:
    """A sealed partition with records in it."""

    tp: TopicPartition
    leader: int
    incarnation: int
    sealed_offset: int


class _UnknownError(Exception):
    """Something about the groups could not be learnt."""


def leftovers(topic: TopicImage) -> list[Leftover]:
    """Sealed partitions that still have records, of a topic whose survivors have all answered."""
    if not plan.all_sealed(topic) or not plan.survivors_told(topic):
        return []
    found = []
    for index in plan.marked(topic):
        partition = topic.partitions[index]
        state, ending = partition.state, partition.ending
        if state is None or ending is None or not topic.told(index) or OffsetQuestion.START in ending.asked:
            continue
        if 0 <= ending.log_start_offset < state.sealed_offset:
            tp = TopicPartition(topic.name, index)
            found.append(Leftover(tp, state.leader, partition.incarnation, state.sealed_offset))
    return found


def read_by_all(groups: Iterable[Group], leftover: Leftover) -> bool:
    """Whether some group reads the topic, and each that does is done with the partition."""
    readers = [group for group in groups if group.reads(leftover.tp.topic)]
    return bool(readers) and all(
        group.has_read(leftover.tp, leftover.incarnation, leftover.sealed_offset) for group in readers
    )


class Drainer:
    """Asks every broker about its groups, and leaders to delete what all have read."""

    def __init__(self, network: Network, client_id: str, config: ControllerConfig) -> None:
        self._network = network
        self._client_id = client_id
        self._listener = config.inter_broker_listener_name
        self._timeout_s = config.controller_socket_timeout_ms / 1000

    async def drain(self, context: Context) -> None:
        """One round. Raises ``ControllerMovedError``."""
        image, left = context.image, []
        for name in sorted(image.topics):
            of_topic = leftovers(image.topics[name]) if name not in image.deletions else []
            if of_topic and (await topic_values(context, name))[DRAIN_KEY]:
                left += of_topic
        offsets_topic = image.topics.get(OFFSETS_TOPIC)
        if not left or offsets_topic is None or not image.online(OFFSETS_TOPIC):
            return
        try:
            groups = [group for id in sorted(image.brokers) for group in await self._groups(image.brokers[id])]
            for leftover in left:
                if read_by_all(groups, leftover) and leftover.leader in image.brokers:
                    await self._delete(image.brokers[leftover.leader], leftover)
        except (OSError, KafkaError, FrameError, _UnknownError) as error:
            _log.info("drained partitions are looked for again: %s", error)

    async def _groups(self, broker: LiveBroker) -> list[Group]:
        async with self._channel(broker) as channel:
            listed = await self._request(channel, ListGroupsRequest())
            _check(listed.error_code, "groups", broker)
            groups = {entry.group_id: Group(entry.group_id) for entry in listed.groups}
            if not groups:
                return []
            asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in sorted(groups)]
            fetch = OffsetFetchRequest(groups=asked)
            for answered in (await self._request(channel, fetch, _OFFSET_FETCH_OF_GROUPS)).groups:
                _check(answered.error_code, f"offsets of {answered.group_id}", broker)
                groups[answered.group_id].offsets = _offsets(answered)
            described = await self._request(channel, DescribeGroupsRequest(groups=sorted(groups)))
            for group in described.groups:
                _check(group.error_code, f"members of {group.group_id}", broker)
                if group.protocol_type == _CONSUMER_PROTOCOL:
                    groups[group.group_id].subscribed = _subscribed(group.members)
        return [groups[name] for name in sorted(groups)]

    async def _delete(self, broker: LiveBroker, leftover: Leftover) -> None:
        tp = leftover.tp
        asked = DeleteRecordsPartition(partition_index=tp.partition, offset=leftover.sealed_offset)
        topics = [DeleteRecordsTopic(name=tp.topic, partitions=[asked])]
        request = DeleteRecordsRequest(topics=topics, timeout_ms=_REPLICAS_ANSWER_WITHIN_MS)
        async with self._channel(broker) as channel:
            answer = await self._request(channel, request)
        error = answer.topics[0].partitions[0].error_code
        _log.info("resize: topic=%s step=drained partitions=%s end=%s error=%s", *tp, leftover.sealed_offset, error)

    def _channel(self, broker: LiveBroker) -> Any:
        endpoint = inter_broker_endpoint(broker, self._listener)
        return Channel.open(self._network, endpoint.host, endpoint.port, self._client_id, timeout_s=self._timeout_s)

    async def _request(self, channel: Channel, body: Any, version: int | None = None) -> Any:
        return await channel.request(body, version=version, timeout_s=self._timeout_s)


def _check(error_code: int, what: str, broker: LiveBroker) -> None:
    if error_code != ErrorCode.NONE:
        raise _UnknownError(f"broker {broker.id} does not tell the {what}: error {error_code}")


def _offsets(answered: Any) -> dict[TopicPartition, tuple[int, int]]:
    return {
        TopicPartition(topic.name, found.partition_index): (found.committed_offset, found.incarnation)
        for topic in answered.topics
        for found in topic.partitions
        if found.committed_offset >= 0
    }


def _subscribed(members: Iterable[Any]) -> set[str]:
    """Topics that members name in their subscriptions. One that cannot be read stops the round."""
    topics: set[str] = set()
    for member in members:
        data = bytes(member.member_metadata)
        if not data:
            continue
        try:
            topics.update(decode_tolerantly(ConsumerProtocolSubscription, data)[1].topics)
        except ValueError as error:
            raise _UnknownError(f"the subscription of {member.member_id} cannot be read: {error}") from error
    return topics
