"""Subscriptions of other clients' members, whole and cut short."""

from __future__ import annotations

import pytest

from anabranch.client.group.group_protocol import decode_subscription
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolSubscription
from anabranch.protocol.generated.consumer_protocol import TopicPartition as OwnedPartitions
from anabranch.protocol.message import encode_versioned
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.subscriptions import read_subscription, subscribed_topics

OWNED = [OwnedPartitions(topic="a", partitions=[3])]
NEWEST = encode_versioned(
    ConsumerProtocolSubscription(topics=["a", "b"], user_data=b"u", owned_partitions=OWNED, generation_id=7), 3
)
TOPICS_END = 2 + 4 + 3 + 3


@pytest.mark.parametrize("length", range(TOPICS_END, len(NEWEST) + 1))
def test_a_subscription_cut_after_its_topics_is_read_up_to_the_cut(length: int) -> None:
    found = read_subscription(NEWEST[:length])
    assert found.topics == ["a", "b"]
    assert found.user_data == (b"u" if length >= TOPICS_END + 5 else None)
    assert found.generation_id in (7, -1)
    assert decode_subscription(NEWEST[:length]).topics == {"a", "b"}  # the leader of the group reads it the same way


@pytest.mark.parametrize("length", range(TOPICS_END))
def test_a_subscription_cut_within_its_topics_is_refused(length: int) -> None:
    with pytest.raises(DecodeError):
        read_subscription(NEWEST[:length])
    assert subscribed_topics([NEWEST, NEWEST[:length]]) is None


def test_a_subscription_of_an_old_kafka_go_is_read() -> None:
    """kafka-go writes version 1 without owned partitions."""
    written = b"\x00\x01" + b"\x00\x00\x00\x01\x00\x05other" + b"\xff\xff\xff\xff"
    assert subscribed_topics([written]) == {"other"}


@pytest.mark.parametrize(
    "blob",
    [
        b"\xff\xff" + NEWEST[2:],
        b"\x00\x00\xff\xff\xff\xff",
        b"\x00\x00\x7f\xff\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\xff\xff",
        b"\x00\x00\x00\x00\x00\x01\x00\x01\xff",
    ],
)
def test_malformed_bytes_are_no_subscription(blob: bytes) -> None:
    assert subscribed_topics([blob]) is None
