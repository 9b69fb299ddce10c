"""The graph of the partitions that wait for each other."""

from __future__ import annotations

from typing import Any

from anabranch.console.waits import BOX_W, graph_of


def wait(partition: int, on: int, *, blocked: bool = True, topic: str = "t", member: str = "m", left: int = 5) -> Any:
    return {
        "topic": topic, "partition": partition, "waits_for": on, "blocked": blocked, "client_id": member,
        "member": member, "until": 10 + left, "position": 10,
    }  # fmt: skip


def test_each_partition_stands_left_of_those_it_waits_for() -> None:
    graph = graph_of([wait(4, 2), wait(2, 0), wait(3, 0), wait(4, 1)], 50)
    x = {box.partition: box.x for box in graph.boxes}
    assert x[4] < x[2] < x[0] and x[3] == x[2] and x[1] == x[0]
    assert len({(box.x, box.y) for box in graph.boxes}) == 5, "no two boxes overlap"
    assert max(box.x + BOX_W for box in graph.boxes) < graph.width
    assert [arrow.text for arrow in graph.arrows] == ["5", "5", "5", "5"]


def test_boxes_show_the_reader_and_whether_the_partition_blocks_or_waits() -> None:
    graph = graph_of([wait(4, 0, member=""), wait(5, 1, blocked=False)], 50)
    boxes = {box.partition: box for box in graph.boxes}
    assert boxes[0].reader == "nobody reads it" and boxes[0].blocks and boxes[4].waits
    assert boxes[1].reader == "m" and not boxes[1].blocks and not boxes[5].waits
    assert [arrow.blocked for arrow in graph.arrows] == [True, False]


def test_partitions_of_two_topics_are_two_boxes() -> None:
    assert len(graph_of([wait(4, 0), wait(4, 0, topic="u")], 50).boxes) == 4


def test_the_number_of_arrows_is_bounded_and_long_names_are_cut() -> None:
    graph = graph_of([wait(n, 0, topic="t" * 249) for n in range(1, 100)], 10)
    assert len(graph.arrows) == 10 and len(graph.boxes[0].topic) == 18


def test_partitions_that_wait_for_each_other_are_drawn() -> None:
    assert len(graph_of([wait(1, 0), wait(0, 1)], 50).arrows) == 2


def test_an_unknown_end_has_no_number() -> None:
    unknown = wait(4, 0) | {"until": None}
    assert graph_of([unknown], 50).arrows[0].text == ""
