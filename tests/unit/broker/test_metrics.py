"""What the broker counts, and how Prometheus gets it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from structlog.testing import capture_logs

from anabranch.broker.layout_refusals import LOG_EVERY_S, LayoutRefusals
from anabranch.broker.metrics import BrokerMetrics
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.metrics import Gauge
from anabranch.runtime.metrics_listener import MetricsListener
from anabranch.runtime.real_trio import RealNetwork
from tests.log_world import ManualClock

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
MISMATCH = KafkaError(ErrorCode.INVALID_PARTITION_METADATA, "another layout")
LEGACY = KafkaError(ErrorCode.POLICY_VIOLATION, "names none")


def test_refusals_are_counted_by_topic() -> None:
    metrics = BrokerMetrics()
    refusals = LayoutRefusals(ManualClock(), metrics)
    for key, error in [(T0, MISMATCH), (T0, MISMATCH), (U0, MISMATCH), (U0, LEGACY)]:
        refusals.note(key, error)
    assert metrics.layout_refusals.values == {("t",): 2, ("u",): 1}
    assert metrics.legacy_refusals.values == {("u",): 1}


def test_a_topics_refusals_give_one_line_in_a_while() -> None:
    clock = ManualClock()
    refusals = LayoutRefusals(clock, BrokerMetrics())
    with capture_logs() as lines:
        for key, error in [(T0, MISMATCH), (T0, MISMATCH), (U0, MISMATCH), (T0, LEGACY), (T0, LEGACY)]:
            refusals.note(key, error)
        clock.seconds = LOG_EVERY_S
        refusals.note(T0, MISMATCH)
    assert [(line["partition"], line["log_level"]) for line in lines] == [
        ("t-0", "info"),
        ("u-0", "info"),
        ("t-0", "warning"),
        ("t-0", "info"),
    ]


@asynccontextmanager
async def listening(metrics: BrokerMetrics) -> AsyncIterator[MetricsListener]:
    listener = MetricsListener(RealNetwork(), "127.0.0.1:0", metrics.render)
    await listener.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(listener.run)
        yield listener
        nursery.cancel_scope.cancel()


async def ask(listener: MetricsListener, request: bytes) -> str:
    """The whole answer; the other side closes."""
    with trio.fail_after(20):
        async with await trio.open_tcp_stream("127.0.0.1", listener.port) as stream:
            await stream.send_all(request)
            return b"".join([part async for part in stream]).decode()


@pytest.mark.trio
async def test_prometheus_reads_them_over_http() -> None:
    metrics = BrokerMetrics()
    metrics.layout_refusals.add('a"b')
    metrics.gauges.append(Gauge("anabranch_closed_partitions", "Sealed", lambda: 3))
    async with listening(metrics) as listener:
        answer = await ask(listener, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        head, _, body = answer.partition("\r\n\r\n")
        assert head.startswith("HTTP/1.0 200 OK\r\n") and f"Content-Length: {len(body)}" in head
        assert 'anabranch_layout_refusals_total{topic="a\\"b"} 1.0' in body
        assert "anabranch_closed_partitions 3.0" in body
        assert (await ask(listener, b"HEAD /metrics HTTP/1.1\r\n\r\n")).endswith("\r\n\r\n")


@pytest.mark.trio
@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "404"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\x00\x00\r\n\r\n", "400"),
        ((b"GET /" + b"x" * 8192)[:8192], "404"),  # an endless line
    ],
)
async def test_anything_else_is_refused(request_bytes: bytes, status: str) -> None:
    async with listening(BrokerMetrics()) as listener:
        assert (await ask(listener, request_bytes)).startswith(f"HTTP/1.0 {status} ")
        assert "200 OK" in await ask(listener, b"GET /metrics HTTP/1.1\r\n\r\n")
