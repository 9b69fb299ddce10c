"""What ordered delivery adds to producing, by our own client: one process that writes to three topics in turn.

One keeps the order of keys across resizes and two do not (``enable.ordered.delivery=false``). All else is the same, the
producer and its processor too, and a turn is shorter than the machine's slow moments last. Each round tells the cost of
the ordered topic against the first of the others, in percent, and that of the second other as control: what two turns
differ by without order. ``--records`` is the number of rounds, ``--size`` of the values.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import NamedTuple

from anabranch import Admin, NewTopic, Producer
from bench.measure import running_s

TURN_RECORDS = 5_000
KEYS = [b"key-%d" % number for number in range(1_024)]
ORDERED_KEY = "enable.ordered.delivery"
LINGER_MS = 5
BATCH_BYTES = 256 * 1024


class Turn(NamedTuple):
    """Seconds until everything was acknowledged, and of processors meanwhile."""

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
    """The median of what a turn took more than the other of its round."""
    return 100 * (statistics.median(turn / other for turn, other in zip(turns, others, strict=True)) - 1)


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


LOADS = {"cost-of-order": measure_cost_of_order}
