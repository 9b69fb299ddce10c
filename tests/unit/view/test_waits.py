"""The waits between partitions in the design's example: key 5 of a topic that is resized 4 -> 6 -> 4."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from anabranch.client.admin.types import PartitionLineage
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.facts import Lineage
from anabranch.view.waits import GroupOnTopic
from anabranch.zk_schemas.partition_state import LineageEntry as Entry

ROOTS = {p: PartitionLineage(Lineage(1)) for p in range(4)}
FIVE = PartitionLineage(Lineage(0, -1, (Entry(0, {1: 0}),)))
GROWN = {**ROOTS, 4: PartitionLineage(Lineage(0, -1, (Entry(0, {0: 0}),))), 5: FIVE}
SHRUNK = {
    **{p: PartitionLineage(Lineage(2)) for p in (2, 3)},
    **{p: PartitionLineage(Lineage(2, -1, (Entry(2, {p + 4: 0}),))) for p in (0, 1)},
    **{p: PartitionLineage(Lineage(1, -1, (Entry(0, {p - 4: 0}),))) for p in (4, 5)},
}
ENDS = {(0, 0): 70, (1, 0): 100, (0, 1): 90, (1, 1): 150, (4, 0): 30, (5, 0): 40}


def group(
    lineages: Mapping[int, PartitionLineage],
    positions: Mapping[int, int],
    *,
    ends: Mapping[tuple[int, int], int] = ENDS,
    log_starts: Mapping[int, int] | None = None,
    owners: Mapping[int, str] | None = None,
) -> GroupOnTopic:
    """Collect the state with the questions that ``anabranch groups describe`` sends."""
    found = GroupOnTopic(lineages, positions, log_starts or {}, owners or {})
    asked: set[tuple[int, int]] = set()
    while wanted := found.ends_to_ask(asked):
        asked.update(wanted)
        for p, epoch in wanted:
            if (p, epoch) in ends:
                found.on_end(p, epoch, ends[p, epoch])
    return found


def test_a_new_partition_waits_for_the_old_records_of_its_parent() -> None:
    found = group(GROWN, {0: 70, 1: 60}, owners={1: "m"})
    assert found.waits() == [(Wait(5, 0, 1, 0, 100, 60, "m"), True)]
    assert str(found.waits()[0].wait) == (
        "partition 5 from epoch 0 waits for partition 1 until offset 100, owned by m, at position 60"
    )


@pytest.mark.parametrize(
    ("lineages", "positions", "ends", "offset", "position"),
    [
        (GROWN, {0: 70}, ENDS, 100, -1),
        (GROWN, {0: 70, 1: 60}, {(0, 0): 70}, -1, 60),
        ({**GROWN, 1: PartitionLineage(None)}, {0: 70, 1: 160}, ENDS, -1, 160),
    ],
    ids=["position", "end", "lineage of the parent"],
)
def test_an_unknown_position_end_or_lineage_blocks(
    lineages: Mapping[int, PartitionLineage],
    positions: Mapping[int, int],
    ends: Mapping[tuple[int, int], int],
    offset: int,
    position: int,
) -> None:
    assert group(lineages, positions, ends=ends).waits() == [(Wait(5, 0, 1, 0, offset, position), True)]


@pytest.mark.parametrize(("owners", "count"), [({}, 0), ({1: "m"}, 1)])
def test_records_removed_by_retention_are_waited_for_only_where_a_member_owns_them(
    owners: Mapping[int, str], count: int
) -> None:
    assert len(group(GROWN, {0: 70, 1: 60}, log_starts={1: 100}, owners=owners).waits()) == count


def test_a_partition_that_began_with_the_awaited_epoch_is_blocked_whatever_its_first_epoch_is() -> None:
    """After deletions of topics, partitions begin with a later leader epoch than 0."""
    root = PartitionLineage(Lineage(8))
    child = PartitionLineage(Lineage(7, -1, (Entry(7, {0: 7}),)))
    found = group({0: root, 1: child}, {0: 60}, ends={(0, 7): 70, (1, 6): 0}, log_starts={0: 0, 1: 0})
    assert found.waits() == [(Wait(1, 7, 0, 7, 70, 60), True)]


def test_a_partition_of_a_reader_that_waits_for_nothing_is_not_shown_as_waiting() -> None:
    assert GroupOnTopic(GROWN, {0: 70, 1: 60}, {}, {5: "stock"}, waiting_for_nothing={4, 5}).waits() == []


def test_a_grandchild_waits_for_the_whole_chain_although_its_parent_is_empty() -> None:
    """Hole 5: partition 1 is not read far enough. The empty partition 5 was split from 1, and partition 13 from 5."""
    chain = {**GROWN, 5: FIVE._replace(lineage=Lineage(1, -1, (Entry(0, {1: 0}),)))}
    chain[13] = PartitionLineage(Lineage(0, -1, (Entry(0, {5: 0}),)))
    found = group(chain, {0: 70, 1: 60, 5: 0}, ends={**ENDS, (5, 0): 0})
    assert [(w.wait.partition, w.wait.on) for w in found.waits()] == [(5, 1), (13, 1)]


@pytest.mark.parametrize(("position", "is_blocked"), [(150, True), (149, False), (-1, False)])
def test_a_survivor_is_blocked_by_a_merge_once_it_has_read_its_older_records(position: int, is_blocked: bool) -> None:
    found = group(SHRUNK, {0: 80, 1: position, 4: 30, 5: 25})
    waits = [w for w in found.waits() if w.wait.on == 5]
    assert waits == [(Wait(1, 2, 5, 0, 40, 25), is_blocked)]


def test_a_removed_partition_is_not_waited_for_once_its_removal_is_known() -> None:
    left = {p: known for p, known in SHRUNK.items() if p < 4}
    found = group(left, {0: 80, 1: 150})
    assert found.unknown(range(4)) == [4, 5]
    assert {w.wait.on for w in found.waits()} == {4, 5}
    for p in (4, 5):
        found.on_lineage(p, PartitionLineage(None, 1))
    assert found.waits() == []
    assert found.unknown(range(4)) == []
