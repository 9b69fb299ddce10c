"""The demo's producer and consumer processes.

Each process gets its task as arguments, logs its work as tab-separated lines in a file, and reports its progress as one
JSON object per line on stdout.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TextIO

import anyio

from anabranch import Consumer, ConsumerRecord, Producer, TopicPartition
from anabranch.demo.events import event_of, share_of
from anabranch.demo.states import KeyStates, StateStore

REPORT_EVERY_S = 0.1
MAX_UNCONFIRMED = 4_000
LINGER_MS = 100
"""Every batch wakes three brokers and two consumers. With 20 ms two cores are full, and hand-overs wait for a core.

The median duration of hand-overs is lower with 100 ms than with 60 ms; 150 and 200 ms do not lower it further.
"""
AHEAD_S = 0.01
BEHIND_S = 0.1
POLL_MS = 200
SAVE_EVERY_S = 0.05
"""The interval at which a consumer saves its changes. When keys move, few changes are left to save."""


class Reporter:
    """Writes progress to stdout, at most every ``REPORT_EVERY_S`` seconds unless forced."""

    def __init__(self) -> None:
        self._last = 0.0

    def __call__(self, *, force: bool = False, **fields: Any) -> None:
        now = time.monotonic()
        if force or now - self._last >= REPORT_EVERY_S:
            self._last = now
            sys.stdout.write(json.dumps(fields) + "\n")
            sys.stdout.flush()


class Pace:
    """The schedule of the events, at ``rate`` events a second; times are seconds of one monotonic clock.

    After a pause, a burst makes up for at most ``BEHIND_S``. The rest of the pause delays all later events.
    """

    def __init__(self, rate: float, started: float) -> None:
        self._rate = rate
        self._started = started

    def early_s(self, sequence: int, now: float) -> float:
        """Seconds until the event is due; at most 0 when it is due now."""
        due = self._started + sequence / self._rate
        if now - due > BEHIND_S:
            self._started += now - due - BEHIND_S
        return due - now


async def produce(arguments: argparse.Namespace) -> None:
    """Send this producer's share of the events to every topic, at an even pace, and record the acknowledged places.

    The same producer writes to all topics, so all topics get the same events at the same time. Each line on stdin is
    the sequence of the last event to send; then the producer waits for the next line.
    """
    report = Reporter()
    confirmed, paused_s = 0, 0.0
    waiting: deque[tuple[str, int, Any]] = deque()
    with open(arguments.out, "w", encoding="utf-8") as out:

        async def confirm_first() -> None:
            nonlocal confirmed
            topic, sequence, handle = waiting.popleft()
            metadata = await handle
            out.write(f"{topic}\t{sequence}\t{metadata.partition}\t{metadata.offset}\n")
            confirmed += 1
            report(count=confirmed)

        async with Producer(bootstrap_servers=arguments.bootstrap, linger_ms=LINGER_MS) as producer:
            until = await _next_limit(0)
            pace = Pace(arguments.rate, time.monotonic())
            for event in share_of(arguments.index, arguments.count, arguments.events):
                while event.sequence > until:
                    while waiting:
                        await confirm_first()
                    report(force=True, count=confirmed)
                    paused_since = time.monotonic()
                    until = await _next_limit(event.sequence)
                    paused_s += time.monotonic() - paused_since
                early_s = pace.early_s(event.sequence, time.monotonic())
                if early_s > AHEAD_S:
                    await anyio.sleep(early_s)
                for topic in arguments.topic:
                    handle = await producer.send(topic, key=event.key, value=event.value)
                    waiting.append((topic, event.sequence, handle))
                while waiting and (len(waiting) > MAX_UNCONFIRMED or waiting[0][2].done()):
                    await confirm_first()
                report(count=confirmed)
            while waiting:
                await confirm_first()
    report(force=True, count=confirmed, paused_s=paused_s)


async def _next_limit(sequence: int) -> int:
    """The sequence of the last event to send, from stdin. Exits when stdin is closed, because the demo has ended."""
    line = await anyio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
    if not line:
        raise SystemExit(f"stdin was closed at event {sequence}")
    return int(line)


class Recorder:
    """Applies records to this consumer's states, and logs each record and flush with its time."""

    def __init__(self, states: KeyStates, out: TextIO) -> None:
        self._states = states
        self._out = out
        # Brokers stamp records by the wall clock; all other times here are of the monotonic clock.
        self._wall_ahead_ns = time.time_ns() - time.monotonic_ns()
        self._seen: set[int] = set()

    @property
    def count(self) -> int:
        """The number of different events so far."""
        return len(self._seen)

    def process(self, record: ConsumerRecord) -> None:
        event = event_of(record.key or b"", record.value or b"")
        known = self._states.apply(record.partition, event)
        appended_ns = record.timestamp * 1_000_000 - self._wall_ahead_ns
        fields = (time.monotonic_ns(), record.partition, record.offset, event.sequence, event.unix_time, event.path)
        self._out.write("r\t" + "\t".join(map(str, (*fields, event.change, known, appended_ns))) + "\n")
        self._seen.add(event.sequence)

    def save(self, partitions: Iterable[TopicPartition]) -> None:
        """The flush callback: keys of these partitions may go to other partitions or members."""
        begun_ns = time.monotonic_ns()
        numbers = [tp.partition for tp in partitions]
        self._states.flush(numbers)
        self._out.write(f"f\t{begun_ns}\t{time.monotonic_ns()}\t{','.join(map(str, numbers))}\n")

    def load(self, partitions: Iterable[TopicPartition]) -> None:
        """The load callback: keys of other owners may have moved to these partitions."""
        self._states.reload(tp.partition for tp in partitions)


class OwnershipListener:
    """The callbacks for rebalances, which any Kafka consumer has."""

    def __init__(self, recorder: Recorder) -> None:
        self.on_partitions_revoked = recorder.save
        self.on_partitions_assigned = recorder.load


class KeyListener:
    """The further callbacks of ordered resizes, for keys that move between partitions."""

    def __init__(self, recorder: Recorder) -> None:
        self.on_partition_key_maybe_revoked = recorder.save
        self.on_partition_key_assigned = recorder.load


async def consume(arguments: argparse.Namespace) -> None:
    """Read as a member of the group until stdin closes, and keep a state per key."""
    (topic,) = arguments.topic
    report = Reporter()
    store = StateStore(Path(arguments.states))
    states = KeyStates(store)
    async with anyio.create_task_group() as tasks:
        with open(arguments.out, "w", encoding="utf-8") as out:
            recorder = Recorder(states, out)
            async with Consumer(
                bootstrap_servers=arguments.bootstrap,
                group_id=arguments.group,
                auto_offset_reset="earliest",
                client_id=f"{arguments.group}-{arguments.index}",
                partition_assignment_strategy=["cooperative-sticky"],
            ) as consumer:
                consumer.subscribe(
                    [topic], listener=OwnershipListener(recorder), partition_key_listener=KeyListener(recorder)
                )
                with anyio.CancelScope() as reading:
                    tasks.start_soon(_cancel_when_stdin_closes, reading)
                    await _read(consumer, recorder, states, out, report)
    states.flush_all()
    store.close()


async def _read(consumer: Consumer, recorder: Recorder, states: KeyStates, out: TextIO, report: Reporter) -> None:
    saved = time.monotonic()
    while True:
        batches = await consumer.getmany(timeout_ms=POLL_MS)
        for records in batches.values():
            for record in records:
                recorder.process(record)
        if time.monotonic() - saved >= SAVE_EVERY_S:
            states.flush_all()
            saved = time.monotonic()
        out.flush()
        blocked = sorted({blocked.partition.partition for blocked in consumer.explain_blocked()})
        assigned = sorted(tp.partition for tp in consumer.assignment())
        report(count=recorder.count, assigned=assigned, blocked=blocked)


async def _cancel_when_stdin_closes(scope: anyio.CancelScope) -> None:
    await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description="one producer or consumer of the demo")
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, action="append")
    parser.add_argument("--out", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, default=1, help="how many producers share the events")
    parser.add_argument("--group", default="")
    parser.add_argument("--states", default="", help="the database that the group's consumers share")
    parser.add_argument("--events", type=int, default=None)
    parser.add_argument("--nice", type=int, default=0, help="how far the process's priority is lowered")
    parser.add_argument("--rate", type=float, default=1e9, help="events a second, of all producers together")
    arguments = parser.parse_args()
    os.nice(arguments.nice)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(message)s", datefmt="%H:%M:%S")
    anyio.run({"produce": produce, "consume": consume}[arguments.role], arguments)


if __name__ == "__main__":
    main()
