"""Places the records of one topic while the topic is resized (KIP-253). No IO, no clock.

One layout, ``TopicPlacement.layout``, has placed every record of a topic that waits or is in flight. When a newer
layout is known (``next``), or a broker refuses the present layout, the topic is **paused**. Batches that were never
sent stay in their queues. The producer waits for the batches in flight. A batch of unknown outcome is sent again to its
partition with its layout, because only that partition can recognize a duplicate. Once every sent batch is either
written or certainly not written, all remaining records are placed again (``unwritten_records_placed_again``). Until
then new records are placed by the old layout, so a key's records are in one queue, in order. To pause the whole topic
is more than a key needs, but it is simple.
"""

from __future__ import annotations

from dataclasses import replace

from anabranch.client.cluster import NO_LAYOUT, TopicInfo
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.client.producer.unwritten_records_placed_again import Replacement


class TopicPlacement:
    """The layout in force for a topic's records, the next layout, and the reason why the topic is paused."""

    __slots__ = (
        "_confirm_after",
        "_metadata_seen",
        "_refused",
        "info",
        "layout",
        "name",
        "next",
        "paused",
        "refusals",
        "replacement",
        "retry_at_ms",
        "watches_keys",
    )

    def __init__(self, info: TopicInfo) -> None:
        self.name = info.name
        self.info = info
        """The metadata by which records are placed. It has no partitions while the topic is not in the metadata."""
        self.layout = info.named_layout
        self.next: TopicInfo | None = None
        """Metadata of a newer layout, or of a topic created again under the name."""
        self.paused = False
        self.replacement: Replacement | None = None
        """The replacement in progress, with the batches taken out of the queues for the next layout."""
        self.refusals = 0
        """Number of pauses since a broker first refused the layout in force while the metadata had no newer layout."""
        self.retry_at_ms = 0.0
        self.watches_keys = info.ordered_delivery
        """Whether ``moved_key_tombstones`` watches records with a key, because the topic is or may be compacted."""
        self._refused: set[ProducerBatch] = set()
        self._metadata_seen = 0
        self._confirm_after = 0

    def see(self, info: TopicInfo | None) -> None:
        """Process metadata. ``info`` is None or has no partitions if the topic is not in the metadata."""
        self._metadata_seen += 1
        latest = self.next or self.info
        if info is None or not info.partitions:
            if self.next is None:
                self.info = replace(self.info, partitions={})
        elif info.is_older_than(latest):
            return
        elif self.next is not None or self._is_another_layout(info):
            self.next = info
            self.paused = True
        else:
            self.info = info

    def _is_another_layout(self, info: TopicInfo) -> bool:
        if info.named_layout == NO_LAYOUT:
            return False
        return info.layout_version != self.layout.layout_version or info.incarnation != self.info.incarnation

    def refuse(self, batch: ProducerBatch, now_ms: float) -> bool:
        """Note that a broker refused the layout of ``batch``. Returns whether to pause once more for newer metadata.

        The refusal is final if a newer layout is known, or if no response to the batch was ever lost. Otherwise the
        broker may lag, and an earlier copy of the batch may still reach it.
        """
        self.paused = True
        self._refused.add(batch)
        if self.next is not None:
            batch.is_unwritten = True
            if batch.lost:
                # An earlier copy of the batch may have been written. Metadata requested from now on shows whether the
                # partition to which it was sent still exists.
                self._confirm_after = self._metadata_seen + 2
            return False
        batch.is_unwritten = not batch.lost
        if now_ms < self.retry_at_ms:
            return False
        self.refusals += 1
        return True

    @property
    def confirmed(self) -> bool:
        """Whether metadata was requested and read after the last refusal of a batch that may have been written."""
        return self._metadata_seen >= self._confirm_after

    def forget(self, batch: ProducerBatch) -> None:
        """Note that the outcome of ``batch`` is decided. The pause ends if it was for refused batches only."""
        self._refused.discard(batch)
        if not self._refused and self.next is None:
            self.paused = False
            self.refusals = 0

    def is_gone(self, partition: int, incarnation: int) -> bool:
        """Whether the newest metadata lacks the partition, or has another partition with its number."""
        if self.next is None:
            return False
        part = self.next.partitions.get(partition)
        return part is None or (0 <= incarnation != part.incarnation >= 0)

    def advance(self, after: TopicInfo) -> None:
        """Place by ``after`` from now on. If metadata of an even newer layout has arrived since, ``next`` keeps it."""
        newest = self.next
        assert newest is not None
        if (newest.layout_version, newest.incarnation) == (after.layout_version, after.incarnation):
            self.info, self.next = newest, None
        else:
            self.info = after
        self.layout = self.info.named_layout
        self.replacement = None
        self._refused.clear()
        self.paused = self.next is not None
        self.refusals = 0
        self.retry_at_ms = 0.0
