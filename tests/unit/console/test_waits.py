"""The graph of the partitions that wait for each other."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from anabranch.console.app import _templates
from anabranch.console.waits import BOX_W, EDGE_PX, MOST_NAME, MOST_TEXT, Graph, graph_of
from anabranch.view.groups import GroupWait

PHONE_PX, PADDING_PX = 390, 12


def wait(partition: int, on: int, *, topic: str = "t", member: str = "m", left: int = 5, **values: Any) -> GroupWait:
    found = GroupWait(topic, partition, 2, on, 1, 10, None, 10 + left, member, member, blocked=True, expiring=False)
    return found._replace(**values)


def after_two_resizes() -> list[GroupWait]:
    """The waits of a group that has read nothing since 2 -> 4 -> 2 -> 4. Partition 2 has records of the first grow."""
    return [
        wait(0, 0, epoch=0, blocked=False, left=1_828),
        wait(0, 2, blocked=False, left=7_751),
        wait(1, 1, epoch=0, blocked=False),
        wait(1, 3, blocked=False),
        wait(2, 0, from_epoch=0, epoch=0),
        wait(3, 1, from_epoch=0, epoch=0),
    ]


def is_free(graph: Graph) -> bool:
    """Whether no two boxes overlap, and boxes, arrows and numbers are inside of the picture."""
    for box in graph.boxes:
        for other in graph.boxes:
            apart = box.x != other.x or box.y >= other.y + other.height or other.y >= box.y + box.height
            if box is not other and not apart:
                return False
    numbers = [arrow.x + 8 * len(arrow.text) for arrow in graph.arrows]
    right = max([*(box.x + BOX_W for box in graph.boxes), *numbers])
    bottom = max([*(box.y + box.height for box in graph.boxes), *(arrow.y for arrow in graph.arrows)])
    return right < graph.width and bottom < graph.height


def test_each_partition_stands_left_of_those_it_waits_for() -> None:
    graph = graph_of([wait(4, 2), wait(2, 0), wait(3, 0), wait(4, 1)], 50)
    x = {box.partition: box.x for box in graph.boxes}
    assert x[4] < x[2] < x[0] and x[3] == x[2] and x[1] == x[0]
    assert is_free(graph)
    assert [arrow.text for arrow in graph.arrows] == ["5", "5", "5", "5"]


def test_boxes_show_the_reader_and_whether_the_partition_blocks_or_waits() -> None:
    graph = graph_of([wait(4, 0, member=""), wait(5, 1, blocked=False)], 50)
    boxes = {box.partition: box for box in graph.boxes}
    assert boxes[0].reader == "nobody reads it" and boxes[0].blocks and boxes[4].waits
    assert boxes[1].reader == "m" and not boxes[1].blocks and not boxes[5].waits
    assert [arrow.blocked for arrow in graph.arrows] == [True, False]


def test_a_box_names_the_former_reader_of_a_partition_without_one() -> None:
    without = [wait(4, 0, member=None, client_id=None), wait(4, 1, member=None, client_id=None)]
    graph = graph_of(without, 50, "the group rebalances", {("t", 0): "was app-1"})
    assert {box.partition: box.reader for box in graph.boxes} == {4: "", 0: "was app-1", 1: "the group rebala…"}


def test_partitions_of_two_topics_with_the_same_number_have_separate_boxes() -> None:
    assert len(graph_of([wait(4, 0), wait(4, 0, topic="u")], 50).boxes) == 4


def test_the_number_of_arrows_is_bounded_and_long_names_are_cut() -> None:
    graph = graph_of([wait(n, 0, topic="t" * 249) for n in range(1, 100)], 10)
    assert len(graph.arrows) == 10 and len(graph.boxes[0].topic) == MOST_NAME


def test_a_wait_that_closes_a_cycle_is_a_text_in_the_box() -> None:
    """The arrows show the records that come first, because these records wait for no others."""
    graph = graph_of(after_two_resizes(), 50)
    boxes = {box.partition: box for box in graph.boxes}
    assert boxes[2].x == boxes[3].x < boxes[0].x == boxes[1].x
    assert [(arrow.text, arrow.blocked) for arrow in graph.arrows] == [("5", True), ("5", True)]
    assert boxes[0].notes == ["own 1,828 first", "then waits for 2"]
    assert boxes[2].notes == [] and is_free(graph)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_cycle_is_cut_where_the_awaited_records_wait_themselves(reverse: bool) -> None:
    waits = [wait(0, 4, from_epoch=2, epoch=1), wait(4, 0, from_epoch=1, epoch=1)]
    graph = graph_of(waits[::-1] if reverse else waits, 50)
    (arrow,) = graph.arrows
    assert arrow.title.startswith("partition 4 waits for 5 records of partition 0")


def test_a_cycle_of_many_partitions_is_drawn() -> None:
    graph = graph_of([wait(n, (n + 1) % 5) for n in range(5)], 50)
    assert len({box.x for box in graph.boxes}) == 5 and len(graph.arrows) == 4 and is_free(graph)


def test_a_wait_that_follows_from_other_waits_has_no_arrow() -> None:
    graph = graph_of([wait(8, 4), wait(8, 0), wait(4, 0)], 50)
    titles = {arrow.title[:23] for arrow in graph.arrows}
    assert titles == {"partition 8 waits for 5", "partition 4 waits for 5"} and len(graph.arrows) == 2


def test_an_arrow_passes_above_the_boxes_between_its_ends() -> None:
    graph = graph_of([wait(8, 4), wait(4, 0), wait(8, 1)], 50)
    boxes = {box.partition: box for box in graph.boxes}
    assert boxes[1].x == boxes[0].x
    passing = next(arrow for arrow in graph.arrows if "of partition 1" in arrow.title)
    way = int(passing.path.split(" C")[1].split()[-1].split("h")[0])
    assert f"h{BOX_W}" in passing.path and EDGE_PX < way < boxes[4].y and is_free(graph)


def test_arrows_of_one_box_start_at_different_places() -> None:
    graph = graph_of([wait(0, n) for n in range(1, 9)], 50)
    rows = sorted(arrow.y for arrow in graph.arrows)
    assert all(low + 12 <= high for low, high in pairwise(rows)) and is_free(graph)


def test_two_columns_fit_on_a_phone() -> None:
    assert graph_of(after_two_resizes(), 50).width <= PHONE_PX - 2 * PADDING_PX


def test_long_numbers_and_names_are_cut() -> None:
    graph = graph_of([wait(4, 0, left=123_456_789, member="m" * 50), wait(4, 4, left=999_999)], 50)
    boxes = {box.partition: box for box in graph.boxes}
    assert graph.arrows[0].text == "123.5 M" and is_free(graph)
    assert len(boxes[0].reader) == MOST_TEXT and boxes[0].title.endswith("m" * 50)
    assert all(len(note) <= MOST_TEXT for note in boxes[4].notes)


def test_the_picture_has_the_texts_of_its_boxes() -> None:
    parts: Any = _templates().globals["parts"]
    drawn = str(parts.waits_svg(graph_of(after_two_resizes(), 50)))
    assert (
        ">own 1,828 first<" in drawn
        and ">then waits for 2<" in drawn
        and "the newer records of the partition also wait" in drawn
    )
    assert "the newer records of the partition also wait" not in str(parts.waits_svg(graph_of([wait(4, 0)], 50)))


def test_an_unknown_end_has_no_number() -> None:
    unknown = wait(4, 0)._replace(until=None)
    assert graph_of([unknown], 50).arrows[0].text == ""
