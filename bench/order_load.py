"""The cost of ordered delivery with Anabranch's client: one process writes to three topics in turn.

One topic keeps the order of keys across resizes, and two do not (``enable.ordered.delivery=false``). All three have the
same producer, on the same processor. Turns are short, so that a slow moment of the machine covers several turns. Each
round gives the cost of the ordered topic over the first topic without order, in percent. The control is the cost of the
second topic without order over the first: it shows how much two equal turns differ. ``--records`` is the number of
rounds, ``--size`` the size of values.

``cost-of-the-gate`` reads the same three topics. The ordered topic was resized several times before. All records that
its gates wait for are processed already.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from typing import NamedTuple

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.view.resize import wait_until_resized
from bench.measure import running_s

TURN_RECORDS = 5_000
KEYS = [b"key-%d" % number for number in range(1_024)]
ORDERED_KEY = "enable.ordered.delivery"
LINGER_MS = 5
BATCH_BYTES = 256 * 1024
READ_RECORDS = 400_000
SMALL_BATCH_BYTES = 1_024
"""The size of batches to read. Batches are small because a consumer asks its gate once for each batch."""
RESIZES = 5
RESIZE_DEADLINE_MS = 60_000
POLL_MS = 100


class Turn(NamedTuple):
    """The duration of a turn, and the CPU time of client and brokers, in seconds."""

    wall_s: float
    client_cpu_s: float
    broker_cpu_s: float


async def take_turn(producer: Producer, topic: str, value: bytes, pids: list[int]) -> Turn:
    before = Turn(time.perf_counter(), time.process_time(), running_s(pids))
    for number in range(TURN_RECORDS):
        await producer.send(topic, value, KEYS[number % len(KEYS)])
    await producer.flush()
    after = Turn(time.perf_counter(), time.process_time(), running_s(pids))
    return Turn(*(then - now for then, now in zip(after, before, strict=True)))


def cost_percent(turns: list[float], others: list[float]) -> float:
    """How much longer a turn takes than the other turn of its round: the median, in percent.

    Rounds that are too short to time are left out.
    """
    return 100 * (statistics.median(turn / other for turn, other in zip(turns, others, strict=True) if other) - 1)


async def measure_cost_of_order(arguments: argparse.Namespace) -> dict[str, float]:
    others = [f"{arguments.topic}-unordered", f"{arguments.topic}-control"]
    names, value = [arguments.topic, *others], bytes(arguments.size)
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    async with (
        Admin(bootstrap_servers=arguments.bootstrap) as admin,
        Producer(
            bootstrap_servers=arguments.bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
        ) as producer,
    ):
        await admin.create_topics([NewTopic(name, arguments.partitions, 1, {ORDERED_KEY: "false"}) for name in others])
        for name in names:
            await take_turn(producer, name, value, arguments.pids)
        for order in itertools.islice(itertools.cycle(itertools.permutations(names)), arguments.records):
            for name in order:
                turns[name].append(await take_turn(producer, name, value, arguments.pids))
        await admin.delete_topics(others)
    found = {}
    for what, field in (("", "wall_s"), ("client_cpu_", "client_cpu_s"), ("broker_cpu_", "broker_cpu_s")):
        took = [[getattr(turn, field) for turn in turns[name]] for name in names]
        found[f"order_{what}percent"] = cost_percent(took[0], took[1])
        found[f"order_{what}control_percent"] = cost_percent(took[2], took[1])
    return found


async def measure_cost_of_the_gate(arguments: argparse.Namespace) -> dict[str, float]:
    initial, value = arguments.partitions, bytes(arguments.size)
    others = [f"{arguments.topic}-unordered", f"{arguments.topic}-control"]
    names = [arguments.topic, *others]
    turns: dict[str, list[Turn]] = {name: [] for name in names}
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(bootstrap_servers=arguments.bootstrap))
        await admin.create_topics([NewTopic(name, 2 * initial, 1, {ORDERED_KEY: "false"}) for name in others])
        async with Producer(
            bootstrap_servers=arguments.bootstrap, linger_ms=LINGER_MS, batch_size=SMALL_BATCH_BYTES
        ) as producer:
            for number in range(RESIZES):
                await write(producer, arguments.topic, value, READ_RECORDS // (RESIZES + 1))
                count = initial if number % 2 else 2 * initial
                await admin.create_partitions({arguments.topic: count})
                await wait_until_resized(admin, arguments.topic, count, RESIZE_DEADLINE_MS)
            await write(producer, arguments.topic, value, READ_RECORDS - RESIZES * (READ_RECORDS // (RESIZES + 1)))
            for name in others:
                await write(producer, name, value, READ_RECORDS)
        consumers = {}
        for name in names:
            consumer = Consumer(bootstrap_servers=arguments.bootstrap, auto_offset_reset="earliest")
            consumers[name] = await stack.enter_async_context(consumer)
            consumer.assign(TopicPartition(name, p) for p in range(2 * initial))
            await read_turn(consumer)
        for order in itertools.islice(itertools.cycle(itertools.permutations(names)), arguments.records):
            for name in order:
                await consumers[name].seek_to_beginning()
                turns[name].append(await read_turn(consumers[name]))
        await admin.delete_topics(others)
    found = {}
    for what, field in (("", "wall_s"), ("client_cpu_", "client_cpu_s")):
        took = [[getattr(turn, field) for turn in turns[name]] for name in names]
        found[f"gate_{what}percent"] = cost_percent(took[0], took[1])
        found[f"gate_{what}control_percent"] = cost_percent(took[2], took[1])
    return found


async def write(producer: Producer, topic: str, value: bytes, records: int) -> None:
    for number in range(records):
        await producer.send(topic, value, KEYS[number % len(KEYS)])
    await producer.flush()


async def read_turn(consumer: Consumer) -> Turn:
    """Read all ``READ_RECORDS`` records."""
    left, began = READ_RECORDS, Turn(time.perf_counter(), time.process_time(), 0.0)
    while left > 0:
        left -= sum(len(records) for records in (await consumer.getmany(timeout_ms=POLL_MS)).values())
    return Turn(time.perf_counter() - began.wall_s, time.process_time() - began.client_cpu_s, 0.0)


LOADS = {"cost-of-order": measure_cost_of_order, "cost-of-the-gate": measure_cost_of_the_gate}
