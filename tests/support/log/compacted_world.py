"""A compacted topic in the simulation of ``lineage_world``: cleaners take the place of the readers.

Every record of a key is a value or a tombstone. Cleaners remove what ``ordered_resize.tombstones`` lets go, by lineages
of any age; producers leave tombstones of moved keys behind (ADR 18), which may arrive late. Time is no rule:
``delete.retention.ms`` is over at any moment. After each step a new reader of the whole topic, to whom the lineage
gives a key's records in order, has to find of each key what was written last, or nothing if that was a tombstone.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.ordered_resize import tombstones
from anabranch.ordered_resize.lineage import leader_epochs_after_creation
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.resize.lineage_world import Batch, BrokenError, Metadata, Number, Record, World

_MOVED = -1
"""As the number of a record: the tombstone of a key that moved."""


class Moved(NamedTuple):
    """A tombstone of a moved key on its way; it is never placed again."""

    batch: Batch


class CompactedWorld(World):
    """A marked partition goes when its log is empty. ``send`` and ``look`` of the base class also leave and clean."""

    drops_values = False
    """Marked partitions are removed with what they hold."""
    moves_by_layout = True
    """A tombstone of a moved key is left by the layout alone by which the key's record was placed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, records=40)
        self.tombstones: set[Number] = set()
        self.versions: dict[Number, int] = {}
        """The layout version by which each record was placed."""
        self.late_moved: list[Moved] = []
        self.removed = 0
        """Tombstones that a cleaner let go."""

    # ------------------------------------------------------------ producers

    def produce(self, batch: Batch) -> bool:
        was_written = batch.number in self.where
        is_written = super().produce(batch)
        if is_written and not was_written:
            self.versions[batch.number] = batch.layout.layout_version
            if self.r.random() < 0.4:
                self.tombstones.add(batch.number)
        return is_written

    def send(self, h: int) -> bool:
        if not self.quiet and self.r.random() < 0.4:
            self.leave(h)
        return super().send(h)

    def leave(self, h: int) -> None:
        """A producer of the key leaves a tombstone where the key was before a record that was acknowledged to it."""
        producer = self.producers[h]
        metadata: Metadata = self.metadata[producer.metadata]
        number = (h, self.r.randrange(producer.next + 1) - 1)
        p = self.where.get(number, (-1, -1))[0]
        if p < self.initial or (self.moves_by_layout and self.versions[number] != metadata.layout.layout_version):
            return
        ancestors = leader_epochs_after_creation(p, self.r.choice(self.ages[p]).entries)
        for ancestor in ancestors:
            if metadata.layout.owner(h) != ancestor and ancestor in metadata.incarnations:
                batch = Batch(ancestor, metadata.layout.stored, metadata.incarnations[ancestor], (h, _MOVED))
                self.late_moved.append(Moved(batch))

    def arrive(self, moved: Moved) -> None:
        p, layout, _, number = moved.batch
        replica = self.replicas.get(p)
        if replica is not None and replica.layout == layout and p < layout.undeleted_partition_count:
            replica.log.append(Record(replica.end, replica.epoch, number))
            replica.end += 1

    # ------------------------------------------------------------ cleaners

    def is_drained(self, p: int) -> bool:
        replica = self.replicas.get(p)
        return replica is not None and (self.drops_values or not replica.log)

    def expire(self, p: int) -> None:
        """Retention removes nothing of a compacted topic."""

    def look(self, p: int) -> bool:
        """Something that compaction may remove goes; whether there was anything."""
        if self.late_moved and self.r.random() < 0.3:
            self.arrive(self.late_moved.pop(self.r.randrange(len(self.late_moved))))
        replica = self.replicas.get(p)
        if replica is None:
            return False
        keys = [record.number[0] for record in replica.log]
        newest = {record.number[0]: record.offset for record in replica.log}
        may_go = [
            r
            for r in replica.log
            if r.offset < newest[r.number[0]] or (keys.count(r.number[0]) == 1 and self.lets_go(p, r))
        ]
        if not may_go:
            return False
        gone = self.r.choice(may_go)
        self.removed += gone.number in self.tombstones and gone.offset == newest[gone.number[0]]
        replica.log = [record for record in replica.log if record is not gone]
        return True

    def lets_go(self, p: int, record: Record) -> bool:
        """Whether the only record of its key goes."""
        if record.number[1] == _MOVED:
            return True
        if record.number not in self.tombstones or p not in self.ages:
            return False
        known = self.ages[p][-1] if self.quiet else self.r.choice(self.ages[p])
        over = self.overs[-1] if self.quiet else self.r.choice(self.overs)
        entries = [entry for entry in known.entries if self.counts(p, entry)]
        return record.epoch < tombstones.first_kept_epoch(entries, known.as_of, over)

    def counts(self, _p: int, _entry: LineageEntry) -> bool:
        """Whether an entry of the partition counts; all do."""
        return True

    # ------------------------------------------------------------ what a new reader finds

    def step(self) -> None:
        super().step()
        self.check()

    def check(self) -> None:
        found: dict[int, tuple[int, int]] = {}
        for p, replica in self.replicas.items():
            for record in replica.log:
                h, n = record.number
                found[h] = max(found.get(h, (-1, -1)), (n, p))
        for h in self.producers:
            written = max((n for key, n in self.where if key == h), default=-1)
            n, p = found.get(h, (-1, -1))
            if n != written and not (n < 0 and (h, written) in self.tombstones):
                kind = "tombstone" if (h, written) in self.tombstones else "value"
                raise BrokenError(f"a reader finds record {n} of key {h} in {p}, and the last is {kind} {written}")

    def finish(self) -> None:
        """All is resized and written, and every cleaner removes what it may."""
        self.quiet, idle = True, 0
        while idle < 2:
            moved = self.advance()
            for p in list(self.states):
                moved = self.order_one(p) or moved
                moved = self.look(p) or moved
            for h in self.producers:
                moved = self.refresh(h) or moved
                moved = self.send(h) or moved
            self.check()
            idle = 0 if moved else idle + 1
