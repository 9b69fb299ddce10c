"""Child processes: started, watched, restarted when they die, stopped in order."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from anabranch.local.plan import restart_delay_s
from anabranch.runtime.child_processes import die_with_parent

STOP_GRACE_S = 15.0
SETTLED_AFTER_S = 10.0


@dataclass(slots=True)
class Child:
    """One supervised process. A restart changes its ``pid``."""

    name: str
    argv: Sequence[str]
    log_path: str
    process: subprocess.Popen[bytes] | None = None
    quick_deaths: int = 0
    started_at: float = 0.0

    @property
    def pid(self) -> int:
        return self.process.pid if self.process is not None else 0

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> None:
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent if sys.platform == "linux" else None,
            )
        self.started_at = trio.current_time()

    async def wait(self) -> int:
        assert self.process is not None
        return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def last_lines(self, count: int = 12) -> str:
        """The end of the child's log, for an error message."""
        try:
            text = Path(self.log_path).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])


@dataclass(slots=True)
class Supervisor:
    """Restarts children that die. ``on_restart(child)`` is called after each restart."""

    report_line: Callable[[str], None]
    on_restart: Callable[[Child], None]
    children: dict[str, Child] = field(default_factory=dict)
    restart: bool = True
    _stopping: set[str] = field(default_factory=set)

    def add(self, child: Child, nursery: trio.Nursery) -> None:
        """Start a child and watch it until ``stop``."""
        self.children[child.name] = child
        child.start()
        nursery.start_soon(self._watch, child)

    async def _watch(self, child: Child) -> None:
        while True:
            status = await child.wait()
            if child.name in self._stopping or not self.restart:
                return
            settled = trio.current_time() - child.started_at >= SETTLED_AFTER_S
            child.quick_deaths = 0 if settled else child.quick_deaths + 1
            delay_s = restart_delay_s(max(0, child.quick_deaths - 1))
            self.report_line(f"{child.name} (pid {child.pid}) {describe_exit(status)}; restarting it in {delay_s:g} s")
            await trio.sleep(delay_s)
            if child.name in self._stopping:
                return
            child.start()
            self.report_line(f"{child.name} restarted (pid {child.pid})")
            self.on_restart(child)

    async def stop(self, names: Sequence[str]) -> None:
        """Send SIGTERM to all of ``names`` at once, and SIGKILL to processes that still run after the grace time."""
        self._stopping.update(names)
        children = [self.children[name] for name in names if self.children[name].running]
        for child in children:
            _signal(child, signal.SIGTERM)
        with trio.move_on_after(STOP_GRACE_S) as grace:
            for child in children:
                await child.wait()
        if grace.cancelled_caught:
            for child in children:
                if child.running:
                    self.report_line(f"{child.name} (pid {child.pid}) did not stop in {STOP_GRACE_S:g} s; killing it")
                    _signal(child, signal.SIGKILL)
                    await child.wait()


def describe_exit(status: int) -> str:
    """Describe an exit status of ``subprocess``, which is negative for a signal."""
    if status < 0:
        return f"was ended by {signal.Signals(-status).name}"
    return f"exited with status {status}"


def _signal(child: Child, number: signal.Signals) -> None:
    if child.process is not None:
        child.process.send_signal(number)
