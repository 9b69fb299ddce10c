"""Each rule of the decisions that wait for groups, by name. Hold.tla and Removal.tla have the models."""

from __future__ import annotations

from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.ordered_resize.progress import KEEP_ALL, Pair, Reader, ReadProgress, Retained, retained_from
from anabranch.ordered_resize.removal import drain_wait, removal_wait

PAIR = Pair(1, 0)
REPORTS = frozenset({1})


def reader(name: str, *, at: int | None = None, **more: object) -> Reader:
    """Return a group that has committed offset ``at`` in partition 1, and no owner of it reports."""
    commits = {} if at is None else {1: at}
    return Reader(name, positions=commits, commits=commits)._replace(**more)


def progress(*readers: Reader, start: int = 0, end: int | None = 40) -> ReadProgress:
    facts = Facts()
    facts.on_lineage(1, Lineage(0))
    facts.on_log_start(1, start)
    if end is not None:
        facts.on_end(1, 0, end)
    return ReadProgress(facts, readers)


def drains(*readers: Reader) -> tuple[str, str, int] | None:
    """Return the group for which a drain waits, the reason and the group's position."""
    wait = drain_wait(progress(*readers), PAIR)
    return None if wait is None else (wait.group, wait.why, wait.position)


def removes(*readers: Reader) -> tuple[str, str, int] | None:
    wait = removal_wait(progress(*readers, start=40), PAIR)
    return None if wait is None else (wait.group, wait.why, wait.position)


def kept(*readers: Reader, start: int = 10, end: int | None = 40) -> Retained | None:
    return retained_from(progress(*readers, start=start, end=end), PAIR)


def test_a_drain_waits_for_the_commits_of_every_group() -> None:
    assert drains(reader("fast", at=40), reader("slow", at=39)) == ("slow", "its commits", 39)
    assert drains(reader("fast", at=40), reader("slow", at=40)) is None


def test_a_drain_waits_until_a_group_reads_the_topic() -> None:
    assert drains() == ("", "a group that reads the topic", -1)


def test_a_commit_does_not_drain_before_the_owner_reports() -> None:
    """The commit may run ahead of the flush callback (Removal.tla: own_reports)."""
    committed = reader("g", at=40, reporting=REPORTS)
    assert drains(committed._replace(positions={})) == ("g", "its flush callback", -1)
    assert drains(committed._replace(positions={1: 39})) == ("g", "its flush callback", 39)
    assert drains(committed._replace(positions={1: 40})) is None


def test_a_report_does_not_drain_without_a_commit() -> None:
    """A program that stores its offsets elsewhere reports before it commits."""
    assert drains(reader("g", at=39, reporting=REPORTS, positions={1: 40})) == ("g", "its commits", 39)


def test_a_drain_waits_for_the_end_of_a_rebalance() -> None:
    assert drains(reader("g", at=40, is_settled=False)) == ("g", "the end of its rebalance", 40)
    unknown = reader("new", is_settled=False, is_reading=False, has_committed=False)
    assert drains(unknown) == ("new", "the end of its rebalance", -1)


def test_a_group_that_surely_reads_the_topic_is_named_before_a_group_that_may_read_it() -> None:
    unknown = reader("unknown", is_reading=False, missing="a subscription")
    assert drains(unknown, reader("g", at=40)) == ("unknown", "a subscription", -1)
    assert drains(unknown, reader("g", at=7)) == ("g", "its commits", 7)


def test_the_removal_of_an_empty_partition_waits_only_for_owners_that_report() -> None:
    """Removal.tla: owner_counts_removal."""
    assert removes() is None
    assert removes(reader("g", at=7), reader("new")) is None
    owned = reader("g", at=40, reporting=REPORTS)
    assert removes(owned._replace(positions={1: 39})) == ("g", "its flush callback", 39)
    assert removes(owned._replace(positions={1: 40})) is None
    assert removes(reader("g", at=40, is_settled=False)) == ("g", "the end of its rebalance", 40)


def test_retention_keeps_what_the_group_that_is_furthest_behind_has_not_committed() -> None:
    assert kept(reader("fast", at=40), reader("slow", at=12), reader("slower", at=11)) == (11, "slower")
    assert kept(reader("g", at=40)) is None
    assert kept(reader("g")) == (10, "g")
    assert kept(reader("g", at=12), start=60) is None, "the awaited records are gone"


def test_a_group_without_commits_of_the_topic_keeps_nothing() -> None:
    assert kept() is None and kept(end=None) is None
    assert kept(reader("subscribed", has_committed=False)) is None
    assert kept(reader("unreadable", has_committed=False, is_reading=False, missing="a subscription")) is None


def test_retention_judges_a_group_in_a_rebalance_by_its_commits() -> None:
    assert kept(reader("g", at=40, is_settled=False)) is None
    assert kept(reader("g", at=12, is_settled=False)) == (12, "g")


def test_retention_keeps_everything_while_a_fact_is_missing() -> None:
    assert kept(reader("new", has_committed=False, is_settled=False)) == KEEP_ALL
    assert kept(reader("g", at=40), end=None) == KEEP_ALL
