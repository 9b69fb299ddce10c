"""The bytes members put into JoinGroup and SyncGroup: an int16 version, then Kafka's consumer protocol schemas."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.client.group.assignors.model import MemberSubscription
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated import consumer_protocol as schema
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from anabranch.protocol.subscriptions import read_assignment, read_subscription
from anabranch.protocol.types import TopicPartition

PROTOCOL_TYPE = "consumer"
_VERSION = struct.Struct(">h")
_HIGHEST_SUBSCRIPTION = 3
_WRITTEN_ASSIGNMENT = 1
_LAYOUTS = b"anabranch.assigned"
"""The user data in an assignment by a leader of this project begins with this. Other clients do not read it."""


class AssignedLayout(NamedTuple):
    """The layout of a topic by which a leader assigned the topic's partitions, which are those below ``total``."""

    version: int
    total: int


def encode_subscription(
    topics: Iterable[str],
    owned: Iterable[TopicPartition],
    *,
    user_data: bytes | None,
    generation_id: int,
    rack_id: str | None,
) -> bytes:
    """Encode a subscription in version 3. Readers of lower versions skip the fields that they do not know."""
    body = ConsumerProtocolSubscription(
        topics=sorted(topics),
        user_data=user_data,
        owned_partitions=_by_topic(owned),
        generation_id=generation_id,
        rack_id=rack_id,
    )
    return _VERSION.pack(_HIGHEST_SUBSCRIPTION) + body.encode(_HIGHEST_SUBSCRIPTION)


def decode_subscription(data: bytes, group_instance_id: str | None = None) -> MemberSubscription:
    """A member's subscription of any version, even cut short. Raises DecodeError if its topics cannot be read."""
    body = read_subscription(data)
    return MemberSubscription(
        topics=frozenset(body.topics),
        owned=_flatten(body.owned_partitions),
        generation_id=body.generation_id,
        group_instance_id=group_instance_id,
        rack_id=body.rack_id,
        user_data=body.user_data,
    )


def encode_assignment(
    partitions: Iterable[TopicPartition], layouts: Mapping[str, AssignedLayout] | None = None
) -> bytes:
    """Encode an assignment. ``layouts`` has the layouts of resized topics on which the assignment is based."""
    user_data = None
    if layouts is not None:
        named = [f"{topic}:{layout.version}:{layout.total}".encode() for topic, layout in sorted(layouts.items())]
        user_data = b" ".join([_LAYOUTS, *named])
    body = ConsumerProtocolAssignment(assigned_partitions=_by_topic(partitions), user_data=user_data)
    return _VERSION.pack(_WRITTEN_ASSIGNMENT) + body.encode(_WRITTEN_ASSIGNMENT)


def decode_assignment(data: bytes) -> tuple[TopicPartition, ...]:
    """The partitions of an assignment. A broker sends empty bytes to a member without an assignment."""
    return _flatten(read_assignment(data).assigned_partitions) if data else ()


def refuse_unsubscribed(partitions: Iterable[TopicPartition], topics: frozenset[str]) -> None:
    """Raise REBALANCE_IN_PROGRESS for an assignment with partitions of other topics: the member has to join again.

    A coordinator returns the last assignment to a static member that restarts (KIP-345), even if the member's
    subscription is another one now.
    """
    others = sorted({tp.topic for tp in partitions} - topics)
    if others:
        named = ", ".join(others[:5]) + (", ..." if len(others) > 5 else "")
        message = f"the assignment is that of another subscription, it has partitions of {named}"
        raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS, message)


def read_layouts(data: bytes) -> dict[str, AssignedLayout] | None:
    """The layouts by which an assignment was made. A topic without a layout was never resized.

    Returns None if the assignment has no layouts, because the leader is another client or has another version.
    """
    if not data:
        return None
    mark, *named = bytes(read_assignment(data).user_data or b"").split(b" ")
    found: dict[str, AssignedLayout] = {}
    for entry in named if mark == _LAYOUTS else ():
        topic, *numbers = entry.decode("ascii", "replace").split(":")
        if len(numbers) != len(AssignedLayout._fields) or not all(number.isdecimal() for number in numbers):
            return None
        found[topic] = AssignedLayout(*map(int, numbers))
    return found if mark == _LAYOUTS else None


def _by_topic(partitions: Iterable[TopicPartition]) -> list[schema.TopicPartition]:
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(partitions):
        by_topic.setdefault(topic, []).append(partition)
    return [schema.TopicPartition(topic=topic, partitions=ps) for topic, ps in by_topic.items()]


def _flatten(topics: Iterable[schema.TopicPartition]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, p) for t in topics for p in t.partitions)
