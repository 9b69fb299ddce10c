"""The progress of an audit, for a terminal: its present part, and Spark's finished tasks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_POLL_S = 0.2


class AuditProgress(Protocol):
    """Receives the progress of an audit."""

    def begin(self, part: str) -> None:
        """The previous part has ended, and ``part`` begins."""

    def tasks(self, done: int, total: int) -> None:
        """The finished tasks and all tasks of Spark's running stages. Called on a thread of its own."""


class Nobody:
    """Ignores all progress."""

    def begin(self, part: str) -> None:
        pass

    def tasks(self, done: int, total: int) -> None:
        pass


@contextlib.contextmanager
def watched(spark: SparkSession, progress: AuditProgress | None) -> Iterator[None]:
    """Report tasks to ``progress``, on a thread of its own, until the end of the block."""
    if progress is None:
        yield
        return
    done = threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def report() -> None:
        while not done.wait(_POLL_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            known = [stage for stage in stages if stage is not None]
            if known:
                progress.tasks(sum(x.numCompletedTasks for x in known), sum(x.numTasks for x in known))

    thread = threading.Thread(target=report, name="audit-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
