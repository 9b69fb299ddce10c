"""Compares the consumer protocol with bytes after Kafka's schemas ConsumerProtocolSubscription and -Assignment."""

from __future__ import annotations

from anabranch.client.group.assignors import CooperativeStickyAssignor
from anabranch.client.group.group_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from anabranch.protocol.types import TopicPartition

SUBSCRIPTION_V3 = bytes.fromhex(
    "0003"  # version
    "00000002"
    "0001"
    "61"
    "0001"
    "62"  # topics a, b
    "00000004"
    "00000007"  # user data: generation 7, as the cooperative sticky assignor writes it
    "00000001"
    "0001"
    "61"
    "00000002"
    "00000000"
    "00000002"  # owned: a 0, a 2
    "00000007"  # generation
    "0002"
    "7231"  # rack r1
)
SUBSCRIPTION_V0 = bytes.fromhex("000000000001000161ffffffff")
ASSIGNMENT_V1 = bytes.fromhex("000100000001000161000000020000000000000002ffffffff")


def test_a_subscription_is_written_and_read_as_version_3() -> None:
    owned = [TopicPartition("a", 2), TopicPartition("a", 0)]
    user_data = CooperativeStickyAssignor().user_data(7)
    assert encode_subscription(["b", "a"], owned, user_data=user_data, generation_id=7, rack_id="r1") == SUBSCRIPTION_V3
    decoded = decode_subscription(SUBSCRIPTION_V3)
    assert (decoded.topics, decoded.generation_id, decoded.rack_id) == ({"a", "b"}, 7, "r1")
    assert decoded.owned == (TopicPartition("a", 0), TopicPartition("a", 2))


def test_a_subscription_of_version_0_is_read() -> None:
    decoded = decode_subscription(SUBSCRIPTION_V0)
    assert (decoded.topics, decoded.user_data, decoded.owned, decoded.generation_id) == ({"a"}, None, (), -1)


def test_an_assignment_is_written_and_read_as_version_1() -> None:
    partitions = (TopicPartition("a", 0), TopicPartition("a", 2))
    assert encode_assignment(partitions) == ASSIGNMENT_V1
    assert decode_assignment(ASSIGNMENT_V1) == partitions
