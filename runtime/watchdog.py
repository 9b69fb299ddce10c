"""Ends a process whose event loop hangs. Otherwise its ZooKeeper session, and a broker's registration, would stay."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable
from types import TracebackType

import trio

EXIT_STATUS = 70
_CHECKS_PER_TIMEOUT = 4


def end_process(silent_s: float) -> None:
    """Print every thread's stack, then exit at once: a clean shutdown would wait for the loop."""
    with contextlib.suppress(OSError, ValueError):  # a pipe without a reader must not block the exit
        os.set_blocking(sys.stderr.fileno(), False)
    with contextlib.suppress(OSError, ValueError):
        print(f"the event loop has not run for {silent_s:.1f} s; ending the process", file=sys.stderr, flush=True)  # noqa: T201
    with contextlib.suppress(OSError, ValueError):
        faulthandler.dump_traceback(all_threads=True)
    os._exit(EXIT_STATUS)


class Watchdog:
    """A daemon thread. It checks from ``start`` (called in the loop) to ``stop`` whether the loop runs.

    ``on_hang(silent_s)`` is called on that thread, once, when the loop has not run for ``timeout_s``. Time in which the
    whole process was suspended (stopped, machine asleep) does not count, because the ZooKeeper session was not kept
    alive during that time.
    """

    def __init__(self, timeout_s: float, on_hang: Callable[[float], None] = end_process) -> None:
        self._timeout_s = timeout_s
        self._on_hang = on_hang
        self._stopped = threading.Event()
        self._beats = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        token = trio.lowlevel.current_trio_token()
        self._thread = threading.Thread(target=self._watch, args=(token,), name="watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; does not wait for the thread."""
        self._stopped.set()

    def __enter__(self) -> Watchdog:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _beat(self) -> None:
        self._beats += 1

    def _watch(self, token: trio.lowlevel.TrioToken) -> None:
        interval_s = self._timeout_s / _CHECKS_PER_TIMEOUT
        silent_checks = 0
        seen = self._beats
        while True:
            try:
                token.run_sync_soon(self._beat, idempotent=True)
            except trio.RunFinishedError:
                return
            if self._stopped.wait(interval_s):
                return
            beats = self._beats
            silent_checks = silent_checks + 1 if beats == seen else 0
            seen = beats
            if silent_checks >= _CHECKS_PER_TIMEOUT:
                self._on_hang(silent_checks * interval_s)
                return
