"""What the consumer groups of the cluster have read, as their coordinators tell it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.config import ControllerConfig
from controller.image import ClusterImage, LiveBroker
from controller.request_batch import inter_broker_endpoint
from controller.resize.waits import Wait
from protocol.errors import ErrorCode
from protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
)
from protocol.generated.consumer_protocol import ConsumerProtocolSubscription
from protocol.generated.describe_groups import DescribeGroupsRequest
from protocol.generated.list_groups import ListGroupsRequest
from protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from protocol.primitives import decode_tolerantly
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from runtime.channel import Channel
from runtime.env import Network

_CONSUMER_PROTOCOL = "consumer"
_SETTLED_STATES = ("Stable", "Empty", "Dead")
_OFFSET_FETCH_OF_GROUPS = 8
_NO_GENERATION = -1
"""With no member id: anybody's question."""


class UnknownGroupsError(Exception):
    """Something about the groups could not be learnt."""


@dataclass(slots=True)
class Group:
    """What is known of a group: ``offsets`` is ``{partition: (committed offset, incarnation or -1)}``."""

    name: str
    coordinator: int = -1
    is_settled: bool = True
    """No rebalance is under way."""
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    subscribed: set[str] = field(default_factory=set)

    def reads(self, topic: str) -> bool:
        return topic in self.subscribed or any(tp.topic == topic for tp in self.offsets)

    def committed(self, tp: TopicPartition, incarnation: int) -> int:
        """-1: nothing. An offset of an earlier incarnation says nothing."""
        offset, committed_with = self.offsets.get(tp, (-1, -1))
        return offset if committed_with in (-1, incarnation) else -1


class BrokerLink:
    """Asks brokers what no order of the controller waits for, over connections of their own."""

    def __init__(self, network: Network, config: ControllerConfig) -> None:
        self._network = network
        self._client_id = f"controller-{config.controller_id}"
        self._listener = config.inter_broker_listener_name
        self._timeout_s = config.controller_socket_timeout_ms / 1000

    async def ask(self, broker: LiveBroker, *requests: tuple[Any, int | None]) -> list[Any]:
        """The answers to requests of given versions, None the newest. Raises ``OSError``, ``KafkaError``."""
        async with self._open(broker) as channel:
            return [
                await channel.request(body, version=version, timeout_s=self._timeout_s) for body, version in requests
            ]

    @contextlib.asynccontextmanager
    async def _open(self, broker: LiveBroker) -> AsyncIterator[Channel]:
        endpoint = inter_broker_endpoint(broker, self._listener)
        async with Channel.open(
            self._network, endpoint.host, endpoint.port, self._client_id, timeout_s=self._timeout_s
        ) as channel:
            yield channel


async def read_groups(link: BrokerLink, current: Callable[[], ClusterImage]) -> list[Group]:
    """Every group of the cluster, whose image ``current`` gives. Raises ``OSError``, ``KafkaError``, and
    ``UnknownGroupsError`` when a coordinator is loading or away, or moved meanwhile, so that perhaps neither broker
    told of its groups, or when a member's subscription cannot be read.
    """
    image = current()
    if OFFSETS_TOPIC not in image.topics:
        return []
    coordinators = _coordinators(image)
    brokers = [image.brokers[id] for id in sorted(image.brokers)]
    groups = [group for broker in brokers for group in await _groups_of(link, broker)]
    if _coordinators(current()) != coordinators:
        raise UnknownGroupsError("some groups have another coordinator now")
    return groups


def _coordinators(image: ClusterImage) -> dict[int, tuple[int, int]]:
    """Leader and leader epoch of each partition of the offsets topic; every leader knows that it leads."""
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return {}
    found = {}
    for index in sorted(topic.znode.partitions):
        state = topic.state(index)
        if state is None or not topic.told(index):
            raise UnknownGroupsError(f"{OFFSETS_TOPIC}-{index} has no leader that knows of it")
        found[index] = (state.leader, state.leader_epoch)
    return found


async def _groups_of(link: BrokerLink, broker: LiveBroker) -> list[Group]:
    listed = (await link.ask(broker, (ListGroupsRequest(), None)))[0]
    _check(listed.error_code, "groups", broker)
    names = sorted(entry.group_id for entry in listed.groups)
    if not names:
        return []
    groups = {name: Group(name, broker.id) for name in names}
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
    fetched, described = await link.ask(
        broker, (fetch, _OFFSET_FETCH_OF_GROUPS), (DescribeGroupsRequest(groups=names), None)
    )
    for answered in fetched.groups:
        _check(answered.error_code, f"offsets of {answered.group_id}", broker)
        groups[answered.group_id].offsets = _offsets(answered)
    for group in described.groups:
        _check(group.error_code, f"members of {group.group_id}", broker)
        groups[group.group_id].is_settled = group.group_state in _SETTLED_STATES
        if group.protocol_type == _CONSUMER_PROTOCOL:
            groups[group.group_id].subscribed = _subscribed(group.members)
    return [groups[name] for name in names]


async def unprocessed(
    link: BrokerLink, image: ClusterImage, group: Group, tp: TopicPartition, incarnation: int, end_offset: int
) -> Wait | None:
    """What the group has still to do with a partition, None when it has committed and its flush callback returned.

    A commit may run ahead of the callback. Members that keep order say themselves how far they are once somebody wants
    to know, as this does: no member may have heard yet that the partition is marked. A group in which nobody waits for
    the partition, or may do so yet, is one whose members do not keep order, and its commits are all there is.
    Raises as ``BrokerLink.ask`` and ``read_groups``.
    """
    committed = group.committed(tp, incarnation)
    if committed < end_offset:
        return Wait("its commits", group.name, committed, end_offset)
    if not group.is_settled:
        return Wait("the end of its rebalance", group.name, committed, end_offset)
    broker = image.brokers.get(group.coordinator)
    if broker is None:
        raise UnknownGroupsError(f"the coordinator of {group.name} is away")
    asked = ConsumerGroupPositionRequestPartition(
        partition_index=tp.partition, incarnation=incarnation, need_position=True
    )
    request = ConsumerGroupPositionRequest(
        group_id=group.name,
        generation_id=_NO_GENERATION,
        member_id="",
        max_wait_ms=0,
        topics=[ConsumerGroupPositionRequestTopic(name=tp.topic, partitions=[asked])],
    )
    answer = (await link.ask(broker, (request, None)))[0]
    _check(answer.error_code, f"positions of {group.name}", broker)
    found = answer.topics[0].partitions[0]
    if found.position >= end_offset or (found.position < 0 and not found.need_position):
        return None
    return Wait("its flush callback", group.name, found.position, end_offset)


def _check(error_code: int, what: str, broker: LiveBroker) -> None:
    if error_code != ErrorCode.NONE:
        raise UnknownGroupsError(f"broker {broker.id} does not tell the {what}: error {error_code}")


def _offsets(answered: Any) -> dict[TopicPartition, tuple[int, int]]:
    return {
        TopicPartition(topic.name, found.partition_index): (found.committed_offset, found.incarnation)
        for topic in answered.topics
        for found in topic.partitions
        if found.committed_offset >= 0
    }


def _subscribed(members: Iterable[Any]) -> set[str]:
    """Topics that members name in their subscriptions."""
    topics: set[str] = set()
    for member in members:
        data = bytes(member.member_metadata)
        if not data:
            continue
        try:
            topics.update(decode_tolerantly(ConsumerProtocolSubscription, data)[1].topics)
        except ValueError as error:
            raise UnknownGroupsError(f"the subscription of {member.member_id} cannot be read: {error}") from error
    return topics


def readers(groups: Sequence[Group], topic: str) -> list[Group]:
    """Groups that have committed an offset of the topic or have a member that subscribes to it."""
    return [group for group in groups if group.reads(topic)]
