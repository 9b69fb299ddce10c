"""The ledger of what is public is current, so the diff of a commit shows each public thing that the commit changes."""

from __future__ import annotations

import pytest

from tests.support.seen.ledger import FOLDER, LEDGER, text


@pytest.mark.parametrize("name", LEDGER)
def test_the_ledger_has_the_facts_of_the_code(name: str) -> None:
    assert (FOLDER / f"{name}.txt").read_text() == text(name), "run `make gen`"


def test_each_file_of_the_ledger_is_generated() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(LEDGER)
