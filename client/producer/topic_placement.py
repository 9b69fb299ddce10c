"""Where the records of one topic go while the topic is resized (KIP-253): no IO, no clock.

Every record of a topic that waits or is on its way was placed by one layout, ``TopicPlacement.layout``. When a newer
one is known (``next``), or a broker refuses the present one, the topic is **held**: what was never sent stays, what is
on the wire is waited for, and a batch whose fate is unknown is asked about at the partition and with the layout it was
sent with, for only there can it be told from a duplicate. Once every sent batch is either written or certainly not,
``client.replacement`` places all that is left again. New records are taken by the old layout until then, so a key's
records are in one queue, in order. The hold is the topic's, which is more than a key needs and simple to see through.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anabranch.client.net.cluster import TopicInfo
from anabranch.zk_schemas.partition_state import Layout

if TYPE_CHECKING:
    from anabranch.client.producer.partition_queue import PartitionQueue
    from anabranch.client.producer.producer_batch import ProducerBatch
    from anabranch.client.producer.replacement import Replacement

NO_LAYOUT = Layout(-1, -1)
"""Of a topic of a plain Kafka broker: its batches travel without one."""


def layout_of(info: TopicInfo) -> Layout:
    """What a batch placed by ``info`` says of its layout."""
    if info.undeleted_partition_count < 0 or info.layout_version < 0:
        return NO_LAYOUT
    return Layout(info.undeleted_partition_count, info.layout_version)


class TopicPlacement:
    """The layout in force for a topic's records, the one to come, and why the topic is held."""

    __slots__ = (
        "_confirm_after",
        "_metadata_seen",
        "_refused",
        "held",
        "info",
        "layout",
        "name",
        "next",
        "queues",
        "refusals",
        "replacement",
        "retry_at_ms",
        "watches_keys",
    )

    def __init__(self, info: TopicInfo) -> None:
        self.name = info.name
        self.info = info
        """The metadata records are placed by. Without partitions while the topic is not in the metadata."""
        self.layout = layout_of(info)
        self.next: TopicInfo | None = None
        """Metadata of a newer layout, or of a topic created again under the name."""
        self.held = False
        self.replacement: Replacement | None = None
        """Under way: what was taken out of the queues to be placed by the next layout."""
        self.queues: list[PartitionQueue] = []
        self.refusals = 0
        """Pauses taken since a broker first refused the layout in force and the metadata had no newer one."""
        self.retry_at_ms = 0.0
        self.watches_keys = info.ordered_delivery
        """Whether ``client.moved_keys`` wants to know of records with a key: if the topic is, or may be, compacted."""
        self._refused: set[ProducerBatch] = set()
        self._metadata_seen = 0
        self._confirm_after = 0

    def see(self, info: TopicInfo | None) -> None:
        """Metadata came; None or one without partitions: the topic is not in it."""
        self._metadata_seen += 1
        latest = self.next or self.info
        if info is None or not info.partitions:
            if self.next is None:
                self.info = replace(self.info, partitions={})
        elif info.is_older_than(latest):
            return
        elif self.next is not None or self._is_another_layout(info):
            self.next = info
            self.held = True
        else:
            self.info = info

    def _is_another_layout(self, info: TopicInfo) -> bool:
        if layout_of(info) == NO_LAYOUT:
            return False
        return info.layout_version != self.layout.layout_version or info.incarnation != self.info.incarnation

    def refuse(self, batch: ProducerBatch, now_ms: float) -> bool:
        """A broker refused the layout of ``batch``; whether that is a reason to pause once more for newer metadata.

        The refusal is final when a newer layout is known or when no answer of the batch was ever lost. Else the
        broker may be the one that is behind, and an earlier copy of the batch still reach it.
        """
        self.held = True
        self._refused.add(batch)
        if self.next is not None:
            batch.refused = True
            if batch.lost:
                # Was it the partition that knew of the earlier copy? Metadata asked for from now on will say.
                self._confirm_after = self._metadata_seen + 2
            return False
        batch.refused = not batch.lost
        if now_ms < self.retry_at_ms:
            return False
        self.refusals += 1
        return True

    @property
    def confirmed(self) -> bool:
        """Metadata newer than the last refusal of a batch that may have been written was seen."""
        return self._metadata_seen >= self._confirm_after

    def forget(self, batch: ProducerBatch) -> None:
        """The fate of ``batch`` is decided. With no refused batch left to ask with, the next one finds out."""
        self._refused.discard(batch)
        if not self._refused and self.next is None:
            self.held = False
            self.refusals = 0

    def is_gone(self, partition: int, incarnation: int) -> bool:
        """Whether the newest metadata lacks the partition, or has another one of its number."""
        if self.next is None:
            return False
        part = self.next.partitions.get(partition)
        return part is None or (0 <= incarnation != part.incarnation >= 0)

    def advance(self, after: TopicInfo) -> None:
        """Place by ``after`` from now on. Should metadata of a newer layout have come since, that is the next one."""
        newest = self.next
        assert newest is not None
        if (newest.layout_version, newest.incarnation) == (after.layout_version, after.incarnation):
            self.info, self.next = newest, None
        else:
            self.info = after
        self.layout = layout_of(self.info)
        self.replacement = None
        self._refused.clear()
        self.held = self.next is not None
        self.refusals = 0
        self.retry_at_ms = 0.0
