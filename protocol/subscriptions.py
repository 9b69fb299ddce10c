"""Reads the blobs of a consumer group's members: their subscribed topics and their assigned partitions.

A blob of very many elements is refused (``decode_embedded``): a broker reads the blobs of all members at every join.

Every client writes and reads these blobs in its own way, so nothing here is strict. A version above the newest known
version is read as the newest known version. Bytes after the last field are ignored, as in Java clients. A subscription
that ends early is read as far as it goes, because each version only adds fields at the end: old kafka-go writes version
1 without its last field.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from anabranch.protocol.decode_budget import BudgetError
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from anabranch.protocol.message import read_version
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.steps import decode_embedded
from anabranch.protocol.types import TopicPartition

CONSUMER_PROTOCOL_TYPE = "consumer"
_NEWEST = max(ConsumerProtocolSubscription.DECODERS)
_NEWEST_ASSIGNMENT = max(ConsumerProtocolAssignment.DECODERS)
_VERSION_BYTES = 2
_COUNT = struct.Struct(">i")
_LENGTH = struct.Struct(">h")


def read_subscription(blob: bytes) -> ConsumerProtocolSubscription:
    """A member's subscription, as far as the blob goes. Raises ``DecodeError`` when it ends before the topics."""
    version = read_version(blob)
    if version < 0:
        raise DecodeError(f"ConsumerProtocolSubscription has no version {version}")
    body = memoryview(blob)[_VERSION_BYTES:]
    for tried in range(min(version, _NEWEST), -1, -1):
        try:
            return decode_embedded(ConsumerProtocolSubscription, body, tried)[0]
        except BudgetError:
            raise
        except DecodeError:
            continue
    return ConsumerProtocolSubscription(topics=_read_topics(body))


def _read_topics(body: memoryview) -> list[str]:
    """The first field of every version."""
    try:
        count, pos = _COUNT.unpack_from(body)[0], _COUNT.size
        if not 0 <= count <= len(body) // _LENGTH.size:
            raise DecodeError(f"topics: {count} names do not fit into {len(body)} bytes")
        topics = []
        for _ in range(count):
            (length,) = _LENGTH.unpack_from(body, pos)
            pos += _LENGTH.size
            if not 0 <= length <= len(body) - pos:
                raise DecodeError(f"topics: a name of {length} bytes at byte {pos} of {len(body)}")
            topics.append(str(body[pos : pos + length], "utf-8"))
            pos += length
        return topics
    except (struct.error, UnicodeDecodeError) as error:
        raise DecodeError(f"topics: {error}") from error


def subscribed_topics(subscriptions: Iterable[bytes]) -> frozenset[str] | None:
    """Union of the topics in ``ConsumerProtocolSubscription`` blobs; None when one of them cannot be read."""
    try:
        return frozenset(topic for blob in subscriptions for topic in read_subscription(blob).topics)
    except DecodeError:
        return None


def read_assignment(blob: bytes) -> ConsumerProtocolAssignment:
    """A member's assignment. Raises ``DecodeError``."""
    version = min(read_version(blob), _NEWEST_ASSIGNMENT)
    return decode_embedded(ConsumerProtocolAssignment, memoryview(blob)[_VERSION_BYTES:], version)[0]


def assigned_partitions(assignment: bytes) -> list[TopicPartition]:
    """The partitions in a ``ConsumerProtocolAssignment`` blob; empty for a blob of another kind of group."""
    try:
        decoded = read_assignment(assignment)
    except DecodeError:
        return []
    return [TopicPartition(found.topic, index) for found in decoded.assigned_partitions for index in found.partitions]
