"""What a request costs, in counts that depend on no machine: a commit that makes one dearer or cheaper shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cost import work

TOLERANCE = 0.02


def differences(recorded: list[str], found: list[str]) -> list[str]:
    """The counts that differ by more than ``TOLERANCE``."""

    def counts(lines: list[str]) -> dict[str, float]:
        return {name: float(count) for name, _, count in (line.rpartition(" | ") for line in lines)}

    before, now = counts(recorded), counts(found)
    return [
        f"{name}: {before.get(name, 0):g} -> {now.get(name, 0):g}"
        for name in sorted({*before, *now})
        if abs(now.get(name, 0) - before.get(name, 0)) > TOLERANCE * before.get(name, 0)
    ]


def recorded(path: Path) -> list[str]:
    if not path.exists():
        pytest.skip(f"no counts for this release of Python and trio: {path.name}")
    return path.read_text().splitlines()


@pytest.mark.parametrize("name", work.WORKS)
def test_a_request_costs_what_the_file_of_counts_says(name: str) -> None:
    known = [line for line in recorded(work.path()) if line.startswith(f"{name} | ")]
    changed = differences(known, list(work.lines(name)))
    assert changed == [], "`make gen` writes the new counts; a commit that raises one says why"


def test_every_work_is_counted() -> None:
    assert {line.partition(" | ")[0] for line in recorded(work.path())} == {*work.WORKS}


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        (["w | leader | calls | 102"], []),
        (["w | leader | calls | 103"], ["w | leader | calls: 100 -> 103"]),
        (["w | leader | calls | 97"], ["w | leader | calls: 100 -> 97"]),
        ([], ["w | leader | calls: 100 -> 0"]),
        (["w | leader | calls | 100", "w | leader | fsync | 1"], ["w | leader | fsync: 0 -> 1"]),
    ],
)
def test_a_count_that_changes_by_more_than_two_percent_is_found(now: list[str], expected: list[str]) -> None:
    assert differences(["w | leader | calls | 100"], now) == expected
