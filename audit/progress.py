"""How far Spark is, for a terminal."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the finished tasks of the stages that run, and all tasks of these."""
_POLL_S = 0.2


@contextlib.contextmanager
def watched(spark: SparkSession, progress: Progress | None) -> Iterator[None]:
    """Report to ``progress``, from a thread of its own, until the end of the block."""
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
                progress(sum(x.numCompletedTasks for x in known), sum(x.numTasks for x in known))

    thread = threading.Thread(target=report, name="audit-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
