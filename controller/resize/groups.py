"""Reads the progress of the cluster's consumer groups from their coordinators."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from anabranch.controller.config import ControllerConfig
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.request_batch import inter_broker_endpoint
from anabranch.controller.resize.waits import DrainWait
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
    ConsumerGroupPositionResponsePartition,
)
from anabranch.protocol.generated.describe_groups import DescribeGroupsRequest
from anabranch.protocol.generated.list_groups import ListGroupsRequest
from anabranch.protocol.generated.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from anabranch.protocol.sentinels import NO_GENERATION, NO_INCARNATION, NO_NODE, NO_OFFSET
from anabranch.protocol.subscriptions import CONSUMER_PROTOCOL_TYPE, assigned_partitions, subscribed_topics
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Network

_STABLE, _EMPTY, _DEAD = "Stable", "Empty", "Dead"
_OFFSET_FETCH_OF_GROUPS = 8
_GROUPS_TOGETHER = 20
"""Groups in one request. One response has all their committed offsets, and is written and read in one piece."""


class UnknownGroupsError(Exception):
    """A fact about the groups is not available."""


@dataclass(slots=True)
class Group:
    """A consumer group; ``offsets`` is ``{partition: (committed offset, incarnation or -1)}``."""

    name: str
    coordinator: int = NO_NODE
    is_settled: bool = True
    """Whether no rebalance is in progress and the coordinator has answered with the group's state and offsets."""
    offsets: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()
    """Topics that members subscribe to. If a subscription cannot be read, the assigned topics are added."""
    unknown: str = ""
    """The missing event or fact, if the members' topics are not known; "" if they are known."""
    is_dead: bool = False
    """Whether the group is being deleted, or the broker that was asked has no such group."""
    is_refused: bool = False
    """Whether the asked broker refused to answer for the group, perhaps because the coordinator has moved."""

    def reads(self, topic: str) -> bool:
        return topic in self.topics or any(tp.topic == topic for tp in self.offsets)

    def may_read(self, topic: str) -> bool:
        """Whether the group reads the topic, or its topics are not known."""
        return bool(self.unknown) or self.reads(topic)

    def committed(self, tp: TopicPartition, incarnation: int) -> int:
        """The committed offset, or -1. An offset of another incarnation does not count."""
        offset, committed_with = self.offsets.get(tp, (NO_OFFSET, NO_INCARNATION))
        return offset if committed_with in (NO_INCARNATION, incarnation) else NO_OFFSET


@dataclass(frozen=True, slots=True)
class KnownGroups:
    """The consumer groups. ``unknown`` is the reason why there may be more groups; "" if these are all."""

    known: list[Group]
    unknown: str = ""

    def require_all(self) -> list[Group]:
        """Raises ``UnknownGroupsError`` if there may be more groups."""
        if self.unknown:
            raise UnknownGroupsError(self.unknown)
        return self.known


class BrokerLink:
    """Asks brokers over separate connections, so that these questions delay no other request of the controller."""

    def __init__(self, network: Network, config: ControllerConfig) -> None:
        self._network = network
        self._client_id = f"controller-{config.controller_id}"
        self._listener = config.inter_broker_listener_name
        self._timeout_s = config.controller_socket_timeout_ms / 1000

    async def ask(self, broker: LiveBroker, *requests: tuple[Any, int | None]) -> list[Any]:
        """The responses to requests in the given versions (None: the newest). Raises ``OSError``, ``KafkaError``."""
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


async def read_groups(link: BrokerLink, current: Callable[[], ClusterImage], topics: Collection[str]) -> KnownGroups:
    """The groups that may read one of ``topics``. ``current`` returns the present image of the cluster.

    Groups may be missing if a coordinator is loading or unavailable. Groups may also be missing if a coordinator moves
    meanwhile, so that neither the old nor the new broker lists its groups. An error about one group does not affect
    another.
    """
    image, groups, unknown = current(), list[Group](), ""
    try:
        coordinators = _coordinators(image)
    except UnknownGroupsError as error:
        return KnownGroups([], str(error))
    if not coordinators:
        return KnownGroups([])
    for broker in [image.brokers[id] for id in sorted(image.brokers)]:
        try:
            groups += await _groups_of(link, broker, topics)
        except (OSError, KafkaError, UnknownGroupsError) as error:
            unknown = unknown or str(error)
    try:
        is_moved = _coordinators(current()) != coordinators
    except UnknownGroupsError:
        is_moved = True
    if is_moved:
        unknown = unknown or "some groups have another coordinator now"
    return KnownGroups(groups, unknown)


async def read_again(link: BrokerLink, image: ClusterImage, group: Group) -> Group | None:
    """The group as it is now; None if the coordinator does not answer, or may not have the group any more."""
    broker = image.brokers.get(group.coordinator)
    if broker is None:
        return None
    try:
        again = (await _read(link, broker, [group.name]))[0]
    except (OSError, KafkaError):
        return None
    return None if again.is_dead or again.is_refused else again


def _coordinators(image: ClusterImage) -> dict[int, tuple[int, int]]:
    """The leader and leader epoch of each partition of the offsets topic.

    Raises ``UnknownGroupsError`` if a leader has not acknowledged its leadership.
    """
    topic = image.topics.get(OFFSETS_TOPIC)
    if topic is None:
        return {}
    found = {}
    for index in sorted(topic.znode.partitions):
        state = topic.state(index)
        if state is None or not topic.has_acknowledged(index):
            raise UnknownGroupsError(f"{OFFSETS_TOPIC}-{index} has no leader that has acknowledged its leader epoch")
        found[index] = (state.leader, state.leader_epoch)
    return found


async def _groups_of(link: BrokerLink, broker: LiveBroker, topics: Collection[str]) -> list[Group]:
    listed = (await link.ask(broker, (ListGroupsRequest(readers_of=sorted(topics)), None)))[0]
    _check(listed.error_code, "groups", broker)
    names = sorted(entry.group_id for entry in listed.groups)
    found: list[Group] = []
    for start in range(0, len(names), _GROUPS_TOGETHER):
        found += await _read(link, broker, names[start : start + _GROUPS_TOGETHER])
    return found


async def _read(link: BrokerLink, broker: LiveBroker, names: list[str]) -> list[Group]:
    """Read these groups of a coordinator.

    Members are read before offsets. So a member that commits and leaves in between is seen as a member or by its
    commit.
    """
    groups = {name: Group(name, broker.id) for name in names}
    fetch = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names])
    described, fetched = await link.ask(
        broker, (DescribeGroupsRequest(groups=names), None), (fetch, _OFFSET_FETCH_OF_GROUPS)
    )
    for found in described.groups:
        _take_members(groups[found.group_id], found)
    for answered in fetched.groups:
        group = groups[answered.group_id]
        if answered.error_code != ErrorCode.NONE:
            _note_unknown(group, f"its coordinator to report its offsets: {ErrorCode.of(answered.error_code).name}")
        else:
            group.offsets = _offsets(answered)
    return [groups[name] for name in names]


def _take_members(group: Group, answer: Any) -> None:
    """Store the members' topics from DescribeGroups. A group that is not stable has no topics there."""
    if answer.error_code != ErrorCode.NONE:
        _note_unknown(group, f"its coordinator to report its members: {ErrorCode.of(answer.error_code).name}")
    elif answer.group_state not in (_STABLE, _EMPTY):
        group.is_settled, group.is_dead = False, answer.group_state == _DEAD
        if answer.protocol_type in (CONSUMER_PROTOCOL_TYPE, ""):
            group.unknown = "the end of its rebalance"  # or the end of its deletion, which may fail
    elif answer.protocol_type == CONSUMER_PROTOCOL_TYPE:
        group.topics, group.unknown = _topics(answer.members)


def _note_unknown(group: Group, until: str) -> None:
    group.is_settled, group.is_refused = False, True
    group.unknown = group.unknown or until


async def unprocessed(
    link: BrokerLink, image: ClusterImage, group: Group, tp: TopicPartition, incarnation: int, end_offset: int
) -> DrainWait | None:
    """The wait for a group that has not processed a partition; None if the group has committed and flushed all of it.

    A commit may run ahead of the flush callback. So members that keep order are asked for their position. These members
    may not know yet that the partition is marked. If no member waits or may wait for the partition, only the commits
    count, because the members do not keep order. While it is not known whether a group reads the topic, nothing is
    removed.

    Raises ``OSError``, ``KafkaError``, ``UnknownGroupsError``.
    """
    committed = group.committed(tp, incarnation)
    if committed < end_offset and group.reads(tp.topic):
        return DrainWait("its commits", group.name, committed, end_offset)
    if committed < end_offset or not group.is_settled:
        return DrainWait(group.unknown or "the end of its rebalance", group.name, committed, end_offset)
    found = await ask_position(link, image, group, tp, incarnation)
    if found.position >= end_offset or (found.position < 0 and not found.need_position):
        return None
    return DrainWait("its flush callback", group.name, found.position, end_offset)


async def ask_position(
    link: BrokerLink, image: ClusterImage, group: Group, tp: TopicPartition, incarnation: int
) -> ConsumerGroupPositionResponsePartition:
    """The group's position from its coordinator.

    While the position is unknown, the coordinator asks owners in their polls.

    Raises ``OSError``, ``KafkaError``, ``UnknownGroupsError``.
    """
    broker = image.brokers.get(group.coordinator)
    if broker is None:
        raise UnknownGroupsError(f"broker {group.coordinator}, the coordinator of group {group.name}, is not live")
    asked = ConsumerGroupPositionRequestPartition(
        partition_index=tp.partition, incarnation=incarnation, need_position=True
    )
    request = ConsumerGroupPositionRequest(
        group_id=group.name,
        generation_id=NO_GENERATION,
        member_id="",
        max_wait_ms=0,
        topics=[ConsumerGroupPositionRequestTopic(name=tp.topic, partitions=[asked])],
    )
    answer = (await link.ask(broker, (request, None)))[0]
    _check(answer.error_code, f"positions of group {group.name}", broker)
    found: ConsumerGroupPositionResponsePartition = answer.topics[0].partitions[0]
    return found


def _check(error_code: int, what: str, broker: LiveBroker) -> None:
    if error_code != ErrorCode.NONE:
        raise UnknownGroupsError(f"broker {broker.id} did not report the {what}: {ErrorCode.of(error_code).name}")


def _offsets(answered: Any) -> dict[TopicPartition, tuple[int, int]]:
    return {
        TopicPartition(topic.name, found.partition_index): (found.committed_offset, found.incarnation)
        for topic in answered.topics
        for found in topic.partitions
        if found.committed_offset >= 0
    }


def _topics(members: Sequence[Any]) -> tuple[frozenset[str], str]:
    """The topics that members of a stable group subscribe to, and the missing fact if some are not known.

    Some clients cut a subscription short. The part before the cut is read. If a subscription cannot be read at all, the
    topics of the group's assignment are added. Without an assignment, the topics are not known.
    """
    topics: set[str] = set()
    unknown = ""
    for member in members:
        found = subscribed_topics([bytes(member.member_metadata)])
        if found is None:
            unknown = f"a subscription of member {member.member_id} that can be read"
        else:
            topics |= found
    if unknown:
        assigned = {tp.topic for member in members for tp in assigned_partitions(bytes(member.member_assignment))}
        topics |= assigned
        unknown = "" if assigned else unknown
    return frozenset(topics), unknown


def readers(groups: Sequence[Group], topic: str) -> list[Group]:
    """Groups that have committed an offset of the topic or have a member that subscribes to the topic."""
    return [group for group in groups if group.reads(topic)]
