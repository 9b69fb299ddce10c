"""The newest and the oldest records over several partitions, and the links to older and newer ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from anabranch import TopicPartition
from anabranch.console import records
from anabranch.console.records import SEARCH_S, FoundRecords, Texts, WantedRecords, browse
from anabranch.console.sections import Section, outcome_of, parse_offsets, pinned, section_of, ways_on

pytestmark = pytest.mark.trio


class Logs:
    """An admin client and a reader of ``t`` with these times of records. ``first`` has the log start offsets."""

    def __init__(self, times: Mapping[int, Sequence[int]], first: Mapping[int, int] = {}) -> None:
        self._times, self._first = times, first

    async def list_offsets(self, specs: Mapping[TopicPartition, str | int]) -> dict[TopicPartition, Any]:
        return {tp: SimpleNamespace(offset=self._offset(tp.partition, spec)) for tp, spec in specs.items()}

    def _offset(self, partition: int, spec: str | int) -> int:
        times = self._times[partition]
        if isinstance(spec, str):
            return len(times) if spec == "latest" else self._first.get(partition, 0)
        return next((offset for offset, at in enumerate(times) if at >= spec), -1)

    async def fetch(self, tp: TopicPartition, offset: int) -> Any:
        records = [
            SimpleNamespace(offset=at, timestamp=ms, key=b"k", value=b"v", headers=())
            for at, ms in enumerate(self._times[tp.partition])
            if at >= offset
        ]
        batch = SimpleNamespace(records=lambda: records, partition_leader_epoch=0)
        end = len(self._times[tp.partition])
        return SimpleNamespace(batches=[(batch, True)], next_offset=end, is_end=offset >= end)


async def look(logs: Any, where: str = "end", before: str = "", count: int = 4) -> tuple[Section, FoundRecords]:
    section = await section_of(logs, "t", [0, 1, 2], where, before, count)
    return section, await browse(logs, TOPIC, section.ranges, count, Texts("text"), newest=section.newest)


TOPIC: Any = SimpleNamespace(name="t")


def offsets(found: FoundRecords) -> list[tuple[int, int]]:
    return [(shown.partition, shown.offset) for shown in found.records]


LOGS = Logs({0: [10, 20, 30, 40, 50, 60], 1: [35, 65, 70], 2: [1, 2, 3]})
"""Partition 2 has the oldest records. Partitions 0 and 1 have the newest records."""


async def test_the_section_at_the_end_has_the_newest_records_of_all_partitions() -> None:
    _, found = await look(LOGS)
    assert offsets(found) == [(0, 4), (0, 5), (1, 1), (1, 2)]


async def test_older_records_follow_without_a_gap_or_a_repetition() -> None:
    section, found = await look(LOGS)
    ways, seen = ways_on(section, found), offsets(found)
    assert ways.newer == "", "no record is newer than the end"
    while ways.older:
        section, found = await look(LOGS, before=ways.older)
        ways = ways_on(section, found)
        assert ways.newer
        seen = offsets(found) + seen
    times = [LOGS._times[partition][offset] for partition, offset in seen]
    assert times == sorted(ms for one in LOGS._times.values() for ms in one)


async def test_older_records_begin_with_those_that_an_ended_search_did_not_reach(autojump_clock: MockClock) -> None:
    """Partition 1 does not answer in time, so its newest records are on the next page, which has older records."""
    fetch = LOGS.fetch

    async def slow(tp: TopicPartition, offset: int) -> Any:
        if tp.partition == 1:
            await trio.sleep(SEARCH_S + 1)  # virtual time: no answer while the search lasts
        return await fetch(tp, offset)

    logs = SimpleNamespace(list_offsets=LOGS.list_offsets, fetch=slow)
    section, found = await look(logs)
    assert outcome_of(section, found).endswith("Newer records may be missing.")
    assert not found.is_complete and {partition for partition, _ in offsets(found)} == {0}
    _, found = await look(LOGS, before=ways_on(section, found).older)
    assert {(1, 1), (1, 2)} <= set(offsets(found))


async def test_the_page_reports_that_a_search_reached_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "SEARCH_RECORDS", 5)
    section = await section_of(LOGS, "t", [0, 1, 2], "beginning", "", 4)
    found = await browse(LOGS, TOPIC, section.ranges, 4, Texts("text"), WantedRecords(b"another key"))
    assert offsets(found) == []
    assert outcome_of(section, found).startswith("The search ended at its limit")
    monkeypatch.undo()
    found = await browse(LOGS, TOPIC, section.ranges, 4, Texts("text"), WantedRecords(b"another key"))
    assert outcome_of(section, found) == "There are no more."
    _, found = await look(LOGS, "beginning")
    assert outcome_of(section, found) == "", "the page is full, and links to newer records"


async def test_links_to_newer_records_lead_from_the_beginning_to_the_end() -> None:
    section, found = await look(LOGS, "beginning")
    seen = offsets(found)
    assert ways_on(section, found).older == ""
    while newer := ways_on(section, found).newer:
        section, found = await look(LOGS, newer)
        seen += offsets(found)
    assert len(seen) == len(set(seen)) == 12


async def test_records_of_a_partition_keep_the_order_of_their_offsets() -> None:
    logs = Logs({0: [50, 20, 30], 1: [25], 2: []})
    for where in ("end", "beginning"):
        _, found = await look(logs, where)
        assert [offset for partition, offset in offsets(found) if partition == 0] == [0, 1, 2]


async def test_removed_records_are_not_older_ones() -> None:
    logs = Logs({0: [1, 2, 3, 4, 5, 6, 7, 8], 1: [9], 2: []}, first={0: 5})
    section, found = await look(logs)
    assert (offsets(found), ways_on(section, found).older) == ([(0, 5), (0, 6), (0, 7), (1, 0)], "")


@pytest.mark.parametrize(
    ("where", "starts"),
    [("2", [2, 2, 2]), ("0:4,2:1", [4, 1]), ("1970-01-01T00:00:00.035", [3, 0, 3]), ("beginning", [0, 0, 0])],
)
async def test_a_section_starts_at_an_offset_a_time_or_an_offset_by_partition(where: str, starts: list[int]) -> None:
    logs: Any = LOGS
    section = await section_of(logs, "t", [0, 1, 2], where, "", 4)
    assert [start for start, _ in section.ranges.values()] == starts


@pytest.mark.parametrize("text", ["", "x", "1:", "1:x", "1:2,", "²:1", "1:-1"])
async def test_wrong_offsets_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no offset of a partition"):
        parse_offsets(text)


async def test_a_download_finds_the_shown_section_again() -> None:
    """Records that were written meanwhile are not in it."""
    grown: Any = Logs({0: [10, 20, 30, 40, 50, 60, 80], 1: [35, 65, 70, 90, 95], 2: [1, 2, 3]})
    for where in ("end", "beginning", "30"):
        section, found = await look(LOGS, where)
        place = pinned(section)
        _, again = await look(grown, place.get("from", ""), place.get("before", ""))
        assert offsets(again) == offsets(found)
