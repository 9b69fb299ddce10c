"""The fetch rate leaves out the time before the first records: a group's join, and the look-up of positions."""

from __future__ import annotations

from argparse import Namespace
from types import SimpleNamespace
from typing import Any

import confluent_kafka
import pytest

from bench import load

JOIN_S, POLL_S, BATCH, BATCHES = 3.0, 0.1, 100, 10
RECORDS = BATCH * (BATCHES - 1)
"""The records that a run counts. The first batch starts the clock and does not count."""


class Clock:
    def __init__(self) -> None:
        self.now = 50.0

    def perf_counter(self) -> float:
        return self.now


class Broker:
    """Returns empty polls until the join is over.

    Then each poll takes ``POLL_S`` and returns a batch while any batch is left.
    """

    def __init__(self, clock: Clock, batches: int) -> None:
        self._clock = clock
        self._left = batches
        self._joined_at = clock.now + JOIN_S

    def poll(self) -> list[Any]:
        if self._clock.now < self._joined_at:
            self._clock.now += 1.0
            return []
        self._clock.now += POLL_S
        if self._left == 0:
            return []
        self._left -= 1
        return [SimpleNamespace(value=b"12345678")] * BATCH


async def by_getmany(clock: Clock, batches: int, patches: pytest.MonkeyPatch) -> dict[str, float]:
    """Poll as callers of aiokafka and of our client do."""
    broker = Broker(clock, batches)

    async def getmany(timeout_ms: int) -> dict[int, list[Any]]:
        records = broker.poll()
        return {0: records} if records else {}

    return await load.timed_fetch(SimpleNamespace(getmany=getmany), RECORDS)


async def by_consume(clock: Clock, batches: int, patches: pytest.MonkeyPatch) -> dict[str, float]:
    """Poll as callers of librdkafka do."""
    broker = Broker(clock, batches)
    consumer = SimpleNamespace(assign=lambda _: None, consume=lambda _count, timeout: broker.poll(), close=lambda: None)
    patches.setattr(confluent_kafka, "Consumer", lambda _settings: consumer)
    return load.confluent_fetch(Namespace(bootstrap="b", topic="t", partitions=1, records=RECORDS))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(load, "time", found)
    return found


FETCHES = pytest.mark.parametrize("fetch", [by_getmany, by_consume], ids=lambda fetch: fetch.__name__)


@FETCHES
@pytest.mark.trio
async def test_the_rate_begins_with_the_first_records(
    fetch: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await fetch(clock, BATCHES, monkeypatch)
    assert result["records"] == RECORDS
    assert result["seconds"] == pytest.approx(POLL_S * (BATCHES - 1))
    assert result["first_records_ms"] == pytest.approx((JOIN_S + POLL_S) * 1000)


@FETCHES
@pytest.mark.trio
async def test_a_topic_with_fewer_records_ends_the_run(
    fetch: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = await fetch(clock, BATCHES - 4, monkeypatch)
    assert result["records"] == RECORDS - 4 * BATCH
