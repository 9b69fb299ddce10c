"""Measures the cost of ordered delivery for a send, in lines that producer and broker execute.

The lines are counted in simulated clusters that differ only in ``enable.ordered.delivery``. Lines have different costs,
but on a shared machine times are less reliable. ``bench`` measures times.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

import anabranch
from anabranch.client import Admin, NewTopic, Producer
from anabranch.client.producer.partitioner import cached_hash, cached_place
from sim.scheduler import run_deterministic
from tests.sim.sim_cluster import SimCluster

SOFTWARE = Path(anabranch.__file__).parent
OF_A_RECORD = tuple(str(SOFTWARE / package) for package in ("client", "broker", "protocol"))
TOPIC = "cost"
RECORDS = 6_000
KNOWN_KEYS = [number % 1_024 for number in range(RECORDS)]
NEW_KEYS = range(1_024, 1_024 + RECORDS)
LIMIT = 1.03
SENDS: dict[str, Any] = {"linger_ms": 50, "metadata_max_age_ms": 1_000}
"""Without ordered delivery no broker refuses records, so a producer sees new partitions only when metadata expires."""
DEADLINE_S = 60.0


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Count the lines of producer and broker code that the block executes; the count is the list's only item."""
    found = [0]

    def line(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line":
            found[0] += 1
        return line

    def call(frame: FrameType, _event: str, _argument: object) -> Any:
        return line if frame.f_code.co_filename.startswith(OF_A_RECORD) else None

    before = sys.gettrace()
    sys.settrace(call)
    try:
        yield found
    finally:
        sys.settrace(before)


async def send(producer: Producer, keys: Iterable[int]) -> None:
    for key in keys:
        await producer.send(TOPIC, b"x" * 100, b"key-%d" % key)
    await producer.flush()


async def lines_of_sends(*, is_ordered: bool, created: int, now: int, keys: Sequence[int]) -> int:
    """Count the lines to send ``keys``, with known metadata, after a grow from ``created`` to ``now`` partitions."""
    configs = {"enable.ordered.delivery": "true" if is_ordered else "false"}
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed=0)
        await cluster.start_controller(1000)
        await cluster.start_broker(1)
        servers = cluster.bootstrap_servers
        async with (
            Admin(bootstrap_servers=servers, env=cluster.client_env("admin")) as admin,
            Producer(bootstrap_servers=servers, env=cluster.client_env("producer"), **SENDS) as producer,
        ):
            await admin.create_topics([NewTopic(TOPIC, created, 1, configs)])
            assert (await admin.describe_topics([TOPIC]))[TOPIC].ordered_delivery is is_ordered
            await send(producer, KNOWN_KEYS)
            if now != created:
                await admin.create_partitions({TOPIC: now})
            with trio.fail_after(DEADLINE_S):
                while await producer.partitions_for(TOPIC) != list(range(now)):
                    await send(producer, KNOWN_KEYS)
            await send(producer, KNOWN_KEYS)
            with counted_lines() as found:
                await send(producer, keys)
        await cluster.end()
        nursery.cancel_scope.cancel()
    return found[0]


@pytest.mark.parametrize("keys", [KNOWN_KEYS, NEW_KEYS], ids=["known keys", "new keys"])
@pytest.mark.parametrize(("created", "now"), [(6, 6), (4, 6), (1, 16)])
def test_ordered_delivery_adds_at_most_3_percent_to_the_executed_lines_of_a_send(
    created: int, now: int, keys: Sequence[int]
) -> None:
    """The limit holds before and after splits, and also for keys whose partition is not computed yet."""

    def lines(*, is_ordered: bool) -> int:
        cached_hash.cache_clear()
        cached_place.cache_clear()
        return run_deterministic(0, partial(lines_of_sends, is_ordered=is_ordered, created=created, now=now, keys=keys))

    ordered, unordered = lines(is_ordered=True), lines(is_ordered=False)
    print(f"lines for {RECORDS} records: ordered {ordered}, unordered {unordered}, ratio {ordered / unordered:.4f}")
    assert unordered > 10 * RECORDS
    assert ordered <= LIMIT * unordered
