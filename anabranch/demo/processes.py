"""The demo's handles of its worker processes."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from anabranch.command_error import CommandError


class Worker:
    """A producer or consumer process, and its last report."""

    def __init__(self, role: str, name: str, index: int, directory: Path, arguments: list[str]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.out = directory / f"{role}-{index}.tsv"
        self.log = directory / f"{role}-{index}.log"
        self.last: dict[str, Any] = {"count": 0}
        self.assigned: list[int] | None = None
        self._argv = [sys.executable, "-m", "anabranch.demo.worker", role]
        self._argv += ["--out", str(self.out), "--index", str(index), *arguments]
        self.process: trio.Process | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the process to its end, and keep its last report. Raises ``CommandError`` when it fails."""
        with self.log.open("wb") as log:
            self.process = await trio.lowlevel.open_process(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        task_status.started()
        try:
            assert self.process.stdout is not None
            rest = b""
            async for chunk in self.process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.last = json.loads(line)
                    self.assigned = self.last.get("assigned", self.assigned)
            status = await self.process.wait()
        finally:
            if self.process.returncode is None:
                self.process.kill()
        if status != 0:
            last_words = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise CommandError(f"{self.name} exited with status {status}: {' '.join(last_words)} (log: {self.log})")

    async def write_line(self, line: str) -> None:
        """Write a line to the process's stdin, unless the process has ended."""
        assert self.process is not None and self.process.stdin is not None
        with contextlib.suppress(trio.BrokenResourceError):
            await self.process.stdin.send_all(f"{line}\n".encode())

    async def finish(self) -> None:
        """Ask the process to stop, by closing its stdin."""
        assert self.process is not None and self.process.stdin is not None
        await self.process.stdin.aclose()

    def rows(self) -> Iterator[list[str]]:
        """The fields of each line of the process's file."""
        with self.out.open(encoding="utf-8") as lines:
            for line in lines:
                yield line.rstrip("\n").split("\t")
