"""Reports of lasting problems, and the times of the reports."""

from __future__ import annotations

from anabranch.client.net.troubles import FIRST_S, TroubleReport, Troubles


def test_a_lasting_problem_is_reported_soon_and_repeatedly() -> None:
    troubles = Troubles()
    reported = [now for now in range(95) if troubles.look(float(now), {"a": 0.0})]
    assert reported == [1, 10, 30, 60, 90]
    assert FIRST_S < 2


def test_a_problem_may_be_reported_once_until_it_is_over() -> None:
    troubles = Troubles()
    present: dict[str, float | None] = {"a": None, "b": None}
    reported = [[each.subject for each in troubles.look(float(now), present, {"a"})] for now in range(95)]
    assert [now for now in range(95) if "a" in reported[now]] == [1]
    assert [now for now in range(95) if "b" in reported[now]] == [1, 10, 30, 60, 90]
    assert troubles.next_at() == 120
    troubles.end(95.0, ["b"])
    troubles.look(96.0, present, {"a"})
    assert troubles.look(97.0, present, {"a"}) == [TroubleReport("a", 1.0)]


def test_the_next_check_is_when_a_report_is_due() -> None:
    troubles = Troubles()
    assert troubles.next_at() == float("inf")
    assert troubles.look(5.0, {"a": None}) == []
    assert troubles.next_at() == 6.0
    assert troubles.look(6.0, {"a": None}) == [TroubleReport("a", 1.0)]
    assert troubles.next_at() == 15.0


def test_after_a_late_check_nothing_is_reported_twice() -> None:
    troubles = Troubles()
    assert troubles.look(40.0, {"a": 0.0}) == [TroubleReport("a", 40.0)]
    assert troubles.look(40.0, {"a": 0.0}) == []
    assert troubles.next_at() == 60.0


def test_the_end_of_a_problem_is_reported_only_if_the_problem_was_reported() -> None:
    troubles = Troubles()
    troubles.look(0.0, {"short": None, "long": None})
    assert troubles.end(0.5, ["long"]) == []
    troubles.look(2.0, {"long": None})
    assert troubles.end(3.0, []) == [TroubleReport("long", 3.0)]
    assert troubles.end(4.0, []) == []
    assert troubles.look(5.0, {"long": None}) == []  # the problem starts again


def test_a_problem_that_began_later_is_reported_later() -> None:
    troubles = Troubles()
    troubles.look(0.0, {"a": 0.0})
    assert troubles.look(1.5, {"a": 1.2}) == []
