"""The topic of ``tests.support.resize.lineage_model`` is read by a stream of micro-batches as well as by the group.

``anabranch.spark.plan`` plans a micro-batch from responses of any age, while the topic is resized. The records of a
micro-batch are checked against each other, and against the recursion of the design on the true state.
"""

from __future__ import annotations

from anabranch.ordered_resize.facts import Lineage
from anabranch.spark.plan import Latest, View, limited, questions, reach
from tests.support.resize.lineage_model import BrokenError, LineageModel, Number


class StreamModel(LineageModel):
    """The topic with a stream. ``seen`` has the micro-batch and the partition in which each record was read."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.view = View()
        self.positions: dict[int, int] = {}
        self.seen: dict[Number, tuple[int, int]] = {}
        self.batches = 0
        self.eager = self.r.choice([0.02, 0.1, 0.3])

    def is_drained(self, p: int) -> bool:
        """Whether the group and the stream have read the partition to its end. Only then may it be removed."""
        return super().is_drained(p) and self.positions.get(p, 0) >= self.replicas[p].end

    def step(self) -> None:
        if self.r.random() < self.eager:
            self.micro_batch()
        else:
            super().step()

    def look(self, p: int) -> bool:
        """Read a micro-batch, too. In each round, ``finish`` calls this method for every partition."""
        is_moved = self.micro_batch() if self.quiet and p == 0 else False
        return super().look(p) or is_moved

    # ------------------------------------------------------------ a micro-batch

    def micro_batch(self) -> bool:
        """Plan and read one micro-batch; False when it read nothing."""
        self.view.latest = {p: Latest(replica.end, replica.epoch) for p, replica in self.replicas.items()}
        start = {p: replica.start for p, replica in self.replicas.items()} | self.positions
        if not self.quiet:
            for _ in range(self.r.randint(0, 5)):
                super().step()
        self.ask(start)
        limit = None if self.quiet or self.r.random() < 0.3 else self.r.randint(1, 8)
        end = limited(start, reach(self.view, start), limit)
        if limit is not None and sum(end[p] - start[p] for p in end) > limit + len(end):
            raise BrokenError(f"a limit of {limit} lets {start} become {end}")
        self.batches += 1
        for p in end:
            self.read(p, start, end[p])
        is_moved = end != start
        self.positions = end
        return is_moved

    def ask(self, start: dict[int, int]) -> None:
        asked = True
        while asked:
            asked = False
            found = questions(self.view, start)
            for q in found.lineages:
                before = self.view.lineages.get(q), self.view.over.get(q, -1)
                self.answer_lineage(q)
                asked = asked or (self.view.lineages.get(q), self.view.over.get(q, -1)) != before
            for q, f in found.ends:
                replica = self.replicas.get(q)
                if replica is not None and replica.epoch > f:
                    self.view.ends[q, f] = next(offset for epoch, offset in replica.starts if epoch > f)
                    asked = True

    def answer_lineage(self, q: int) -> None:
        is_old = not self.quiet and self.r.random() < self.stale
        over = (self.r.choice(self.overs) if is_old else self.overs[-1]).get(q, -1)
        self.view.over[q] = max(over, self.view.over.get(q, -1))
        ages = self.ages.get(q, [])
        if not ages or not (q in self.states or is_old):
            return
        lineage: Lineage = self.r.choice(ages) if is_old else ages[-1]
        known = self.view.lineages.get(q)
        if known is None or lineage.as_of >= known.as_of:
            self.view.lineages[q] = lineage

    # ------------------------------------------------------------ properties

    def read(self, p: int, start: dict[int, int], end: int) -> None:
        replica = self.replicas.get(p)
        if replica is None:
            return
        for record in replica.log:
            if not start[p] <= record.offset < end:
                continue
            h, n = record.number
            if not self.naive(p, record.epoch, start):
                raise BrokenError(f"micro-batch {self.batches} reads epoch {record.epoch} of {p} from {start}")
            if record.number in self.seen:
                raise BrokenError(f"record {n} of key {h} is read twice")
            for m in range(self.records):
                other = self.seen.get((h, m))
                if m < n and other is None and (h, m) in self.where and (h, m) not in self.lost:
                    raise BrokenError(f"micro-batch {self.batches} reads record {n} of key {h} before {m}")
                if m < n and other is not None and other[0] == self.batches and other[1] != p:
                    raise BrokenError(f"micro-batch {self.batches} reads key {h} from {p} and {other[1]}")
                if m > n and other is not None:
                    raise BrokenError(f"micro-batch {self.batches} reads record {n} of key {h} after {m}")
            self.seen[record.number] = (self.batches, p)

    def naive(self, p: int, b: int, start: dict[int, int]) -> bool:
        """Apply the recursion of the design to the true state and the start offsets of the micro-batch."""
        entries = self.entries.get(p, {})
        return all(self.is_past(q, f, start) for e, losers in entries.items() if e <= b for q, f in losers.items())

    def is_past(self, q: int, f: int, start: dict[int, int]) -> bool:
        if self.topic.last_leader_epochs.get(q, -1) >= f:
            return True
        replica = self.replicas.get(q)
        if replica is None:
            end: int | None = self.ends[q][1]
        else:
            end = next((offset for epoch, offset in replica.starts if epoch > f), None)
        return end is not None and start.get(q, 0) >= end and self.naive(q, f, start)

    def finish(self) -> None:
        super().finish()
        left = [number for number in self.where if number not in self.seen and number not in self.lost]
        if left:
            raise BrokenError(f"hangs: the stream never reads {left}")
