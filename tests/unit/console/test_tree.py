"""The tree of splits and merges: the content of each column, and the time in which each lane is in use."""

from __future__ import annotations

from anabranch.console.tree import COLUMN_PX, LEFT_PX, Gain, columns_of, draw, gains_of
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


def test_times_separate_gains_that_do_not_need_each_other() -> None:
    columns = columns_of(GAINS, {(4, 1): 1_000, (5, 1): 60_000})
    assert gained(columns) == [[4], [5], [1], [5]]
    assert [column.at_ms for column in columns] == [1_000, 60_000, None, None]


def test_a_partition_without_records_is_not_older_than_one_of_a_lower_number() -> None:
    gains = [Gain(4, 1, {0: 0}), Gain(5, 1, {1: 0}), Gain(6, 1, {2: 0}), Gain(7, 1, {3: 0})]
    dated = {(4, 1): 1_000, (6, 1): 60_000}
    assert gained(columns_of(gains, dated)) == [[4, 5], [6, 7]]


def test_lineages_that_contradict_each_other_are_drawn_all_the_same() -> None:
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
    assert lanes[5].is_in_use
    assert [(edge.kind, edge.source, edge.target) for edge in tree.edges] == [
        ("split", 0, 4),
        ("split", 1, 5),
        ("merge", 5, 1),
        ("split", 1, 5),
    ]


def test_a_marked_partition_with_an_unknown_merge_is_not_in_use() -> None:
    tree = draw(range(6), 4, 4, [], 48, 40)
    assert [lane.is_in_use for lane in tree.lanes] == [True] * 4 + [False] * 2


def test_a_tree_of_many_partitions_and_columns_is_cut() -> None:
    tree = draw(range(10_000), 10_000, 4, columns_of(GAINS, {}), 48, 2)
    assert (len(tree.lanes), tree.left_out, len(tree.columns)) == (48, 9_952, 2)
