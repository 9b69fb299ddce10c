"""The history of a topic on the audit's page follows from the topic's manifest and the report."""

from __future__ import annotations

import dataclasses

import pytest

from anabranch.audit.history import LayoutChange, Move, PageLimits, topic_history
from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.report import Check, HotKey
from anabranch.protocol.key_placement import place, positive_hash
from tests.support.audit.histories import RECORDS, T0, epochs_of, report, topic, violation


def pairs(change: LayoutChange) -> list[tuple[int, int]]:
    return [(move.source, move.target) for move in change.moves]


def test_a_split_and_a_merge_are_shown_with_the_offsets_around_them() -> None:
    manifest = topic([2, 3, 2])
    history = topic_history(manifest, report([manifest]))
    grown, shrunk = history.changes
    assert (grown.kind, shrunk.kind) == ("split", "merge")
    assert grown.moves == [Move(0, 2, source_end=100, target_start=0, records_after=100, violations=0)]
    assert shrunk.moves == [Move(2, 0, source_end=100, target_start=200, records_after=100, violations=0)]
    states = [[(cell.in_use, cell.closed) for cell in stage.cells] for stage in history.stages]
    assert states == [[(1, 0), (1, 0), (0, 0)], [(1, 0)] * 3, [(1, 0), (1, 0), (0, 1)]]
    assert [stage.total.records for stage in history.stages] == [200, 300, 200]
    assert [stage.total.first_timestamp for stage in history.stages] == [T0, T0 + 1000, T0 + 2000]
    assert [(row.partition, row.state, row.epochs) for row in history.partitions] == [
        (0, "in use", 3),
        (1, "in use", 3),
        (2, "closed", 1),
    ]
    assert history.total.bytes == 10 * history.total.records == 7000


def test_a_resize_over_several_levels_moves_each_key_in_one_step() -> None:
    manifest = topic([2, 8, 2])
    grown, shrunk = topic_history(manifest, report([manifest])).changes
    assert pairs(grown) == [(0, 2), (1, 3), (0, 4), (1, 5), (0, 6), (1, 7)]
    assert sorted(pairs(shrunk)) == sorted((target, source) for source, target in pairs(grown))


def test_a_partition_without_records_has_no_offsets() -> None:
    manifest = topic([1, 2])
    epochs = [epoch for epoch in epochs_of(manifest) if epoch.partition == 0]
    (grown,) = topic_history(manifest, report([manifest], epochs=epochs)).changes
    assert grown.moves == [Move(0, 1, source_end=100, target_start=None, records_after=0, violations=0)]


def test_many_partitions_share_few_lanes() -> None:
    manifest = topic([10, 10_000])
    history = topic_history(manifest, report([manifest]), PageLimits(lanes=16, rows=50))
    assert len(history.lanes) == 16
    assert [p for lane in history.lanes for p in range(lane.first, lane.last + 1)] == list(range(10_000))
    before, after = history.stages
    assert sum(cell.in_use for cell in before.cells) == 10
    assert sum(cell.total.records for cell in after.cells) == after.total.records == 10_000 * RECORDS
    (grown,) = history.changes
    assert grown.move_count == sum(edge.moves for edge in grown.edges) == 9_990
    assert len(grown.moves) == 250


def test_rows_beyond_the_limit_are_summed_up() -> None:
    manifest = topic([20])
    wrong = Check("crc", 200, 1, [violation(17, 5)])
    history = topic_history(manifest, report([manifest], [wrong]), PageLimits(rows=3))
    assert [row.partition for row in history.partitions] == [0, 1, 17], "a partition with a violation is shown"
    assert history.further_partitions == 17
    shown = sum(row.total.records for row in history.partitions)
    assert shown + history.further_partitions_total.records == history.total.records == 20 * RECORDS
    assert (len(history.epochs), history.further_epochs) == (3, 17)


def test_only_the_last_layouts_within_the_limit_are_shown() -> None:
    manifest = topic([2, 3, 4, 5, 4])
    history = topic_history(manifest, report([manifest]), PageLimits(rows=2))
    assert [stage.undeleted_partition_count for stage in history.stages] == [5, 4]
    assert (history.further_stages, len(history.changes)) == (3, 1)
    assert [cell.closed for cell in history.stages[-1].cells] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    ("order", "outcomes"),
    [
        (Check("key order", 1000), ["kept", "kept"]),
        (Check("key order", 0, unknown="no order-by"), ["undecided", "undecided"]),
        # Partition 2 has layout 1 at offsets 0-99. Partition 0 has layout 2 at offsets 200-299.
        (Check("key order", 1000, 1, [violation(2, 7)]), ["broken", "kept"]),
        (Check("key order", 1000, 5, [violation(0, 250)]), ["unnamed", "broken"]),
        (Check("key order", 1000, 1, [violation(2, 7)], unknown="1 batch"), ["broken", "undecided"]),
    ],
)
def test_each_resize_shows_whether_the_keys_kept_their_order(order: Check, outcomes: list[str]) -> None:
    manifest = topic([2, 3, 2])
    history = topic_history(manifest, report([manifest], [order]))
    assert [change.outcome for change in history.changes] == outcomes


def test_violations_are_counted_in_the_layout_of_their_offset() -> None:
    manifest = topic([2, 3, 2])
    found = [violation(2, 7), violation(2, 8), violation(0, 250), violation(1, 5, name="others")]
    history = topic_history(manifest, report([manifest], [Check("placement", 700, 4, found)]))
    hits = [[cell.violations for cell in stage.cells] for stage in history.stages]
    assert hits == [[0, 0, 0], [0, 0, 2], [1, 0, 0]]
    assert [change.moves[0].violations for change in history.changes] == [2, 1]
    assert [row.violations for row in history.partitions] == [1, 0, 2]


def test_records_of_an_unknown_layout_are_counted_separately() -> None:
    manifest = topic([2])
    first, second = epochs_of(manifest)
    lost = dataclasses.replace(second, layout_version=None)
    history = topic_history(manifest, report([manifest], epochs=[first, lost]))
    assert (history.unknown_layout.records, history.stages[0].total.records) == (100, 100)


def test_a_log_directory_without_layouts_shows_only_partitions() -> None:
    manifest = Manifest("plain", "delete", -1, -1, [PartitionEntry(0, 0, -1, []), PartitionEntry(3, 0, -1, [])])
    history = topic_history(manifest, report([manifest], epochs=[], hot_keys=[HotKey("plain", b"k", 3)]))
    assert (history.stages, history.changes) == ([], [])
    assert [(row.partition, row.state) for row in history.partitions] == [(0, "unknown"), (3, "unknown")]
    assert history.hot_keys[0].partitions == []


def test_missing_layouts_are_counted_and_contradictory_counts_show_no_moves() -> None:
    """Layout 1 is in no history, and the initial partition count changes between layouts 2 and 3."""
    layouts = [LayoutLine(0, 2, 2, 0), LayoutLine(4, 2, 4, 2), LayoutLine(5, 3, 6, 3)]
    manifest = Manifest("events", "delete", 3, 6, [PartitionEntry(0, 0, -1, [], layouts)], layout_version=3)
    changes = topic_history(manifest, report([manifest], epochs=[])).changes
    assert [(change.kind, change.skipped_layouts, change.move_count) for change in changes] == [
        ("split", 1, 2),
        ("other", 0, 0),
    ]


def test_the_layout_before_the_first_recorded_one_is_that_of_the_creation() -> None:
    manifest = Manifest(
        "events", "delete", 2, 3, [PartitionEntry(0, 0, -1, [], [LayoutLine(4, 2, 3, 1)])], layout_version=1
    )
    history = topic_history(manifest, report([manifest], epochs=[]))
    assert [(stage.layout_version, stage.undeleted_partition_count) for stage in history.stages] == [(0, 2), (1, 3)]


def test_hot_keys_are_shown_with_the_partitions_they_belonged_in() -> None:
    manifest = topic([2, 3, 2])
    keys = [b"key-%d" % n for n in range(50)]
    found = [HotKey("events", key, 50 - n) for n, key in enumerate(keys)]
    history = topic_history(manifest, report([manifest], hot_keys=found), PageLimits(rows=30))
    assert [row.key for row in history.hot_keys] == keys[:30]
    moved = {row.key for row in history.hot_keys if row.partitions == [0, 2, 0]}
    assert moved == {key for key in keys[:30] if place(positive_hash(key), 2, 3) == 2} != set()
    assert {len(row.partitions) for row in history.hot_keys} == {1, 3}


def test_partitions_with_records_ahead_of_the_clock_are_named() -> None:
    found = report([topic([2], "t")])
    latest = max(epoch.last_timestamp for epoch in found.epochs)
    assert found.ahead_of(latest) == found.ahead_of(latest - 3_600_000) == []
    assert found.ahead_of(latest - 3_600_001) == [("t", 0, 3_600_001), ("t", 1, 3_600_001)]
