"""How long partitions that are marked for deletion are kept, by the configuration of their topic. Pure.

In a compacted topic a marked partition has the only copy of its keys' latest values until the keys are written again.
So the partition stays: it is closed, is compacted, is read by new groups, and may be counted again by a grow. To remove
the partition before it is empty loses these values, and therefore needs a separate configuration key.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Any, Final

from anabranch.protocol.plurals import named, one_or_many
from anabranch.zk_schemas.topic_keys import TopicKeys

DRAIN_KEY: Final = "delete.records.when.drained"
LOSS_KEY: Final = "delete.latest.values.when.drained"
_KEPT_FOREVER = -1
"""The value of ``retention.ms`` with which records never expire."""


class Marked(enum.Enum):
    """How long a marked partition is kept. An empty partition is removed in any case."""

    DRAINED = "until every group has read the records"
    EXPIRED = "until the records have expired"
    FOR_EVER = "for ever: the records never expire"

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Marked:
        """The choice that follows from the parsed values of the topic keys. An absent key has its default."""
        keys = TopicKeys.of(values)
        compacts = "compact" in keys.cleanup_policy
        if keys.delete_latest_values_when_drained if compacts else keys.delete_records_when_drained:
            return cls.DRAINED
        expires = "delete" in keys.cleanup_policy and keys.retention_ms != _KEPT_FOREVER
        return cls.EXPIRED if expires else cls.FOR_EVER


def is_compacted(values: Mapping[str, Any]) -> bool:
    """Whether the topic keeps the latest value of each key."""
    return "compact" in TopicKeys.of(values).cleanup_policy


def of_compacted(partitions: Sequence[int], marked: Marked) -> str:
    """The effect of a shrink of a compacted topic on the latest values in the partitions that it marks."""
    which, number = named("partition", partitions), len(partitions)
    them, their = one_or_many(number, "it", "them"), one_or_many(number, "its", "their")
    if marked is Marked.DRAINED:
        return (
            f"{LOSS_KEY}=true: {which} {one_or_many(number, 'is', 'are')} removed when every group has read {them}. The"
            f" latest values of {their} keys are lost, and older values in other partitions may become visible again."
        )
    until = "" if marked is Marked.FOR_EVER else f" {marked.value}"
    return (
        f"The topic is compacted: {which} {one_or_many(number, 'stays', 'stay')}{until}, because"
        f" {one_or_many(number, 'it has', 'they have')} the latest values of {their} keys."
        f" {LOSS_KEY}=true removes {them}, and loses these values."
    )
