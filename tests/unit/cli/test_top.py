"""Rates and lags, computed from two samples."""

from __future__ import annotations

import io
import logging
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from anabranch import TopicPartition
from anabranch.cli.logs import warnings_shown
from anabranch.cli.top import SHOWN, Screen, rows_for, view
from anabranch.view.activity import GroupActivity, Sample, TopicActivity, group_activity, topic_activity

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BEFORE = Sample(
    10.0, {A0: 100}, {"a": 0}, {"a": 0}, {"slow": {A0: 40}, "level": {A0: 100}}, {"slow": "Stable", "level": "Empty"}
)
NOW = Sample(
    12.0,
    {A0: 110, A1: 30, B0: 500},
    {"a": 1, "b": 0},
    {"a": 2, "b": 0},
    {"slow": {A0: 90, A1: 0}, "level": {A0: 110, A1: 30}, "new": {A0: 0}},
    {"slow": "Stable", "level": "Empty", "new": "Stable"},
)


def test_write_rates_include_the_records_of_new_partitions_but_not_of_new_topics() -> None:
    assert topic_activity(BEFORE, NOW) == [
        TopicActivity("a", 2, 20.0, 1, 2),
        TopicActivity("b", 1, 0.0, 0, 0),
    ]


def test_groups_are_shown_with_their_lag_and_the_time_to_catch_up() -> None:
    assert group_activity(BEFORE, NOW) == [
        GroupActivity("new", "Stable", 110, 0.0, None),
        GroupActivity("slow", "Stable", 50, 25.0, 10.0),
        GroupActivity("level", "Empty", 0, 5.0, 0.0),
    ]


def drawn_lines(width: int, *shown: Any) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(view(*shown))
    return screen.getvalue().splitlines()


def test_the_table_names_what_it_leaves_out_and_fits_a_terminal() -> None:
    topics = [TopicActivity(f"t{n}" + "x" * 200, 1, 1e9, 0, 0) for n in range(30)]
    lines = drawn_lines(80, topics, group_activity(BEFORE, NOW))
    assert max(map(len, lines)) <= 80
    assert lines[-1] == "10 topics and 0 groups more"
    assert "1,000,000,000.0" in lines[1] and any("never at this rate" in line for line in lines)


def test_long_names_are_cut_so_that_the_headings_of_numbers_fit() -> None:
    heading, row = drawn_lines(60, [TopicActivity("x" * 249, 1, 0.0, 0, 0)], [])[:2]
    assert heading.split() == ["topic", "partitions", "records/s", "unhealthy", "marked"]
    assert max(len(heading), len(row)) <= 60 and row.startswith("xxxxxx") and "\u2026" in row


def test_a_warning_is_drawn_above_the_tables_until_there_are_new_ones(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = io.StringIO()
    with Screen(Console(file=drawn, force_terminal=True, width=60, height=10)) as screen, warnings_shown(screen.warn):
        screen.show(Text("first table"))
        logging.getLogger("anabranch.client").warning("no broker answers")
        warned = drawn.getvalue()
        screen.show(Text("second table"))
    last = warned[warned.rindex("anabranch: no broker answers") :]
    assert "first table" in last
    assert "no broker answers" not in drawn.getvalue()[len(warned) :]
    assert capsys.readouterr().err == ""


def test_both_tables_have_room_on_a_small_screen() -> None:
    topics = [TopicActivity(f"t{n}", 1, 0.0, 0, 0) for n in range(30)]
    groups = [GroupActivity(f"g{n}", "Empty", 0, 0.0, 0.0) for n in range(30)]
    lines = drawn_lines(80, topics, groups, rows_for(24))
    assert 20 <= len(lines) <= 24 and lines[-1] == "20 topics and 20 groups more"
    assert (rows_for(500), rows_for(1)) == (SHOWN, 1)
