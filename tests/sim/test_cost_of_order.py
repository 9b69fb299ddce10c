"""What ordered delivery adds to the way of a record that is sent: the lines that a producer and a broker run for it.

They are counted in one simulated cluster after another that differ in ``enable.ordered.delivery`` alone. Lines cost
unlike, but what is added is some, and on a machine that others share time tells less: ``bench`` has that.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio

from client import Admin, NewTopic, Producer
from runtime.sim_scheduler import run_deterministic
from tests.sim_cluster import SimCluster

ROOT = Path(__file__).parents[2]
OF_A_RECORD = tuple(str(ROOT / package) for package in ("client", "broker", "protocol"))
TOPIC = "cost"
RECORDS = 6_000
KEYS = 1_024
LIMIT = 1.03
SENDS: dict[str, Any] = {"linger_ms": 50, "metadata_max_age_ms": 1_000}
"""Only age tells a producer of more partitions of a topic without order: no broker refuses what it sends."""
DEADLINE_S = 60.0


@contextmanager
def counted_lines() -> Iterator[list[int]]:
    """Of the software, as often as each is run meanwhile; the sum is the list's only item at the end."""
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


async def send_by_key(producer: Producer) -> None:
    for number in range(RECORDS):
        await producer.send(TOPIC, b"x" * 100, b"key-%d" % (number % KEYS))
    await producer.flush()


async def lines_of_sends(*, is_ordered: bool, created: int, now: int) -> int:
    """Of a topic ``created`` with so many partitions that has ``now`` so many, once what is asked once is known."""
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
            await send_by_key(producer)
            if now != created:
                await admin.create_partitions({TOPIC: now})
            with trio.fail_after(DEADLINE_S):
                while await producer.partitions_for(TOPIC) != list(range(now)):
                    await send_by_key(producer)
            await send_by_key(producer)
            with counted_lines() as found:
                await send_by_key(producer)
        await cluster.end()
        nursery.cancel_scope.cancel()
    return found[0]


@pytest.mark.parametrize(("created", "now"), [(6, 6), (4, 6)], ids=["created", "split"])
def test_order_costs_the_produce_path_next_to_nothing(created: int, now: int) -> None:
    """After a split as before it: a key's place is as near at hand."""

    def lines(*, is_ordered: bool) -> int:
        return run_deterministic(0, partial(lines_of_sends, is_ordered=is_ordered, created=created, now=now))

    ordered, unordered = lines(is_ordered=True), lines(is_ordered=False)
    print(f"lines for {RECORDS} records: ordered {ordered}, unordered {unordered}, {ordered / unordered:.4f} of it")
    assert unordered > 10 * RECORDS
    assert ordered <= LIMIT * unordered
