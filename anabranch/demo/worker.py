"""The demo's producer and consumer processes.

Each is told what to do in its arguments, writes what it did to a file of tab-separated lines, and reports progress as
one JSON object a line on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from typing import Any

import anyio

from anabranch import Consumer, Producer
from anabranch.demo.events import Event, event_of, share_of

REPORT_EVERY_S = 0.1
MAX_UNCONFIRMED = 2_000


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


async def produce(arguments: argparse.Namespace) -> None:
    """Send this producer's share of the events and record where each was acknowledged."""
    report = Reporter()
    confirmed = 0
    waiting: deque[tuple[Event, Any]] = deque()
    with open(arguments.out, "w", encoding="utf-8") as out:

        async def confirm_first() -> None:
            event, handle = waiting.popleft()
            metadata = await handle
            out.write(f"{event.sequence}\t{metadata.partition}\t{metadata.offset}\n")

        async with Producer(bootstrap_servers=arguments.bootstrap, linger_ms=5) as producer:
            for event in share_of(arguments.index, arguments.count, arguments.events):
                timestamp_ms = event.unix_time * 1000
                handle = await producer.send(
                    arguments.topic, key=event.key, value=event.value, timestamp_ms=timestamp_ms
                )
                waiting.append((event, handle))
                if len(waiting) > MAX_UNCONFIRMED:
                    await confirm_first()
                    confirmed += 1
                    report(count=confirmed)
            while waiting:
                await confirm_first()
                confirmed += 1
                report(count=confirmed)
    report(force=True, count=confirmed, done=True)


async def consume(arguments: argparse.Namespace) -> None:
    """Read as a member of the group until stdin closes, recording every record in the order it was processed."""
    report = Reporter()
    count = 0

    def assigned(partitions: Any) -> None:
        report(force=True, count=count, assigned=sorted(partition.partition for partition in partitions))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_cancel_when_stdin_closes, tasks.cancel_scope)
        with open(arguments.out, "w", encoding="utf-8") as out:
            async with Consumer(
                bootstrap_servers=arguments.bootstrap,
                group_id=arguments.group,
                auto_offset_reset="earliest",
                client_id=f"consumer-{arguments.index}",
            ) as consumer:
                consumer.subscribe([arguments.topic], listener=_Listener(assigned))
                while True:
                    batches = await consumer.getmany(timeout_ms=200)
                    for records in batches.values():
                        for record in records:
                            event = event_of(record.key or b"", record.value or b"")
                            place = f"{time.monotonic_ns()}\t{record.partition}\t{record.offset}"
                            out.write(f"{place}\t{event.sequence}\t{event.unix_time}\t{event.path}\t{event.change}\n")
                        count += len(records)
                    out.flush()
                    report(count=count)


class _Listener:
    """Tells when partitions are assigned; offsets are committed by the consumer itself before it gives any up."""

    def __init__(self, assigned: Any) -> None:
        self.on_partitions_assigned = assigned

    def on_partitions_revoked(self, partitions: Any) -> None:
        return None


async def _cancel_when_stdin_closes(scope: anyio.CancelScope) -> None:
    await anyio.to_thread.run_sync(sys.stdin.read, abandon_on_cancel=True)
    scope.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description="one producer or consumer of the demo")
    parser.add_argument("role", choices=["produce", "consume"])
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--index", type=int, required=True)
    parser.add_argument("--count", type=int, default=1)
    parser.add_argument("--group", default="")
    parser.add_argument("--events", type=int, default=None)
    arguments = parser.parse_args()
    anyio.run({"produce": produce, "consume": consume}[arguments.role], arguments)


if __name__ == "__main__":
    main()
