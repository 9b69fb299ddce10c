"""Counts what the interpreter does for each simulated process: numbers that depend on no machine and no clock.

``Counter.counting`` counts, by the process of the running task:

- ``calls``: calls of Python functions of the software; ``calls in trio`` and ``calls in the library`` are those that it
  makes in trio and in the standard library. What the simulation calls there is not counted, nor what trio's runner does
  between two steps.
- ``C calls``: calls of built-in functions by the software.
- ``files``: files of the software that were entered; ``changes of file``: how often a call or a return went from one
  file of the software to another.
- ``bytecodes``: instructions of the interpreter in functions of the software.
- ``steps``: how often a task ran until its next wait.
- the operations of the environment by name, such as ``SimStream.send_now`` and ``SimClock.monotonic``: the simulation
  stands where a real process makes system calls and reads the clock.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import trio

import anabranch
import sim
from sim import scheduler

_SOFTWARE = tuple(
    str(Path(package).resolve()) + os.sep
    for folder in anabranch.__path__
    for package in Path(folder).iterdir()
    if package.is_dir()
)
_SIM = str(Path(next(iter(sim.__path__))).resolve()) + os.sep
_TRIO = str(Path(trio.__file__).parent) + os.sep
_HERE = str(Path(__file__).resolve().parents[3] / "tests") + os.sep
_SOFTWARE_KIND, _SIM_KIND, _TRIO_KIND, _LIBRARY_KIND, _OTHER = "software", "sim", "trio", "library", "other"

Counts = dict[str, Counter[str]]
"""By process, then by what was counted."""


def _kind_of(code: CodeType) -> str:
    path = os.path.realpath(code.co_filename)
    if path.startswith(_SIM):
        return _SIM_KIND
    if path.startswith(_HERE):
        return _OTHER
    if path.startswith(_SOFTWARE):
        return _SOFTWARE_KIND
    if path.startswith(_TRIO):
        return _TRIO_KIND
    return _LIBRARY_KIND


class _Steps(trio.abc.Instrument):
    def __init__(self, counting: ProcessCounts) -> None:
        self._counting = counting

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._counting.enter(task.context.get(scheduler._process))

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._counting.leave()


class ProcessCounts:
    """The counts of some processes, by their names."""

    def __init__(self, processes: Mapping[str, scheduler.SimTasks]) -> None:
        self._names = {id(tasks): name for name, tasks in processes.items()}
        self._kinds: dict[CodeType, str] = {}
        self.files: dict[str, Counter[str]] = {name: Counter() for name in processes}
        """By process: the calls of functions of each file of the software, in the order of the first calls."""
        self._last_file = ""
        self._now: Counter[str] | None = None
        self._now_files: Counter[str] = Counter()
        self._in_environment: FrameType | None = None
        """The outermost running call of the simulation that the software made."""
        self.found: Counts = {name: Counter() for name in processes}

    def enter(self, tasks: scheduler.SimTasks | None) -> None:
        """A step of a task of this process begins."""
        name = self._names.get(id(tasks))
        self._now = None
        if name is not None:
            self._now, self._now_files = self.found[name], self.files[name]
            self._now["steps"] += 1

    def leave(self) -> None:
        """The step ends."""
        self._now = self._in_environment = None

    def _kind(self, code: CodeType) -> str:
        kind = self._kinds.get(code)
        if kind is None:
            kind = self._kinds[code] = _kind_of(code)
        return kind

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        now = self._now
        if now is None:
            return
        code = frame.f_code
        kind = self._kind(code)
        if event == "call":
            if kind == _SOFTWARE_KIND:
                now["calls"] += 1
                self._now_files[code.co_filename] += 1
                self._move(code.co_filename, now)
            elif kind == _SIM_KIND:
                caller = frame.f_back
                if caller is not None and self._kind(caller.f_code) == _SOFTWARE_KIND:
                    now[code.co_qualname] += 1
                    self._in_environment = self._in_environment or frame
            elif kind != _OTHER and self._in_environment is None:
                now[f"calls in {'trio' if kind == _TRIO_KIND else 'the library'}"] += 1
        elif event == "return" and frame is self._in_environment:
            self._in_environment = None
        elif kind == _SOFTWARE_KIND:
            if event == "c_call":
                now["C calls"] += 1
            elif event == "return":
                self._move(code.co_filename, now)

    def _move(self, file: str, now: Counter[str]) -> None:
        if file != self._last_file:
            now["changes of file"] += 1
            self._last_file = file

    def _trace(self, frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "call":
            if self._now is None or self._kind(frame.f_code) != _SOFTWARE_KIND:
                return None
            frame.f_trace_opcodes = True
            frame.f_trace_lines = False
        elif event == "opcode" and self._now is not None:
            self._now["bytecodes"] += 1
        return self._trace

    @contextmanager
    def counting(self) -> Iterator[Counts]:
        """Count while the block waits for other tasks. ``found`` is complete after the block."""
        steps = _Steps(self)
        trio.lowlevel.add_instrument(steps)
        before = sys.getprofile(), sys.gettrace()
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            yield self.found
        finally:
            sys.settrace(before[1])
            sys.setprofile(before[0])
            trio.lowlevel.remove_instrument(steps)
            for name, files in self.files.items():
                self.found[name]["files"] = len(files)
