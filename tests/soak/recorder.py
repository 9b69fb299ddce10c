"""Writes the history of a run while it happens, from any thread."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from pathlib import Path

from tests.history.events import Event, Fault, encode_event


class Recorder:
    """Writes events to a file in the order of the calls; ``problems`` are errors that no event can show."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.counts: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.problems: list[str] = []
        self.revived = 0
        """How many times a closed partition was revived."""
        self.last_ack_ms = 0.0
        self.longest_silence_ms = 0.0
        """The longest time between two successive acknowledgements."""
        self._file = path.open("wb")
        self._lock = threading.Lock()
        self._start = time.monotonic()

    def now_ms(self) -> float:
        """Milliseconds since the start of the run."""
        return round((time.monotonic() - self._start) * 1000, 3)

    def record(self, *events: Event) -> None:
        lines = b"".join(map(encode_event, events))
        with self._lock:
            self._file.write(lines)
            for event in events:
                self.counts[type(event).__name__] += 1

    def acknowledged(self, event: Event) -> None:
        """Record an acknowledgement and measure the time since the previous one."""
        self.record(event)
        if self.last_ack_ms:
            self.longest_silence_ms = max(self.longest_silence_ms, event.at_ms - self.last_ack_ms)
        self.last_ack_ms = event.at_ms

    def fault(self, kind: str, what: str, *, count: bool = True) -> None:
        self.record(Fault(self.now_ms(), kind, what))
        if count:
            self.faults[kind] += 1

    def problem(self, what: str) -> None:
        self.problems.append(f"{self.now_ms() / 1000:.1f} s: {what}")
        self.fault("problem", what, count=False)

    def logger(self, name: str) -> logging.Logger:
        """A logger for a client. It writes a file beside the history, with times in milliseconds since the start."""
        logger = logging.Logger(name)
        handler = logging.FileHandler(self.path.with_name(f"{name}.log"))
        handler.setFormatter(_SinceStart(self))
        logger.addHandler(handler)
        return logger

    def close(self) -> None:
        self._file.close()


class _SinceStart(logging.Formatter):
    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def format(self, record: logging.LogRecord) -> str:
        return f"{self._recorder.now_ms()} {record.getMessage()}"
