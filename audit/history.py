"""A topic's history on the audit's page: layouts, splits and merges, partitions, leader epochs, hot keys. Pure.

The layouts come from a topic's manifest. The contents of each leader epoch, and the records that break a rule, come
from the report. Nothing here grows with the number of records. Lists are cut to ``PageLimits``; the rest of a list is
summed up.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.report import AuditReport, Check, Epoch, Violation
from anabranch.protocol.key_placement import ancestor_below, place, positive_hash

ORDER_CHECK = "key order"
MOVES_PER_ROW = 5
"""All resizes of a page together list at most this many times ``PageLimits.rows`` splits and merges."""
LEAST_MOVES = 4


class PageLimits(NamedTuple):
    """The limits of a page: boxes in a row of the tree, and rows of each table."""

    lanes: int = 16
    rows: int = 100


DEFAULT_LIMITS = PageLimits()


@dataclass(slots=True)
class Total:
    """A sum over rows. Offsets and times are None without a batch."""

    batches: int = 0
    records: int = 0
    bytes: int = 0
    first_offset: int | None = None
    last_offset: int | None = None
    first_timestamp: int | None = None
    last_timestamp: int | None = None

    def add(self, row: Epoch | Total) -> None:
        self.batches += row.batches
        self.records += row.records
        self.bytes += row.bytes
        self.first_offset = _lower(self.first_offset, row.first_offset)
        self.last_offset = _higher(self.last_offset, row.last_offset)
        self.first_timestamp = _lower(self.first_timestamp, row.first_timestamp)
        self.last_timestamp = _higher(self.last_timestamp, row.last_timestamp)


def _lower(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _higher(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)


@dataclass(frozen=True, slots=True)
class Lane:
    """A column of the tree: a partition, or a range of partitions when there are too many."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(slots=True)
class Cell:
    """A lane under one layout. ``in_use`` counts partitions in use, ``closed`` partitions that were in use before."""

    in_use: int
    closed: int
    total: Total = field(default_factory=Total)
    violations: int = 0


@dataclass(frozen=True, slots=True)
class Stage:
    """One layout of the topic, and the records written under it, lane by lane."""

    layout_version: int
    initial_partition_count: int
    undeleted_partition_count: int
    total: Total
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class Move:
    """Keys that went from one partition to another.

    ``source_end`` is one above the offset of the source's last record before the resize. ``target_start`` is the offset
    of the target's first record after it. An offset is None when there is no such record. ``records_after`` counts the
    target's records under the later layout.
    """

    source: int
    target: int
    source_end: int | None
    target_start: int | None
    records_after: int
    violations: int


@dataclass(frozen=True, slots=True)
class Edge:
    """The number of moves from one lane to another."""

    source: int
    target: int
    moves: int


@dataclass(frozen=True, slots=True)
class LayoutChange:
    """A resize from one layout to the next known one. ``moves`` has the first moves; ``move_count`` counts all.

    ``outcome`` is the state of the order of keys under the later layout: "kept"; "broken" if the report names a
    violation there; "unnamed" if it names none there, but does not name all violations; "undecided" if the order was
    not checked.
    """

    before: Stage
    after: Stage
    kind: Literal["split", "merge", "other"]
    moves: list[Move]
    move_count: int
    edges: list[Edge]
    order_violations: int
    outcome: Literal["kept", "broken", "unnamed", "undecided"]

    @property
    def skipped_layouts(self) -> int:
        """The number of layouts between these two that no file mentions."""
        return self.after.layout_version - self.before.layout_version - 1


@dataclass(frozen=True, slots=True)
class LayoutRow:
    """One partition over all layouts. ``state`` is its state under the last layout."""

    partition: int
    state: Literal["in use", "closed", "unknown"]
    total: Total
    epochs: int
    violations: int


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key, its records, and its partition under each layout, from the first layout to the last."""

    key: bytes
    records: int
    partitions: list[int]


@dataclass(frozen=True, slots=True)
class TopicHistory:
    """The content of the page for one topic. The fields ``further_...`` count the rows that the limits leave out."""

    topic: str
    total: Total
    lanes: list[Lane]
    stages: list[Stage]
    further_stages: int
    changes: list[LayoutChange]
    unknown_layout: Total
    partitions: list[LayoutRow]
    further_partitions: int
    further_partitions_total: Total
    epochs: list[Epoch]
    further_epochs: int
    hot_keys: list[KeyRow]


def topic_history(manifest: Manifest, report: AuditReport, limits: PageLimits = DEFAULT_LIMITS) -> TopicHistory:
    """The history of the manifest's topic."""
    epochs = [row for row in report.epochs if row.topic == manifest.topic]
    violations = _Violations(report, manifest.topic, epochs)
    layouts = layouts_of(manifest)
    lanes = _lanes(manifest, layouts, limits.lanes)
    by_layout: dict[int | None, list[Epoch]] = defaultdict(list)
    total, unknown = Total(), Total()
    for row in epochs:
        total.add(row)
        by_layout[row.layout_version].append(row)
    for row in by_layout[None]:
        unknown.add(row)
    ever = accumulate((layout.undeleted_partition_count for layout in layouts), max)
    stages = [
        _stage(layout, most, lanes, by_layout[layout.layout_version], violations)
        for layout, most in list(zip(layouts, ever, strict=True))[-limits.rows :]
    ]
    offsets = _Offsets(epochs)
    moves = max(LEAST_MOVES, MOVES_PER_ROW * limits.rows // max(1, len(stages) - 1))
    changes = [_change(before, after, lanes, offsets, violations, moves) for before, after in pairwise(stages)]
    partitions = _partitions(manifest, layouts, epochs, violations)
    rest = Total()
    for each in partitions[limits.rows :]:
        rest.add(each.total)
    keys = [row for row in report.hot_keys if row.topic == manifest.topic]
    return TopicHistory(
        topic=manifest.topic,
        total=total,
        lanes=lanes,
        stages=stages,
        further_stages=len(layouts) - len(stages),
        changes=changes,
        unknown_layout=unknown,
        partitions=sorted(partitions[: limits.rows], key=lambda row: row.partition),
        further_partitions=max(0, len(partitions) - limits.rows),
        further_partitions_total=rest,
        epochs=epochs[: limits.rows],
        further_epochs=max(0, len(epochs) - limits.rows),
        hot_keys=[KeyRow(row.key, row.records, _path(row.key, layouts)) for row in keys[: limits.rows]],
    )


def layouts_of(manifest: Manifest) -> list[LayoutLine]:
    """The topic's layouts in the history of any partition, oldest first; their leader epochs have no meaning here."""
    known = {layout.layout_version: layout for entry in manifest.partitions for layout in entry.layouts}
    initial = manifest.initial_partition_count
    if initial >= 1 and (known or initial == manifest.undeleted_partition_count):
        known.setdefault(0, LayoutLine(-1, initial, initial, 0))
    if manifest.undeleted_partition_count >= 1:
        now = LayoutLine(-1, initial, manifest.undeleted_partition_count, manifest.layout_version)
        known.setdefault(manifest.layout_version, now)
    return [known[version] for version in sorted(known)]


def _lanes(manifest: Manifest, layouts: Sequence[LayoutLine], most: int) -> list[Lane]:
    """All partitions, from 0 on, in at most ``most`` ranges of equal length."""
    counts = [layout.undeleted_partition_count for layout in layouts]
    count = max([0, *counts, *(entry.partition + 1 for entry in manifest.partitions)])
    width = max(1, -(-count // most))
    return [Lane(first, min(first + width, count) - 1) for first in range(0, count, width)]


def _lane_of(partition: int, lanes: Sequence[Lane]) -> int:
    return partition // (lanes[0].last - lanes[0].first + 1)


def _stage(
    layout: LayoutLine, ever: int, lanes: Sequence[Lane], epochs: Iterable[Epoch], violations: _Violations
) -> Stage:
    """The stage of a layout. ``ever`` is the highest partition count so far; ``epochs`` are the layout's."""
    undeleted = layout.undeleted_partition_count
    cells = [Cell(_within(lane, 0, undeleted), _within(lane, undeleted, ever)) for lane in lanes]
    total = Total()
    for row in epochs:
        total.add(row)
        cells[_lane_of(row.partition, lanes)].total.add(row)
    for (version, partition), count in violations.of_stage.items():
        if version == layout.layout_version and partition <= lanes[-1].last:
            cells[_lane_of(partition, lanes)].violations += count
    return Stage(layout.layout_version, layout.initial_partition_count, undeleted, total, cells)


def _within(lane: Lane, begin: int, end: int) -> int:
    """The number of the lane's partitions in ``[begin, end)``."""
    return max(0, min(lane.last + 1, end) - max(lane.first, begin))


class _Offsets:
    """The first and last offset of a partition under each layout."""

    def __init__(self, epochs: Iterable[Epoch]) -> None:
        self._rows: dict[int, list[Epoch]] = defaultdict(list)
        for row in epochs:
            if row.layout_version is not None:
                self._rows[row.partition].append(row)

    def end(self, partition: int, version: int) -> int | None:
        """One above the offset of the last record under this layout or an earlier one."""
        last = [row.last_offset for row in self._rows[partition] if (row.layout_version or 0) <= version]
        return max(last) + 1 if last else None

    def under(self, partition: int, version: int) -> Total:
        found = Total()
        for row in self._rows[partition]:
            if row.layout_version == version:
                found.add(row)
        return found


class _Violations:
    """The named violations of a topic, by layout version and partition."""

    def __init__(self, report: AuditReport, topic: str, epochs: Iterable[Epoch]) -> None:
        self._rows: dict[int, list[Epoch]] = defaultdict(list)
        for row in epochs:
            self._rows[row.partition].append(row)
        self.order = next((check for check in report.checks if check.name == ORDER_CHECK), None)
        self.of_stage: Counter[tuple[int | None, int]] = Counter()
        self.of_order: Counter[tuple[int | None, int]] = Counter()
        self.of_partition: Counter[int] = Counter()
        for check in report.checks:
            for violation in check.violations:
                if violation.topic == topic:
                    self._add(check, violation)

    def _add(self, check: Check, violation: Violation) -> None:
        self.of_partition[violation.partition] += 1
        place = self._layout_version(violation), violation.partition
        self.of_stage[place] += 1
        if check is self.order:
            self.of_order[place] += 1

    def _layout_version(self, violation: Violation) -> int | None:
        for row in self._rows[violation.partition]:
            if violation.offset is not None and row.first_offset <= violation.offset <= row.last_offset:
                return row.layout_version
        return None

    def order_violations(self, version: int) -> int:
        return sum(count for (of_version, _), count in self.of_order.items() if of_version == version)

    def outcome(self, version: int) -> Literal["kept", "broken", "unnamed", "undecided"]:
        """The known state of the order of keys under a layout: ``LayoutChange.outcome``."""
        if self.order_violations(version):
            return "broken"
        if self.order is None or self.order.unknown is not None:
            return "undecided"
        return "unnamed" if self.order.violation_count > sum(self.of_order.values()) else "kept"


def _change(
    before: Stage, after: Stage, lanes: Sequence[Lane], offsets: _Offsets, violations: _Violations, rows: int
) -> LayoutChange:
    one, other = before.undeleted_partition_count, after.undeleted_partition_count
    initial = after.initial_partition_count
    pairs: list[tuple[int, int]] = []
    kind: Literal["split", "merge", "other"] = "other"
    if initial >= 1 and initial == before.initial_partition_count and one != other:
        kind = "split" if other > one else "merge"
        if kind == "split":
            pairs = [(ancestor_below(new, initial, one), new) for new in range(one, other)]
        else:
            pairs = [(gone, ancestor_below(gone, initial, other)) for gone in range(other, one)]
    edges = Counter((_lane_of(source, lanes), _lane_of(target, lanes)) for source, target in pairs)
    version = after.layout_version

    def move(source: int, target: int) -> Move:
        under = offsets.under(target, version)
        return Move(
            source,
            target,
            offsets.end(source, before.layout_version),
            under.first_offset,
            under.records,
            violations.of_stage[version, target],
        )

    # Moves with a named violation come first.
    pairs.sort(key=lambda pair: -violations.of_stage[version, pair[1]])
    return LayoutChange(
        before=before,
        after=after,
        kind=kind,
        moves=[move(*pair) for pair in pairs[:rows]],
        move_count=len(pairs),
        edges=[Edge(*lanes_, count) for lanes_, count in sorted(edges.items())],
        order_violations=violations.order_violations(version),
        outcome=violations.outcome(version),
    )


def _partitions(
    manifest: Manifest, layouts: Sequence[LayoutLine], epochs: Iterable[Epoch], violations: _Violations
) -> list[LayoutRow]:
    """All partitions: those with named violations first, the others by their number of records."""
    totals: dict[int, Total] = defaultdict(Total)
    leader_epochs: Counter[int] = Counter()
    for row in epochs:
        totals[row.partition].add(row)
        leader_epochs[row.partition] += 1
    undeleted = layouts[-1].undeleted_partition_count if layouts else None

    def row_of(entry: PartitionEntry) -> LayoutRow:
        p = entry.partition
        state: Literal["in use", "closed", "unknown"] = "unknown"
        if undeleted is not None:
            state = "in use" if p < undeleted else "closed"
        return LayoutRow(p, state, totals[p], leader_epochs[p], violations.of_partition[p])

    found = [row_of(entry) for entry in manifest.partitions]
    return sorted(found, key=lambda row: (-row.violations, -row.total.records, row.partition))


def _path(key: bytes, layouts: Sequence[LayoutLine]) -> list[int]:
    """The partitions of a key, layout by layout; a partition that stays is listed once."""
    path: list[int] = []
    for layout in layouts:
        if layout.initial_partition_count < 1:
            return []
        p = place(positive_hash(key), layout.initial_partition_count, layout.undeleted_partition_count)
        if not path or path[-1] != p:
            path.append(p)
    return path
