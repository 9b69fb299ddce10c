"""The first offset that retention keeps, from the commits of the groups."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller.resize.groups import Group, KnownGroups
from anabranch.controller.resize.held_records import held_from
from anabranch.protocol.types import TopicPartition

TP, OTHER, ELSEWHERE = TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("u", 0)
INCARNATION = 7


def reader(name: str, *, at: int | None = None, incarnation: int = INCARNATION, **more: object) -> Group:
    """Return a group that has committed offset ``at`` in the judged partition, and an offset in another partition."""
    offsets = {OTHER: (3, -1)} | ({} if at is None else {TP: (at, incarnation)})
    return Group(name, offsets=offsets, **more)  # type: ignore[arg-type]


def held(*groups: Group, awaited: range | None = range(10, 40), unknown: str = "") -> tuple[int, str] | None:
    return held_from(KnownGroups(list(groups), unknown), TP, INCARNATION, awaited)


def test_the_group_that_is_furthest_behind_holds() -> None:
    assert held(reader("fast", at=40), reader("slow", at=12), reader("slower", at=11)) == (11, "slower")


def test_a_group_that_has_read_all_awaited_records_holds_nothing() -> None:
    assert held(reader("g", at=40)) is None
    assert held(reader("g", at=39)) == (39, "g")


def test_a_group_without_a_commit_there_holds_all_awaited_records() -> None:
    assert held(reader("g")) == (10, "g")
    assert held(reader("g", at=30, incarnation=INCARNATION - 1)) == (10, "g")


def test_nothing_is_held_where_the_awaited_records_are_gone() -> None:
    """No partition waits for the newer records."""
    assert held(reader("g", at=12), awaited=range(40, 40)) is None
    assert held(reader("g", at=12), awaited=range(60, 40)) is None


def test_a_group_without_commits_of_the_topic_holds_nothing() -> None:
    assert held() is None
    assert held(Group("subscribed", topics=frozenset({"t"}))) is None
    assert held(Group("elsewhere", offsets={ELSEWHERE: (1, -1)})) is None
    assert held(Group("unreadable", unknown="a subscription that can be read")) is None


def test_a_group_in_a_rebalance_is_judged_by_its_commits() -> None:
    rebalance = {"is_settled": False, "unknown": "the end of its rebalance"}
    assert held(reader("g", at=40, **rebalance)) is None
    assert held(reader("g", at=12, **rebalance)) == (12, "g")


def test_a_missing_fact_holds_everything() -> None:
    """Members of a new group commit their start offset once the first rebalance is over."""
    assert held(Group("new", is_settled=False, unknown="the end of its rebalance")) == (0, "")
    assert held(Group("refused", is_settled=False, is_refused=True, unknown="its coordinator")) == (0, "")
    assert held(reader("g", at=40), unknown="broker 2 is loading") == (0, "")
    assert held(reader("g", at=40), awaited=None) == (0, "")


def test_without_groups_nothing_is_held_even_if_the_awaited_records_are_unknown() -> None:
    assert held(awaited=None) is None


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Generate a group; an unsettled group is in a rebalance."""
    is_settled = draw(st.booleans())
    offsets = {
        tp: (draw(st.integers(0, 12)), draw(st.sampled_from([-1, INCARNATION, INCARNATION - 1])))
        for tp in (TP, OTHER, ELSEWHERE)
        if draw(st.booleans())
    }
    topics = frozenset(draw(st.lists(st.sampled_from(["t", "u"]), max_size=2)))
    unknown = "" if is_settled else draw(st.sampled_from(["", "the end of its rebalance"]))
    return Group(draw(st.sampled_from("abc")), -1, is_settled, offsets, topics, unknown)


@given(st.lists(groups(), max_size=4), st.integers(0, 12), st.integers(0, 12), st.sampled_from(["", "", "loading"]))
def test_the_first_record_that_is_awaited_and_unread_is_held(
    found: list[Group], start: int, end: int, unknown: str
) -> None:
    """A second implementation checks record by record and group by group."""
    known = True
    unread: list[tuple[int, str]] = []
    for group in found:
        has_commits = any(tp.topic == "t" for tp in group.offsets)
        if not has_commits:
            known = known and (group.is_settled or not (group.unknown or "t" in group.topics))
            continue
        offset, incarnation = group.offsets.get(TP, (0, -1))
        counts = incarnation in (-1, INCARNATION)
        unread += [(record, group.name) for record in range(start, end) if not counts or offset <= record]
    expected = min(unread, default=None) if known and not unknown else (0, "")
    assert held_from(KnownGroups(found, unknown), TP, INCARNATION, range(start, end)) == expected
