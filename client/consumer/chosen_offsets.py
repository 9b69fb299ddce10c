"""Which offsets a call of ``store_offsets`` or ``commit`` means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.client.group.coordinator_link import OffsetAndMetadata, committed_offset
from anabranch.client.subscription.fetched_batch import ConsumerRecord
from anabranch.client.subscription.subscription import AssignedPartition, Subscription
from anabranch.protocol.types import TopicPartition

Offsets = Mapping[TopicPartition, int | tuple[int, str] | OffsetAndMetadata]


def to_store(
    message: ConsumerRecord[Any, Any] | None, offsets: Offsets | None, subscription: Subscription
) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offset after ``message``, or ``offsets``.

    Raises ValueError unless exactly one of them is given, and IllegalStateError if a partition is not assigned or a
    record before one of the offsets was not delivered.
    """
    if (message is None) == (offsets is None):
        raise ValueError("store_offsets takes either a message or offsets")
    chosen = {tp: committed_offset("offsets", value) for tp, value in (offsets or {}).items()}
    if message is not None:
        after = OffsetAndMetadata(message.offset + 1, leader_epoch=message.leader_epoch)
        chosen = {TopicPartition(message.topic, message.partition): after}
    for tp, at in chosen.items():
        subscription.state(tp).check_storable(at.offset)
    return chosen


def to_commit(
    offsets: Offsets, partitions: Mapping[TopicPartition, AssignedPartition]
) -> dict[TopicPartition, OffsetAndMetadata]:
    """``offsets``, of the incarnations that the assigned ``partitions`` have unless the caller names others."""
    chosen: dict[TopicPartition, OffsetAndMetadata] = {}
    for tp, value in offsets.items():
        offset = committed_offset("offsets", value)
        state = partitions.get(tp)
        if offset.incarnation < 0 and state is not None:
            offset = offset._replace(incarnation=state.incarnation)
        chosen[tp] = offset
    return chosen
