"""Log events of brokers and controllers have stable names, and their page lists them all."""

from __future__ import annotations

from tests.support.seen.log_events import NAME, PAGE, uses, with_table


def test_an_event_has_a_dotted_name_and_no_sentence() -> None:
    found = list(uses())
    assert len({use.event for use in found if use.process == "controller"}) > 40
    assert [(use.place, use.event) for use in found if use.event is None or not NAME.match(use.event)] == []


def test_the_page_lists_every_event_with_its_fields() -> None:
    assert PAGE.read_text() == with_table(PAGE.read_text()), "run `python -m tests.support.seen.log_events`"
