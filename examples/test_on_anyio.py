"""Clients as fixtures of AnyIO's plugin, under asyncio and under trio. Fixtures and test run in one event loop."""

import os
from collections.abc import AsyncIterator

import pytest

from anabranch import Consumer, Producer

BOOTSTRAP = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
async def producer() -> AsyncIterator[Producer]:
    async with Producer(bootstrap_servers=BOOTSTRAP) as started:
        yield started


@pytest.fixture
async def consumer() -> AsyncIterator[Consumer]:
    started = await Consumer(bootstrap_servers=BOOTSTRAP, auto_offset_reset="earliest").start()
    yield started
    await started.stop()


@pytest.mark.anyio
async def test_a_record_is_read(producer: Producer, consumer: Consumer) -> None:
    written = await producer.send_and_wait("on-anyio", b"v")
    consumer.subscribe(["on-anyio"])
    async for record in consumer:
        if record.offset == written.offset:
            assert record.value == b"v"
            return
