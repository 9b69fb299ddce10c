"""A worker that tries a record again, and then writes it to a dead letter topic: ``python examples/retry_worker.py``.

Records are committed after they were processed or were written to the dead letter topic. After a crash some are
processed again, so ``process`` has to bear that. While a record is tried again, the records behind it wait: the
order of its key is kept. Ctrl-C commits, leaves the group and ends.
"""

import contextlib
import json
import os
from typing import Any

import anyio

from anabranch import Consumer, ConsumerRecord, Producer

SERVERS = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")
TOPIC, DEAD_LETTERS, GROUP = "orders", "orders-dead-letters", "order-workers"
ATTEMPTS, FIRST_PAUSE_S = 3, 0.2
"""The pauses together stay far below ``max_poll_interval_ms``: else the group would go on without this worker."""


async def process(order: dict[str, Any]) -> None:
    """Stands for the work: an order without a price fails."""
    print("processed order", order["number"], "at", order["price"], flush=True)


async def process_or_give_up(record: ConsumerRecord[bytes, bytes], producer: Producer[Any, Any]) -> None:
    pause_s, error = FIRST_PAUSE_S, Exception()
    for attempt in range(ATTEMPTS):
        if attempt:
            await anyio.sleep(pause_s)
            pause_s *= 2
        try:
            return await process(json.loads(record.value))
        except Exception as failed:  # whatever the work raises
            error = failed
    place = f"{record.topic}-{record.partition}@{record.offset}"
    headers = [*record.headers, ("failed-at", place.encode()), ("error", repr(error).encode())]
    await producer.send_and_wait(DEAD_LETTERS, key=record.key, value=record.value, headers=headers)
    print("gave up", place, repr(error), flush=True)


async def main() -> None:
    async with (
        Producer(bootstrap_servers=SERVERS) as producer,
        Consumer(
            bootstrap_servers=SERVERS, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
        ) as consumer,
    ):
        consumer.subscribe([TOPIC])
        while True:
            for records in (await consumer.getmany(timeout_ms=1_000, max_records=50)).values():
                for record in records:
                    await process_or_give_up(record, producer)
            await consumer.commit()


with contextlib.suppress(KeyboardInterrupt):
    anyio.run(main)
