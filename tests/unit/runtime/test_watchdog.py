"""The watchdog stays silent while the loop runs, and reports a loop that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import trio

from anabranch.runtime.watchdog import EXIT_STATUS, Watchdog

TIMEOUT_S = 0.2


@pytest.mark.trio
async def test_a_loop_that_runs_is_not_reported() -> None:
    hangs: list[float] = []
    with Watchdog(TIMEOUT_S, hangs.append):
        await trio.sleep(2 * TIMEOUT_S)  # pause: twice the timeout
    assert hangs == []


@pytest.mark.trio
async def test_a_loop_that_hangs_is_reported_once() -> None:
    noticed = threading.Event()
    hangs: list[float] = []

    def on_hang(silent_s: float) -> None:
        hangs.append(silent_s)
        noticed.set()

    watchdog = Watchdog(TIMEOUT_S, on_hang)
    watchdog.start()
    assert noticed.wait(10)  # blocks the loop as a hang does
    watchdog.stop()
    assert hangs == [pytest.approx(TIMEOUT_S)]


def test_the_process_ends_and_logs_where_it_hung() -> None:
    script = f"""
import time, trio
from anabranch.runtime.watchdog import Watchdog
async def main():
    Watchdog({TIMEOUT_S}).start()
    def the_culprit():
        time.sleep(30)  # pause: the loop hangs
    the_culprit()
trio.run(main)
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=False)
    assert ended.returncode == EXIT_STATUS
    assert "has not run for" in ended.stderr
    assert "the_culprit" in ended.stderr


@pytest.mark.trio
async def test_stopping_the_watchdog_ends_its_thread() -> None:
    watchdog = Watchdog(60)
    watchdog.start()
    watchdog.stop()
    thread = watchdog._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
