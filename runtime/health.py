"""The problems of a process, for ``/health/live`` and ``/health/ready``.

Any response shows that the process is alive: its loop serves. The process is ready unless a fatal problem keeps it from
its work. A problem of one part, such as a log, is listed. A request with ``?strict`` reports the process as unready for
such a problem, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from anabranch.runtime.background import Background
from anabranch.runtime.env import SessionState, ZkStore
from anabranch.runtime.http_listener import HttpAnswer, json_answer
from anabranch.runtime.loop_lag import LoopLag


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem: ``kind`` is a word for programs, ``what`` a sentence. ``is_fatal``: the process cannot serve."""

    kind: str
    what: str
    is_fatal: bool = False


Check = Callable[[], list[Problem]]
_KINDS = {
    "log": "log",
    "log-dir": "log-dir",
    "zookeeper is older than": "older-zookeeper",
    "no controller acts:": "controller",
}
"""The kind of a fault by the start of its line."""


class Health:
    """The problems that ``checks`` find. Each request for readiness runs all checks."""

    def __init__(self, kind: str, node_id: int, uptime_s: Callable[[], float]) -> None:
        self._who = {"process": kind, "id": node_id}
        self._uptime_s = uptime_s
        self.checks: list[Check] = []

    def problems(self) -> list[Problem]:
        return [problem for check in self.checks for problem in check()]

    async def live(self, _query: str) -> HttpAnswer:
        """200, which shows that the loop serves."""
        return json_answer(200, {**self._who, "status": "live", "uptime_s": round(self._uptime_s(), 3)})

    async def ready(self, query: str) -> HttpAnswer:
        """200 while the process can do its work, 503 otherwise, with all problems."""
        found = self.problems()
        is_strict = "strict" in parse_qs(query, keep_blank_values=True)
        is_ready = not any(problem.is_fatal or is_strict for problem in found)
        status = "unready" if not is_ready else "degraded" if found else "ready"
        content: dict[str, Any] = {
            **self._who,
            "status": status,
            "problems": [{"kind": one.kind, "what": one.what, "fatal": one.is_fatal} for one in found],
        }
        return json_answer(200 if is_ready else 503, content)


def zookeeper_check(zk: ZkStore) -> Check:
    """A check of the session: without a session, a controller decides nothing, and a broker may be considered dead."""

    def check() -> list[Problem]:
        if zk.state is SessionState.CONNECTED:
            return []
        return [Problem("zookeeper", f"the ZooKeeper session is {zk.state.value}", is_fatal=True)]

    return check


def loop_check(lag: LoopLag, limit_s: float) -> Check:
    """A check of the event loop: a blocked loop serves no request."""

    def check() -> list[Problem]:
        longest_s = lag.longest_s()
        if longest_s <= limit_s:
            return []
        what = f"the event loop was blocked for {longest_s:.3f} s within the last minute; health.loop.lag.ms allows"
        return [Problem("loop-lag", f"{what} {limit_s * 1000:.0f} ms", is_fatal=True)]

    return check


def background_check(background: Background) -> Check:
    """A check of background work. A failed task is fatal, because its work stops until the task is started again."""

    def check() -> list[Problem]:
        found = [Problem(_kind_of(line), line) for line in background.faults()]
        for failure in background.failing():
            is_task = failure.item == ""
            found.append(Problem("task" if is_task else "background", background.line(failure), is_fatal=is_task))
        return found

    return check


def _kind_of(line: str) -> str:
    return next((kind for start, kind in _KINDS.items() if line.startswith(f"{start} ")), "background")
