"""Decides when to report a lasting problem. No IO, no clock."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

FIRST_S = 1.0
"""A problem that is shorter is not reported: a broker may be restarting, or a topic may just be being created."""
_NEXT_S = (10.0, 30.0)
_EVERY_S = 30.0
_NEVER_AGAIN = 1_000_000
"""A number of reports after which the next one would be due after a year."""


class TroubleReport(NamedTuple):
    subject: str
    lasted_s: float


class Troubles:
    """The present problems by subject. Each is reported after 1, 10, 30, 60, 90, ... seconds, and at its end."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._reported: dict[str, int] = {}

    def look(self, now: float, present: Mapping[str, float | None], once: Collection[str] = ()) -> list[TroubleReport]:
        """The problems to report now. ``present`` has the start of each problem; None: this is the start.

        Those in ``once`` are reported once.
        """
        for subject, since in present.items():
            if since is None:
                self._since.setdefault(subject, now)
            else:
                self._since[subject] = since
        due = []
        for subject in present:
            lasted = now - self._since[subject]
            reported = self._reported.get(subject, 0)
            if lasted >= _due_after(reported):
                while lasted >= _due_after(reported):
                    reported += 1
                self._reported[subject] = _NEVER_AGAIN if subject in once else reported
                due.append(TroubleReport(subject, lasted))
        return due

    def end(self, now: float, present: Iterable[str]) -> list[TroubleReport]:
        """The reported problems that are over, because ``present`` does not have them."""
        over = self._since.keys() - set(present)
        ended = [
            TroubleReport(subject, now - self._since[subject]) for subject in sorted(over) if subject in self._reported
        ]
        for subject in over:
            del self._since[subject]
            self._reported.pop(subject, None)
        return ended

    def next_at(self) -> float:
        """The time of the next report; ``inf`` without a problem."""
        times = (since + _due_after(self._reported.get(subject, 0)) for subject, since in self._since.items())
        return min(times, default=float("inf"))


def _due_after(reported: int) -> float:
    """The seconds that a problem must last before its next report, if it had ``reported`` reports."""
    due = (FIRST_S, *_NEXT_S)
    return due[reported] if reported < len(due) else due[-1] + _EVERY_S * (reported - len(due) + 1)
