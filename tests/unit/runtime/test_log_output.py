"""While a pipe is read, log lines arrive in order. Otherwise they are dropped and counted. No write blocks."""

from __future__ import annotations

import os
import subprocess
import sys

from anabranch.runtime.log_output import MAX_WAITING_BYTES, LogOutput
from anabranch.runtime.watchdog import EXIT_STATUS


def test_log_lines_are_written_in_order() -> None:
    reader, writer = os.pipe()
    output = LogOutput(writer)
    for number in range(100):
        output.write(f"line {number}\n")
    output.close()
    os.close(writer)
    with os.fdopen(reader) as lines:
        assert lines.read() == "".join(f"line {number}\n" for number in range(100))


def test_a_pipe_without_a_reader_is_not_waited_for() -> None:
    reader, writer = os.pipe()
    output = LogOutput(writer)
    line = "x" * 1023 + "\n"
    written = 4 * MAX_WAITING_BYTES // len(line)
    for _ in range(written):
        output.write(line)
    received, whole, dropped = b"", 0, 0
    while whole + dropped < written:  # each gap in the lines has a notice
        received += os.read(reader, 1 << 20)
        *complete, received = received.split(b"\n")
        notices = [found for found in complete if b"dropped" in found]
        assert {found for found in complete if found not in notices} <= {line.rstrip("\n").encode()}
        whole += len(complete) - len(notices)
        dropped += sum(int(notice.rpartition(b": ")[2]) for notice in notices)
    assert dropped > 0 and whole + dropped == written and received == b""
    output.write("again\n")
    assert os.read(reader, 100) == b"again\n"
    output.close()
    os.close(writer)
    os.close(reader)


def test_the_watchdog_ends_a_process_whose_stderr_is_not_read() -> None:
    script = """
import os, sys
from anabranch.runtime.watchdog import end_process
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x" * 4096)
except BlockingIOError:
    os.set_blocking(2, True)
end_process(1.0)
"""
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE)
    try:
        assert process.wait(timeout=20) == EXIT_STATUS
    finally:
        process.kill()
        assert process.stderr is not None
        process.stderr.close()
        process.wait()
