"""The partition counts that stock admin clients may ask for. Pure.

A stock client does not know ordered resize. Stock producers follow a higher count that is the initial count times a
power of two. Another count is refused to a stock admin client if the topic has records.
"""

from __future__ import annotations

from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.topic_config import ORDERED_KEY, topic_values
from anabranch.protocol.key_placement import is_doubled

STOCK_ADMIN_KEY = "ordered.delivery.stock.admin"
_ACCEPT = "accept"


def objection(image: ClusterImage, topic: TopicImage, count: int) -> str:
    """Why a stock client may not ask for ``count`` if the topic has records, in sentences; empty if it may."""
    znode, values = topic.znode, topic_values(image, topic.name)
    before, initial = znode.undeleted_partition_count, znode.initial_partition_count
    is_ordered = values[ORDERED_KEY] if znode.ordered_delivery is None else znode.ordered_delivery
    if values[STOCK_ADMIN_KEY] == _ACCEPT or count == before:
        return ""
    if count < before:
        why = (
            f"The topic has {before} partitions. Until the merged ones are removed and stock producers have refreshed"
            " their metadata, batches for merged partitions are refused."
        )
    elif is_ordered and not is_doubled(initial, count):
        why = (
            f"The topic began with {initial} partitions. Stock producers place keys by hash % {count}, which is wrong"
            " for some keys."
        )
    else:
        return ""
    nearest = nearest_followed(initial, max(count, before)) if is_ordered else before
    return (
        f"{why} The nearest count that works is {nearest}. `anabranch topics alter {topic.name} --partitions {count}`"
        " resizes to every possible count (with --force if stock producers wrote lately)."
        f" The topic config {STOCK_ADMIN_KEY}={_ACCEPT} allows this request."
    )


def nearest_followed(initial: int, least: int) -> int:
    """The lowest count from ``least`` on that is ``initial`` times a power of two."""
    found = initial
    while found < least:
        found *= 2
    return found
