"""The end of the audit's Spark session."""

from __future__ import annotations

from threading import Event
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="the audit needs the extra [audit]")

from pyspark.accumulators import AccumulatorTCPServer

from anabranch.audit.run import _stop


class SlowServer(AccumulatorTCPServer):
    """A server that ends only when the test releases it."""

    def __init__(self) -> None:
        self.was_asked, self.may_end = Event(), Event()

    def shutdown(self) -> None:
        self.was_asked.set()
        self.may_end.wait()


def test_the_accumulator_server_is_ended_and_not_waited_for() -> None:
    server, stopped = SlowServer(), Event()
    context = SimpleNamespace(_accumulatorServer=server)
    _stop(SimpleNamespace(sparkContext=context, stop=stopped.set))
    assert stopped.is_set()
    assert context._accumulatorServer is None  # otherwise Spark waits for the thread
    assert server.was_asked.wait(60)
    server.may_end.set()


def test_an_accumulator_server_of_another_kind_is_left_to_spark() -> None:
    server, stopped = object(), Event()
    context = SimpleNamespace(_accumulatorServer=server)
    _stop(SimpleNamespace(sparkContext=context, stop=stopped.set))
    assert stopped.is_set()
    assert context._accumulatorServer is server
