"""The cost of a resize with Anabranch's client: one process has the producer, the consumers and the resize.

``resize-hand-over`` measures keys that move between partitions. A group of two members reads these keys, and the
producer writes records with them all the time. For each key and move, the time ends when the key's first record is
delivered from the new partition. The time begins when all of these are true:

- the old partition's last record of any key with the same move is delivered;
- a flush callback that began after this delivery has returned;
- the broker has appended the key's first record in the new partition (LogAppendTime).

Thus the time until a key is written does not count. The commit, the messages between members, the load callback, and
the fetches of missing metadata and records do count. A key does not count if it did not wait: its first record was
appended after the new partition had delivered a record of another key with the same move (``demo.hand_over``).

``resize-throughput`` counts acknowledged records in the seconds of a split and a merge. Its producer sends at half of
its highest rate; the producer of ``resize-throughput-saturated`` sends at its highest rate. ``resize-thousand`` doubles
a topic once. ``--records`` is the number of resizes. For hand-overs ``--size`` is the ms between two records of a key.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import time
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import Any

import anyio

from anabranch import Admin, Consumer, NewTopic, Producer, TopicPartition
from anabranch.demo.events import Event, event_of
from anabranch.demo.hand_over import Flush, Resize, hand_overs, percentiles
from anabranch.demo.verify import ObservedRecord
from anabranch.view.moves import moves
from anabranch.view.resize import wait_until_resized
from bench.measure import processor_ticks

KEYS = 64
SETTLE_DEADLINE_S = 300.0
POLL_MS = 100
WARM_UP_S = 2.0
STEADY_S = 8.0
"""The time for which throughput is measured before a resize."""
TICKS_PER_S = 100
SENT_AT_ONCE = 100
WIDE = 2_000
"""The partitions of a wide topic."""
FILLING = 10 * WIDE
"""Records with different keys: each partition gets some, so that no partition is empty when it is marked."""
UNCONFIRMED = 10_000
"""Unacknowledged records at once: enough to keep batches as full with twice the partitions as before the resize."""


class Recorder:
    """The deliveries to one member, and the times of its callbacks."""

    def __init__(self) -> None:
        self.observed: list[ObservedRecord] = []
        self.flushes: list[Flush] = []
        # Brokers stamp records by the wall clock; all other times here are of the monotonic clock.
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()

    def take(self, record: Any) -> None:
        appended_ns = record.timestamp * 1_000_000 - self._wall_ahead_ns
        event = event_of(record.key, record.value)
        self.observed.append(
            ObservedRecord(time.monotonic_ns(), record.partition, record.offset, event, 0, appended_ns)
        )

    def on_partition_key_maybe_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        now_ns = time.monotonic_ns()
        self.flushes.append(Flush(now_ns, now_ns, tuple(tp.partition for tp in partitions)))

    def on_partition_key_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        """Load nothing: only the time until this call is measured."""


async def resize(admin: Admin, topic: str, count: int) -> None:
    """Resize the topic, and wait until it has ``count`` partitions, each with a leader."""
    await admin.create_partitions({topic: count})
    with anyio.fail_after(SETTLE_DEADLINE_S):
        while not await is_settled(admin, topic, count):
            await anyio.sleep(0.05)


async def is_settled(admin: Admin, topic: str, count: int) -> bool:
    found = (await admin.describe_topics([topic]))[topic]
    counts = {found.undeleted_partition_count, len(found.partitions)}
    return counts == {count} and all(partition.leader >= 0 for partition in found.partitions)


async def drain(admin: Admin, topic: str, count: int) -> None:
    """Commit the ends of the marked partitions for a group, and wait until only ``count`` partitions are left."""
    found = (await admin.describe_topics([topic]))[topic]
    marked = [TopicPartition(topic, one.partition) for one in found.partitions if one.partition >= count]
    ends = await admin.list_offsets(dict.fromkeys(marked, "latest"))
    await admin.alter_group_offsets(f"{topic}-readers", {tp: end.offset for tp, end in ends.items()})
    with anyio.fail_after(SETTLE_DEADLINE_S):
        while not await is_settled(admin, topic, count):
            await anyio.sleep(0.05)


async def consume(arguments: argparse.Namespace, recorder: Recorder) -> None:
    async with Consumer(
        bootstrap_servers=arguments.bootstrap, group_id=f"{arguments.topic}-group", auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([arguments.topic], partition_key_listener=recorder)
        while True:
            for records in (await consumer.getmany(timeout_ms=POLL_MS)).values():
                for record in records:
                    recorder.take(record)


async def produce_steadily(producer: Producer, topic: str, pause_s: float) -> None:
    """Send one record of each key, then pause, without end."""
    sequence = 0
    while True:
        for number in range(KEYS):
            sequence += 1
            event = Event(sequence, 0, f"key-{number}", "c")
            await producer.send(topic, key=event.key, value=event.value)
        await anyio.sleep(pause_s)


async def measure_hand_over(arguments: argparse.Namespace) -> dict[str, float]:
    recorders, initial = [Recorder(), Recorder()], arguments.partitions
    steps: list[Resize] = []
    async with (
        Admin(bootstrap_servers=arguments.bootstrap) as admin,
        Producer(bootstrap_servers=arguments.bootstrap, acks="all", linger_ms=0) as producer,
        anyio.create_task_group() as tasks,
    ):
        for recorder in recorders:
            tasks.start_soon(consume, arguments, recorder)
        tasks.start_soon(produce_steadily, producer, arguments.topic, arguments.size / 1000)
        with anyio.fail_after(SETTLE_DEADLINE_S):
            while not all(recorder.observed for recorder in recorders):
                await anyio.sleep(0.05)
        before = initial
        for number in range(arguments.records):
            await anyio.sleep(1)
            count = initial if number % 2 else 2 * initial
            ways = moves(initial, before, count)
            steps.append(Resize(time.monotonic_ns(), frozenset((move.source, move.target) for move in ways)))
            await resize(admin, arguments.topic, count)
            before = count
        await anyio.sleep(2)
        tasks.cancel_scope.cancel()
    observed = [record for recorder in recorders for record in recorder.observed]
    flushes = [flush for recorder in recorders for flush in recorder.flushes]
    found = percentiles(hand_overs(observed, flushes, steps))
    if found.p50_ms is None or found.p99_ms is None:
        raise SystemExit(f"no key was handed over in {len(steps)} resizes")
    return {"hand_overs": found.count, "hand_over_p50_ms": found.p50_ms, "hand_over_p99_ms": found.p99_ms}


class SteadyProducer:
    """Sends without end, and counts acknowledged records by ticks of the monotonic clock.

    Without a limit, a record is counted once UNCONFIRMED further records are sent, so sending limits the rate as well.
    """

    def __init__(self, producer: Producer, topic: str, payload: bytes) -> None:
        self._producer = producer
        self._topic = topic
        self._payload = payload
        self._acknowledged: Counter[int] = Counter()
        self._limit_per_s = math.inf
        self._due_s = 0.0

    def limit(self, per_s: float) -> None:
        """Send ``per_s`` records a second from now on. After a delay, the records that are due follow at once."""
        self._limit_per_s, self._due_s = per_s, time.monotonic()

    async def run(self) -> None:
        waiting: deque[Any] = deque()
        for number in itertools.count():
            if number % SENT_AT_ONCE == 0:
                self._due_s += SENT_AT_ONCE / self._limit_per_s
                await anyio.sleep(max(0.0, self._due_s - time.monotonic()))
            waiting.append(await self._producer.send(self._topic, key=b"%d" % (number % 997), value=self._payload))
            while len(waiting) >= UNCONFIRMED or (self._limit_per_s < math.inf and waiting and waiting[0].done()):
                await waiting.popleft()
                self._acknowledged[int(time.monotonic() * TICKS_PER_S)] += 1

    def rate(self, begin_s: float, seconds: float = 1.0) -> float:
        """Acknowledged records a second, over ``seconds`` from ``begin_s`` on."""
        first = int(begin_s * TICKS_PER_S)
        return sum(self._acknowledged[tick] for tick in range(first, first + int(seconds * TICKS_PER_S))) / seconds

    def slowest(self, begin_s: float, end_s: float) -> float:
        """The lowest rate of any window of a second between the two times."""
        ticks = round((end_s - begin_s - 1) * TICKS_PER_S)
        return min(self.rate(begin_s + tick / TICKS_PER_S) for tick in range(ticks + 1))

    def longest_stop_ms(self, begin_s: float, seconds: float) -> float:
        """The longest time without an acknowledgement."""
        first = int(begin_s * TICKS_PER_S)
        ticks = range(first, first + int(seconds * TICKS_PER_S))
        runs = itertools.groupby(ticks, lambda tick: self._acknowledged[tick] == 0)
        return max((sum(1 for _ in run) for is_still, run in runs if is_still), default=0) * 1000 / TICKS_PER_S


async def measure_throughput(arguments: argparse.Namespace, share: float = math.inf) -> dict[str, float]:
    """The throughput in the slowest second of each resize, in percent of the mean over ``STEADY_S`` before the resize.

    A window of a second counts if it overlaps the resize, from the request until the count is in force. The control is
    the slowest of as many windows before the resize. The control shows how much this load varies on this machine.
    ``share`` is the limit of the producer, as a share of its unlimited rate. ``longest_stop_ms`` is over the same
    windows. ``stolen_percent`` is the processor time that the machine's host took around the worst resize.
    """
    initial, rates, during, control = arguments.partitions, [], [], []
    stops, stops_before, stolen = [], [], []
    async with (
        Admin(bootstrap_servers=arguments.bootstrap) as admin,
        Producer(bootstrap_servers=arguments.bootstrap, acks="all") as producer,
        anyio.create_task_group() as tasks,
    ):
        load = SteadyProducer(producer, arguments.topic, bytes(arguments.size))
        tasks.start_soon(load.run)
        await anyio.sleep(WARM_UP_S)
        if share < math.inf:
            began = time.monotonic()
            await anyio.sleep(STEADY_S)
            load.limit(share * load.rate(began, STEADY_S))
            await anyio.sleep(WARM_UP_S)
        for number in range(arguments.records):
            is_merge = number % 2 == 1
            count = initial if is_merge else 2 * initial
            await anyio.sleep(STEADY_S - 1)
            ticks_before = processor_ticks()
            await anyio.sleep(1)
            began = time.monotonic()
            await admin.create_partitions({arguments.topic: count})
            await wait_until_resized(admin, arguments.topic, count, int(SETTLE_DEADLINE_S * 1000))
            begin, end = began - 1, time.monotonic() + 1
            await anyio.sleep(2)  # until the records of the last window are acknowledged
            stolen.append(processor_ticks().stolen_percent_since(ticks_before))
            steady = load.rate(began - STEADY_S, STEADY_S)
            rates.append(steady)
            during.append(100 * load.slowest(begin, end) / steady)
            control.append(100 * load.slowest(2 * begin - end, begin) / steady)
            stops.append(load.longest_stop_ms(begin, end - begin))
            stops_before.append(load.longest_stop_ms(2 * begin - end, end - begin))
            if is_merge:
                await drain(admin, arguments.topic, initial)
        tasks.cancel_scope.cancel()
    return {
        "records_before_per_s": statistics.mean(rates),
        "window_percent": statistics.median(during),
        "window_before_percent": statistics.median(control),
        "least_window_percent": min(during),
        "least_window_before_percent": min(control),
        "longest_stop_ms": max(stops),
        "longest_stop_before_ms": max(stops_before),
        "stolen_percent": stolen[during.index(min(during))],
    }


async def measure_doubling(arguments: argparse.Namespace) -> dict[str, float]:
    """Double an idle topic once; the time ends when every partition has a leader."""
    async with Admin(bootstrap_servers=arguments.bootstrap, request_timeout_ms=120_000) as admin:
        with anyio.fail_after(SETTLE_DEADLINE_S):
            while not await is_settled(admin, arguments.topic, arguments.partitions):
                await anyio.sleep(0.05)
        started = time.perf_counter()
        await resize(admin, arguments.topic, 2 * arguments.partitions)
        return {"doubling_s": time.perf_counter() - started}


async def fill(arguments: argparse.Namespace, topic: str) -> None:
    """Write some records to each partition."""
    async with Producer(bootstrap_servers=arguments.bootstrap, acks="all", linger_ms=100) as producer:
        for number in range(FILLING):
            await producer.send(topic, key=b"key-%d" % number, value=b"v")
        await producer.flush()


async def timed_resize(admin: Admin, topic: str, count: int) -> float:
    """Resize the topic. Returns the seconds until the count is in force, without the drain of marked partitions."""
    began = time.perf_counter()
    await admin.create_partitions({topic: count})
    await wait_until_resized(admin, topic, count, int(SETTLE_DEADLINE_S * 1000))
    return time.perf_counter() - began


async def measure_wide(arguments: argparse.Namespace) -> dict[str, float]:
    """Resize ``--records`` times between the topic's count and ``WIDE``. Grows after the first revive partitions."""
    took: list[float] = []
    async with Admin(bootstrap_servers=arguments.bootstrap, request_timeout_ms=120_000) as admin:
        for number in range(arguments.records):
            took.append(await timed_resize(admin, arguments.topic, arguments.partitions if number % 2 else WIDE))
            if number == 0:
                await fill(arguments, arguments.topic)
        partitions = len((await admin.describe_topics([arguments.topic]))[arguments.topic].partitions)
    if partitions != WIDE:
        raise SystemExit(f"{WIDE - partitions} partitions were removed in between")
    return {
        "wide_first_grow_s": took[0],
        "wide_shrink_s": statistics.median(took[1::2]),
        "wide_revival_s": statistics.median(took[2::2]),
    }


async def measure_while_draining(arguments: argparse.Namespace) -> dict[str, float]:
    """Double two topics ``--records`` times each: one with nearly ``WIDE`` draining partitions, one with few."""
    wide, narrow, initial = arguments.topic, f"{arguments.topic}-narrow", arguments.partitions
    took: dict[str, list[float]] = {wide: [], narrow: []}
    async with Admin(bootstrap_servers=arguments.bootstrap, request_timeout_ms=120_000) as admin:
        await admin.create_topics([NewTopic(narrow, initial, 3)])
        for topic, count in ((wide, WIDE), (narrow, 2 * initial)):
            await timed_resize(admin, topic, count)
            await fill(arguments, topic)
            await timed_resize(admin, topic, initial)
        for _ in range(arguments.records):
            for topic, times in took.items():
                times.append(await timed_resize(admin, topic, 2 * initial))
                await timed_resize(admin, topic, initial)
        await admin.delete_topics([narrow])
    draining_s, alone_s = (statistics.median(times) for times in took.values())
    return {"grow_while_draining_s": draining_s, "grow_alone_s": alone_s}


LOADS = {
    "resize-hand-over": measure_hand_over,
    "resize-throughput": partial(measure_throughput, share=0.5),
    "resize-throughput-saturated": measure_throughput,
    "resize-thousand": measure_doubling,
    "resize-wide": measure_wide,
    "resize-while-draining": measure_while_draining,
}
