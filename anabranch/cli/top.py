"""``anabranch top``: the write rates of topics and the lags of groups, live."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

import anyio
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anabranch import Admin
from anabranch.cli.logs import warnings_shown
from anabranch.cli.options import DEFAULT_BOOTSTRAP, Bootstrap, JsonFlag, Natural, api_timeout_ms
from anabranch.cli.output import print_json
from anabranch.command_error import UsageError
from anabranch.protocol.plurals import counted
from anabranch.runtime.interrupts import Interrupts
from anabranch.view.activity import GroupActivity, TopicActivity, group_activity, take_sample, topic_activity
from anabranch.view.amounts import duration

Show: TypeAlias = Callable[[list[TopicActivity], list[GroupActivity]], None]
"""A function that shows the rows of the topics and of the groups."""
SHOWN = 20
"""The largest number of topics, and of groups, that are shown, the busiest first."""


SHORTEST_INTERVAL_MS = 100


def top(
    *,
    interval_ms: Natural = 1_000,
    max_rounds: Natural | None = None,
    bootstrap_server: Bootstrap = DEFAULT_BOOTSTRAP,
    json_: JsonFlag = False,
) -> int:
    """Show the write rate of each topic and the lag of each group, until Ctrl-C.

    The topics with the highest rates and the groups with the highest lags come first. If standard output is not
    a terminal, or is a dumb one, each new table is printed below the previous one.

    Parameters
    ----------
    interval_ms
        The time between two measurements, at least 100 ms.
    max_rounds
        Stop after this many measurements.
    """
    if interval_ms < SHORTEST_INTERVAL_MS:
        raise UsageError(f"--interval-ms {interval_ms} is below {SHORTEST_INTERVAL_MS}")
    console = Console(highlight=False)
    run = partial(_run, bootstrap_server, interval_ms / 1000, max_rounds)
    if json_:
        with warnings_shown():
            return anyio.run(run, lambda topics, groups: print_json({"topics": topics, "groups": groups}))
    if not console.is_terminal or console.is_dumb_terminal:
        with warnings_shown():
            return anyio.run(run, lambda topics, groups: console.print(view(topics, groups)))
    with Screen(console) as screen, warnings_shown(screen.warn):
        return anyio.run(run, lambda topics, groups: screen.show(view(topics, groups, rows_for(console.height))))


class Screen:
    """Shows the tables on the whole terminal, and the client's warning above them while it cannot measure."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, screen=True, auto_refresh=False)
        self._tables: RenderableType = Text("")

    def __enter__(self) -> Screen:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def show(self, tables: RenderableType) -> None:
        self._tables = tables
        self._live.update(tables, refresh=True)

    def warn(self, warning: str) -> None:
        self._live.update(Group(Text(warning, style="yellow"), self._tables), refresh=True)


async def _run(bootstrap: str, interval_s: float, max_rounds: int | None, show: Show) -> int:
    config = {"client_id": "anabranch-top", "default_api_timeout_ms": api_timeout_ms()}
    admin = Admin(bootstrap_servers=bootstrap, **config)  # type: ignore[arg-type]
    async with Interrupts() as interrupts, admin:
        with anyio.CancelScope() as scope:
            interrupts.on_first(scope.cancel)
            before = await take_sample(admin)
            rounds = 0
            while max_rounds is None or rounds < max_rounds:
                await anyio.sleep(interval_s)
                now = await take_sample(admin)
                show(topic_activity(before, now), group_activity(before, now))
                before, rounds = now, rounds + 1
    return interrupts.status


def rows_for(lines: int) -> int:
    """How many rows each table can have on a screen of ``lines``, with the headings and the line about hidden rows."""
    return max(1, min(SHOWN, (lines - 3) // 2))


def view(topics: Sequence[TopicActivity], groups: Sequence[GroupActivity], shown: int = SHOWN) -> Group:
    """Both tables of at most ``shown`` rows, and a line with the number of hidden rows."""
    first = _table("topic", "partitions", "records/s", "unhealthy", "marked")
    for row in topics[:shown]:
        bad = Text(str(row.unhealthy), style="red" if row.unhealthy else "")
        first.add_row(Text(row.topic), str(row.partitions), f"{row.records_per_second:,.1f}", bad, str(row.marked))
    second = _table("group", "state", "lag", "records/s", "caught up in")
    for group in groups[:shown]:
        lag = Text(f"{group.lag:,}", style="yellow" if group.lag else "")
        left = "never at this rate" if group.seconds_left is None else duration(group.seconds_left)
        second.add_row(Text(group.group), group.state, lag, f"{group.records_per_second:,.1f}", left)
    hidden = f"{counted(max(0, len(topics) - shown), 'topic')} and {counted(max(0, len(groups) - shown), 'group')} more"
    return Group(first, second, *([Text(hidden)] if max(len(topics), len(groups)) > shown else []))


def _table(name: str, *numbers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(name, overflow="ellipsis", max_width=30)  # only this column shrinks on a narrow terminal
    for column in numbers:
        table.add_column(column, justify="left" if column == "state" else "right", no_wrap=True)
    return table
