"""The tree of splits and merges: the content of each column, and the time in which each lane is in use."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.console.app import _templates
from anabranch.console.tree import (
    AGAIN_PX,
    COLUMN_PX,
    LEAVES_PX,
    LEFT_PX,
    At,
    Column,
    Gain,
    columns_of,
    draw,
    gains_of,
    named_partitions,
    times_of,
)
from anabranch.ordered_resize.facts import Lineage
from anabranch.zk_schemas.partition_state import LineageEntry

SPLIT_4, SPLIT_5 = Gain(4, 1, {0: 0}), Gain(5, 1, {1: 0})
MERGE_5 = Gain(1, 2, {5: 1})
AGAIN_5 = Gain(5, 3, {1: 2})
GAINS = [AGAIN_5, MERGE_5, SPLIT_4, SPLIT_5]


def gained(columns: list) -> list[list[int]]:
    return [[gain.partition for gain in column.gains] for column in columns]


def test_a_gain_comes_after_the_gains_that_it_needs() -> None:
    assert gained(columns_of(GAINS, {})) == [[4, 5], [1], [5]]


def test_independent_gains_with_different_times_are_in_separate_columns() -> None:
    columns = columns_of(GAINS, {(4, 1): At(1_000), (5, 1): At(60_000)})
    assert gained(columns) == [[4], [5], [1], [5]]
    assert [column.at for column in columns] == [At(1_000), At(60_000), None, None]


def test_a_time_that_zookeeper_has_is_shown_and_that_of_a_first_record_is_an_upper_limit() -> None:
    lineages = {1: Lineage(3, -1, (LineageEntry(2, {5: 1}),), {2: 5_000})}
    times = {(4, 1): At(2_000, is_exact=False), **times_of(lineages)}
    tree = draw(range(6), 6, 4, columns_of(GAINS, times), 48, 40)
    assert [at for _, at in tree.columns] == [At(2_000, is_exact=False), At(5_000), None]
    words = [tspan.split(">")[1].split("<")[0] for tspan in shown(tree).split("<tspan")[1:]]
    assert words == ["before", "01-01 00:00:02", "01-01 00:00:05", "unknown"]


def test_a_partition_without_records_is_not_older_than_one_of_a_lower_number() -> None:
    gains = [Gain(4, 1, {0: 0}), Gain(5, 1, {1: 0}), Gain(6, 1, {2: 0}), Gain(7, 1, {3: 0})]
    dated = {(4, 1): At(1_000), (6, 1): At(60_000)}
    assert gained(columns_of(gains, dated)) == [[4, 5], [6, 7]]


def test_lineages_that_contradict_each_other_are_still_drawn() -> None:
    columns = columns_of([Gain(1, 5, {2: 9}), Gain(2, 5, {1: 9})], {})
    assert sum(len(column.gains) for column in columns) == 2


def test_gains_are_the_entries_with_losers() -> None:
    lineage = Lineage(3, -1, (LineageEntry(1, {0: 0}), LineageEntry(2, {})))
    assert gains_of({4: lineage}) == [Gain(4, 1, {0: 0})]


def test_a_lane_is_in_use_from_its_split_to_its_merge_and_again() -> None:
    tree = draw(range(6), 6, 4, columns_of(GAINS, {}), 48, 40)
    lanes = {lane.partition: lane for lane in tree.lanes}
    first, second, third, end = (LEFT_PX + COLUMN_PX * i for i in (1, 2, 3, 4))
    assert lanes[0].spans == [(LEFT_PX, end, True)]
    assert lanes[5].spans == [(first, second, True), (second, third, False), (third, end, True)]
    assert (lanes[5].state, lanes[5].unknown) == ("in use", [])
    assert [(edge.kind, edge.source, edge.target) for edge in tree.edges] == [
        ("split", 0, 4),
        ("split", 1, 5),
        ("merge", 5, 1),
        ("split", 1, 5),
    ]


def test_a_marked_partition_with_an_unknown_merge_is_not_in_use() -> None:
    tree = draw(range(6), 4, 4, [], 48, 40)
    assert [lane.state for lane in tree.lanes] == ["in use"] * 4 + ["drains"] * 2
    assert [lane.spans[-1][2] for lane in tree.lanes] == [True] * 4 + [False] * 2


def test_a_tree_of_many_partitions_and_columns_is_cut() -> None:
    tree = draw(range(10_000), 10_000, 4, columns_of(GAINS, {}), 48, 2)
    assert (len(tree.lanes), tree.left_out, len(tree.columns)) == (48, 9_952, 2)


FIRST, SECOND, THIRD, END = (LEFT_PX + COLUMN_PX * i for i in (1, 2, 3, 4))
DEMO = [
    Column([Gain(0, 3, {8: 0}), Gain(2, 3, {6: 0}), Gain(3, 3, {7: 0})], At(1_000)),
    Column([Gain(0, 4, {4: 2}), Gain(1, 4, {5: 2})], At(2_000)),
    Column([Gain(0, 6, {4: 4}), Gain(1, 6, {5: 4}), Gain(2, 6, {6: 3}), Gain(3, 6, {7: 3})], At(3_000)),
]
"""The known gains of the resizes 4-6-9-6-4-8-4. The lineages with the splits were deleted with partitions 4 to 8."""


def test_a_deleted_partition_is_drawn_in_use_before_its_merge_and_as_deleted() -> None:
    tree = draw(range(4), 4, 4, DEMO, 48, 40)
    lanes = {lane.partition: lane for lane in tree.lanes}
    assert [lane.state for lane in tree.lanes] == ["in use"] * 4 + ["deleted"] * 5
    assert lanes[8].spans == [(LEFT_PX, FIRST, True), (FIRST, FIRST + LEAVES_PX, False)]
    for edge in tree.edges:
        assert any(x < edge.x <= end and in_use for x, end, in_use in lanes[edge.source].spans), (
            "an arrow starts only where its partition is in use"
        )


def test_a_partition_that_was_merged_twice_was_split_off_again_in_between() -> None:
    tree = draw(range(4), 4, 4, DEMO, 48, 40)
    lane = tree.lanes[4]
    assert lane.spans == [
        (LEFT_PX, SECOND, True),
        (SECOND, THIRD - AGAIN_PX, False),
        (THIRD - AGAIN_PX, THIRD, True),
        (THIRD, THIRD + LEAVES_PX, False),
    ]
    assert lane.unknown == [LEFT_PX, THIRD - AGAIN_PX]


def test_a_split_in_the_lineage_of_an_existing_partition_is_drawn_beside_deleted_ones() -> None:
    tree = draw(range(5), 5, 4, [*DEMO, Column([Gain(4, 7, {0: 6})], At(4_000))], 48, 40)
    assert [(edge.kind, edge.source, edge.target) for edge in tree.edges][-1] == ("split", 0, 4)
    lane = tree.lanes[4]
    assert lane.state == "in use" and lane.spans[-2:] == [(THIRD, END, False), (END, END + COLUMN_PX, True)]


def test_columns_that_are_not_drawn_still_show_which_partitions_were_in_use() -> None:
    tree = draw(range(6), 6, 4, columns_of(GAINS, {}), 48, 1)
    lane = tree.lanes[5]
    assert lane.unknown == [] and lane.spans == [(LEFT_PX, FIRST, False), (FIRST, SECOND, True)]
    assert tree.lanes[4].spans == [(LEFT_PX, SECOND, True)]


def shown(tree: Any) -> str:
    parts: Any = _templates().globals["parts"]
    return " ".join(str(parts.tree_svg(tree, "t")).split())


def test_the_page_names_the_splits_and_merges_that_the_cluster_no_longer_knows() -> None:
    assert (
        "The cluster no longer knows the splits before 01-01 00:00:03 that created partitions 4-8 (○), and older"
        " splits from and merges into partition 2: it drops the lineage of a partition when it deletes the partition."
    ) in shown(draw(range(4), 4, 4, DEMO, 48, 40, floors=[2]))
    assert "no longer knows older splits from and merges into partitions 0-1, 3: it drops" in shown(
        draw(range(4), 4, 4, [], 48, 40, floors=[0, 1, 3])
    )
    undated = [Column(column.gains, None) for column in DEMO]
    assert "knows the splits that created partitions 4-8 (○): it" in shown(draw(range(4), 4, 4, undated, 48, 40))


def test_the_page_reports_no_unknown_split_while_every_split_is_known() -> None:
    assert "no longer" not in shown(draw(range(6), 6, 4, columns_of(GAINS, {}), 48, 40))


@pytest.mark.parametrize(
    ("numbers", "name"),
    [([4], "partition 4"), ([4, 5], "partitions 4-5"), ([12], "partition 12"), ([1, 3], "partitions 1, 3")],
)
def test_partitions_are_named_by_ranges(numbers: list[int], name: str) -> None:
    assert named_partitions(numbers) == name
