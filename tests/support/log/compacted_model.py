"""A compacted topic in the simulation of ``lineage_model``: cleaners take the place of the readers.

Every record of a key is a value or a tombstone. Cleaners remove tombstones by the rule of
``ordered_resize.kept_tombstones``, with lineages of any age. Producers write tombstones of moved keys (ADR 18), which
may arrive late. Time does not matter: ``delete.retention.ms`` may have passed at any moment. After each step, a new
reader of the whole topic must find the last value of each key, or nothing if the key's last record is a tombstone. The
lineage gives this reader a key's records in order.
"""

from __future__ import annotations

from typing import NamedTuple

from anabranch.ordered_resize import kept_tombstones
from anabranch.ordered_resize.lineage import leader_epochs_after_creation
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.resize.lineage_model import Batch, BrokenError, LineageModel, Metadata, Number, Record

_MOVED = -1
"""The record number of a tombstone of a moved key."""


class Moved(NamedTuple):
    """An unwritten tombstone of a moved key. After a resize the tombstone keeps its partition."""

    batch: Batch


class CompactedModel(LineageModel):
    """The topic with compaction. A marked partition is removed when its log is empty.

    ``send`` also writes tombstones of moved keys, and ``look`` also cleans.
    """

    drops_values = False
    """Whether marked partitions are removed with their records."""
    moves_by_layout = True
    """Whether tombstones of moved keys are written only under the layout by which the key's record was written."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed, records=40)
        self.tombstones: set[Number] = set()
        self.versions: dict[Number, int] = {}
        """The layout version by which each record's partition was chosen."""
        self.late_moved: list[Moved] = []
        self.removed = 0
        """The number of tombstones that cleaners have removed."""

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
        """Let the key's producer write late tombstones to the ancestors of the partition of an acknowledged record."""
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
        """Do nothing: retention removes no records of a compacted topic."""

    def look(self, p: int) -> bool:
        """Remove one record that compaction may remove. False when there is none."""
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
        """Whether a cleaner removes ``record``, the only record of its key in the partition."""
        if record.number[1] == _MOVED:
            return True
        if record.number not in self.tombstones or p not in self.ages:
            return False
        known = self.ages[p][-1] if self.quiet else self.r.choice(self.ages[p])
        over = self.overs[-1] if self.quiet else self.r.choice(self.overs)
        entries = [entry for entry in known.entries if self.counts(p, entry)]
        return record.epoch < kept_tombstones.first_kept_epoch(entries, known.as_of, over)

    def counts(self, _p: int, _entry: LineageEntry) -> bool:
        """Return True: every lineage entry of a partition counts."""
        return True

    # ------------------------------------------------------------ a new reader

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
                raise BrokenError(
                    f"a reader finds record {n} of key {h} in {p}, but the last record is {kind} {written}"
                )

    def finish(self) -> None:
        """Complete all resizes and writes, and clean until there is nothing to remove."""
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
