"""The demo's live view: the progress of each worker, and its partitions."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text


class LiveView:
    """A bar for each worker and a line for the present stage; plain lines when stdout is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(40), MofNCompleteColumn(), TextColumn("{task.fields[note]}")
        )
        self._bars: dict[str, TaskID] = {}
        self._stage = Text()
        self._live = Live(Group(self._progress, self._stage), console=console, refresh_per_second=8)

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def stage(self, text: str) -> None:
        """Show the present stage."""
        self._stage.plain = text
        if not self._console.is_terminal:
            self._console.print(text, highlight=False)

    def add_bar(self, name: str, total: int) -> None:
        self._bars[name] = self._progress.add_task(name, total=total, note="")

    def update(self, name: str, count: int, note: str | None = None) -> None:
        if note is None:
            self._progress.update(self._bars[name], completed=count)
        else:
            self._progress.update(self._bars[name], completed=count, note=note)
