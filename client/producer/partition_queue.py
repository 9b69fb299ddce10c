"""The batches of one partition in order, and its place in the producer's sequence: no IO, no clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.producer_batch import ProducerBatch
from anabranch.protocol.records import increment_sequence
from anabranch.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID, NO_SEQUENCE
from anabranch.protocol.types import TopicPartition


class PartitionQueue:
    """The batches of one partition and its place in the producer's sequence."""

    __slots__ = (
        "bump_needed",
        "is_established",
        "next_sequence",
        "outstanding",
        "overtook",
        "producer_epoch",
        "producer_id",
        "topic",
        "tp",
        "waiting",
    )

    def __init__(self, tp: TopicPartition, topic: TopicPlacement) -> None:
        self.tp = tp
        self.topic = topic
        self.waiting: deque[ProducerBatch] = deque()
        self.outstanding: list[ProducerBatch] = []
        self.overtook = 0
        """Batches acknowledged ahead of an older outstanding batch, by a leader that never received the older one.

        They count among the limited number of last batches that a broker recognizes.
        """
        self.producer_id: int = NO_PRODUCER_ID
        self.producer_epoch: int = NO_EPOCH
        self.next_sequence = 0
        self.bump_needed = False
        """Whether a batch failed for good or was refused. Once no outcome is unknown, a new epoch starts."""
        self.is_established = False
        """Whether the broker has acknowledged a batch under the present id and epoch.

        Before that, the broker accepts any sequence as the first, even if it refused the batches before. So until then
        batches are sent one by one.
        """

    @property
    def may_adopt(self) -> bool:
        """Whether under the present id and epoch no batch is in flight and no open batch may have been written."""
        return all(batch.is_unwritten for batch in self.outstanding)

    def candidate(self) -> ProducerBatch | None:
        """The batch to send next, or None.

        While a new epoch or layout is due, only a batch of unknown outcome is sent. Only the oldest of the outstanding
        batches is sent again, because the others would be out of order.
        """
        topic = self.topic
        placed_anew = self.bump_needed or topic.next is not None
        for batch in self.outstanding:
            if batch.is_unwritten and placed_anew:
                continue
            if not batch.in_flight and batch in self.waiting:
                return batch
            break
        if placed_anew or topic.paused or not self.waiting:
            return None
        head = self.waiting[0]
        if head in self.outstanding and head is not self.outstanding[0]:
            return None
        return head

    def adopt(self, producer_id: int, producer_epoch: int) -> None:
        """Start again from sequence 0 under a new id or epoch. Call it only when ``may_adopt``.

        Outstanding batches are numbered again, in order. None of them is written until it is sent again.
        """
        assert self.may_adopt
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self.next_sequence = 0
        self.bump_needed = False
        self.is_established = False
        for batch in self.outstanding:
            batch.lost = False
            batch.set_producer_state(producer_id, producer_epoch, self.next_sequence)
            self.next_sequence = increment_sequence(self.next_sequence, batch.count)

    def requeue(self, batch: ProducerBatch) -> None:
        """Put a sent batch back to be sent again: in sequence order, before all batches that were never sent."""
        batch.in_flight = False
        later = [b for b in self.waiting if b in self.outstanding]
        position = sum(1 for b in later if self.outstanding.index(b) < self.outstanding.index(batch))
        self.waiting.insert(position, batch)

    def substitute(self, batch: ProducerBatch, halves: Sequence[ProducerBatch]) -> None:
        """Put the halves of a refused batch in its place.

        As outstanding batches they are sent in order, each after the outcome of the one before, because a half may be
        split again. With sequences they wait for a new epoch, in which all outstanding batches are numbered again.
        """
        at = self.outstanding.index(batch)
        self.outstanding[at : at + 1] = halves
        self.topic.forget(batch)
        batch.in_flight = False
        if batch.base_sequence != NO_SEQUENCE:
            self.bump_needed = True
        for half in halves:
            self.requeue(half)

    def forget(self, batch: ProducerBatch) -> None:
        """Remove a batch whose outcome is decided."""
        self.topic.forget(batch)
        if batch in self.outstanding:
            self.overtook += batch is not self.outstanding[0]
            self.outstanding.remove(batch)
            if not self.outstanding:
                self.overtook = 0
        if batch in self.waiting:
            self.waiting.remove(batch)

    def establish(self, batch: ProducerBatch) -> None:
        """Note that the broker has acknowledged ``batch``."""
        if (batch.producer_id, batch.producer_epoch) == (self.producer_id, self.producer_epoch):
            self.is_established = True

    def refuse(self, batch: ProducerBatch, now_ms: float) -> bool:
        """Let ``batch`` wait again, because a broker refused its layout. Returns as ``TopicPlacement.refuse`` does."""
        pause = self.topic.refuse(batch, now_ms)
        if batch.base_sequence != NO_SEQUENCE and not self._is_oldest_unanswered(batch):
            # An older batch has no outcome yet, so the sequence cannot go back to this batch's sequence.
            self.bump_needed = True
        self.requeue(batch)
        return pause

    def _is_oldest_unanswered(self, batch: ProducerBatch) -> bool:
        return all(b.is_unwritten for b in self.outstanding[: self.outstanding.index(batch)])

    def drain(self) -> list[ProducerBatch]:
        """Take every batch out, in order, and go back to the sequence after the last acknowledged one.

        Call it only when ``may_adopt``: every sent batch is either written or certainly not written.
        """
        assert self.may_adopt
        if self.outstanding and self.outstanding[0].base_sequence != NO_SEQUENCE:
            self.next_sequence = self.outstanding[0].base_sequence
        self.is_established = False  # another incarnation of the partition may exist by now
        batches = list(self.waiting)
        self.waiting.clear()
        self.outstanding.clear()
        self.overtook = 0
        return batches
