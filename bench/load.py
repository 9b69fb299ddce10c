"""One load in one client process: ``python -m bench.load KIND --bootstrap ... `` prints one JSON line.

Every line has ``records`` and ``seconds``. The line of a latency load also has ``p50_ms`` and ``p99_ms``. The line of a
fetch also has ``first_records_ms``, the time from the assignment to the first records. ``seconds`` does not include
that time, the set-up, or the client's own warm-up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import time
from collections.abc import Callable
from typing import Any

import anyio

from bench import order_load, resize_load

WARM_UP_RECORDS = 2_000
PRODUCE_TIMEOUT_S = 120.0
BATCH_BYTES = 256 * 1024
LINGER_MS = 5


def values(size: int, count: int = 512) -> list[bytes]:
    """Random values, so that the content favours neither side."""
    return [os.urandom(size) for _ in range(count)]


def result(records: int, seconds: float, **more: float) -> dict[str, float]:
    return {"records": records, "seconds": seconds, **more}


def percentile(sorted_values: list[float], share: float) -> float:
    return sorted_values[min(len(sorted_values) - 1, int(share * len(sorted_values)))]


# ---------------------------------------------------------------- confluent-kafka (librdkafka)


def confluent_producer(arguments: argparse.Namespace, **overrides: Any) -> Any:
    from confluent_kafka import Producer

    return Producer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "acks": "all",
            "linger.ms": LINGER_MS,
            "batch.size": BATCH_BYTES,
            "queue.buffering.max.messages": 500_000,
            "partitioner": "murmur2_random",
            **overrides,
        }
    )


def confluent_produce(arguments: argparse.Namespace, *, idempotent: bool = False) -> dict[str, float]:
    """Produce as fast as librdkafka can, over all partitions or by key; the time ends with the last acknowledgement."""
    producer = confluent_producer(arguments, **{"enable.idempotence": idempotent})
    payload = values(arguments.size)
    keys = [b"key-%d" % number for number in range(arguments.keys)]
    partitions, failures = arguments.partitions, []

    def sent(error: Any, _message: Any) -> None:
        if error is not None:
            failures.append(error)

    def send(count: int) -> None:
        for number in range(count):
            while True:
                try:
                    where = {"key": keys[number % len(keys)]} if keys else {"partition": number // 64 % partitions}
                    producer.produce(arguments.topic, payload[number & 511], on_delivery=sent, **where)
                    break
                except BufferError:
                    producer.poll(0.01)
            if number & 1023 == 0:
                producer.poll(0)
        if producer.flush(PRODUCE_TIMEOUT_S) or failures:
            raise SystemExit(f"produce failed: {failures[:1] or 'timed out'}")

    send(WARM_UP_RECORDS)
    started = time.perf_counter()
    send(arguments.records)
    return result(arguments.records, time.perf_counter() - started)


def confluent_fetch(arguments: argparse.Namespace) -> dict[str, float]:
    """Read ``records`` from the start of every partition, without a group."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": arguments.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "fetch.max.bytes": 52_428_800,
            "max.partition.fetch.bytes": 1_048_576,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    consumer.assign([TopicPartition(arguments.topic, p, OFFSET_BEGINNING) for p in range(arguments.partitions)])
    seen, started, assigned = 0, 0.0, time.perf_counter()
    deadline = assigned + PRODUCE_TIMEOUT_S
    while seen < arguments.records and time.perf_counter() < deadline:
        messages = consumer.consume(min(10_000, arguments.records - seen), timeout=1.0)
        if not started and messages:
            started = time.perf_counter()
            continue
        seen += len(messages) if started else 0
        if started and not messages:
            break
    seconds = time.perf_counter() - started
    consumer.close()
    return result(seen, seconds, first_records_ms=(started - assigned) * 1000)


def confluent_latency(arguments: argparse.Namespace) -> dict[str, float]:
    """Send one record at a time, and wait for its acknowledgement."""
    producer = confluent_producer(arguments, **{"linger.ms": 0, "socket.nagle.disable": True})
    payload = values(arguments.size)
    taken = []
    for number in range(arguments.records + 200):
        started = time.perf_counter()
        producer.produce(arguments.topic, payload[number & 511], partition=number % arguments.partitions)
        producer.flush(PRODUCE_TIMEOUT_S)
        if number >= 200:
            taken.append((time.perf_counter() - started) * 1000)
    taken.sort()
    return result(len(taken), sum(taken) / 1000, p50_ms=percentile(taken, 0.5), p99_ms=percentile(taken, 0.99))


# ---------------------------------------------------------------- aiokafka and anabranch, which share their interface


async def send_all(producer: Any, topic: str, payload: list[bytes], count: int, partitions: int) -> None:
    """Send ``count`` records and wait for all acknowledgements; the number of unconfirmed records is limited."""
    waiting: list[Any] = []
    for number in range(count):
        partition = number // 64 % partitions
        waiting.append(await producer.send(topic, value=payload[number & 511], partition=partition))
        if len(waiting) >= 50_000:
            for handle in waiting:
                await handle
            waiting.clear()
    for handle in waiting:
        await handle


async def timed_produce(producer: Any, arguments: argparse.Namespace) -> dict[str, float]:
    payload = values(arguments.size)
    await send_all(producer, arguments.topic, payload, WARM_UP_RECORDS, arguments.partitions)
    started = time.perf_counter()
    await send_all(producer, arguments.topic, payload, arguments.records, arguments.partitions)
    return result(arguments.records, time.perf_counter() - started)


async def timed_fetch(consumer: Any, wanted: int) -> dict[str, float]:
    """Poll until ``wanted`` records are read, and touch each value as an application would.

    The rate begins after the first records; ``first_records_ms`` is the time until then.
    """
    seen, size, started, assigned = 0, 0, 0.0, time.perf_counter()
    while seen < wanted:
        batches = await consumer.getmany(timeout_ms=2000)
        if not batches and (started or time.perf_counter() - assigned > PRODUCE_TIMEOUT_S):
            break
        if not started:
            started = time.perf_counter() if batches else 0.0
            continue
        for records in batches.values():
            for record in records:
                size += len(record.value)
            seen += len(records)
    return result(seen, time.perf_counter() - started, value_bytes=size, first_records_ms=(started - assigned) * 1000)


async def aiokafka_produce(arguments: argparse.Namespace) -> dict[str, float]:
    from aiokafka import AIOKafkaProducer

    producer = AIOKafkaProducer(
        bootstrap_servers=arguments.bootstrap, acks="all", linger_ms=LINGER_MS, max_batch_size=BATCH_BYTES
    )
    await producer.start()
    try:
        return await timed_produce(producer, arguments)
    finally:
        await producer.stop()


async def aiokafka_fetch(arguments: argparse.Namespace) -> dict[str, float]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    consumer = AIOKafkaConsumer(
        bootstrap_servers=arguments.bootstrap, enable_auto_commit=False, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(arguments.topic, number) for number in range(arguments.partitions)]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        return await timed_fetch(consumer, arguments.records)
    finally:
        await consumer.stop()


async def anabranch_produce(arguments: argparse.Namespace) -> dict[str, float]:
    from anabranch import Producer

    async with Producer(
        bootstrap_servers=arguments.bootstrap, acks="all", linger_ms=LINGER_MS, batch_size=BATCH_BYTES
    ) as producer:
        return await timed_produce(producer, arguments)


async def anabranch_fetch(arguments: argparse.Namespace) -> dict[str, float]:
    from anabranch import Consumer, TopicPartition

    async with Consumer(
        bootstrap_servers=arguments.bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_poll_records=10_000,
    ) as consumer:
        consumer.assign([TopicPartition(arguments.topic, number) for number in range(arguments.partitions)])
        return await timed_fetch(consumer, arguments.records)


LOADS: dict[str, Callable[[argparse.Namespace], Any]] = {
    "confluent-produce": confluent_produce,
    "confluent-idempotent": lambda arguments: confluent_produce(arguments, idempotent=True),
    "confluent-fetch": confluent_fetch,
    "confluent-latency": confluent_latency,
    "aiokafka-produce": lambda arguments: asyncio.run(aiokafka_produce(arguments)),
    "aiokafka-fetch": lambda arguments: asyncio.run(aiokafka_fetch(arguments)),
    "anabranch-produce": lambda arguments: anyio.run(anabranch_produce, arguments),
    "anabranch-fetch": lambda arguments: anyio.run(anabranch_fetch, arguments),
    **{
        kind: lambda arguments, run=run: anyio.run(run, arguments)
        for kind, run in (order_load.LOADS | resize_load.LOADS).items()
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description="one load against one cluster")
    parser.add_argument("kind", choices=sorted(LOADS))
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--partitions", type=int, required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--size", type=int, required=True, help="bytes of each value")
    parser.add_argument("--keys", type=int, default=0, help="how many keys the records have; 0: none, by partition")
    parser.add_argument("--pids", type=int, nargs="*", default=[], help="pids of the brokers, whose CPU is counted")
    arguments = parser.parse_args()
    print(json.dumps(LOADS[arguments.kind](arguments)))


if __name__ == "__main__":
    main()
