"""A stock producer of one Python library at full speed, in a process of its own, until its standard input ends.

    python -m tests.interop.flood LIBRARY BOOTSTRAP TOPIC MODE

MODE is ``idempotent`` or ``plain``. Round after round each of ``KEYS`` keys, ``MODE-0`` and so on, gets a record whose
value is the number of the round. The program prints ``partition N`` at the first acknowledgement in each partition. At
the end it prints a report as JSON:

- ``rounds``: the number of rounds;
- ``refused``: ``{key: {round: error}}``;
- ``pauses_ms``: the longest time between two acknowledgements of one key. The first value is for the time up to the
  first line of the standard input, the second value for the time up to the next line, and so on.

The programs in ``java`` and ``go`` do the same.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from typing import Any

KEYS = 32
MAX_OUTSTANDING = 2_000
FLUSH_S = 60.0


class Tally:
    """The outcomes of the records."""

    def __init__(self, mode: str) -> None:
        self.keys = [f"{mode}-{number}" for number in range(KEYS)]
        self.rounds = 0
        self.outstanding = 0
        self.stopped = threading.Event()
        self._refused: dict[str, dict[int, str]] = {}
        self._acknowledged_at: dict[str, float] = {}
        self._pauses_s = [0.0]
        self._partitions: set[int] = set()
        self._room = threading.Condition()
        threading.Thread(target=self._wait_for_end, daemon=True).start()

    def _wait_for_end(self) -> None:
        for _ in sys.stdin:
            with self._room:
                self._pauses_s.append(0.0)
        self.stopped.set()
        with self._room:
            self._room.notify_all()

    def reserve(self) -> None:
        """Wait until fewer than ``MAX_OUTSTANDING`` records are unresolved, and count one more."""
        with self._room:
            while self.outstanding >= MAX_OUTSTANDING:
                self._room.wait()
            self.outstanding += 1

    def settle(self, key: str, number: int, error: str | None, partition: int = -1) -> None:
        now = time.monotonic()
        with self._room:
            self.outstanding -= 1
            self._room.notify_all()
            if error is not None:
                self._refused.setdefault(key, {})[number] = error
                return
            self._pauses_s[-1] = max(self._pauses_s[-1], now - self._acknowledged_at.get(key, now))
            self._acknowledged_at[key] = now
            if partition not in self._partitions:
                self._partitions.add(partition)
                print(f"partition {partition}", flush=True)

    def report(self) -> None:
        pauses_ms = [round(pause_s * 1000) for pause_s in self._pauses_s]
        print(json.dumps({"rounds": self.rounds, "refused": self._refused, "pauses_ms": pauses_ms}), flush=True)


def librdkafka(bootstrap: str, topic: str, tally: Tally, *, idempotent: bool) -> None:
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "partitioner": "murmur2_random",
            "enable.idempotence": idempotent,
            "linger.ms": 5,
            "log_level": 0,
        }
    )
    while not tally.stopped.is_set():
        for key in tally.keys:
            number = tally.rounds

            def delivered(error: Any, message: Any, key: str = key, number: int = number) -> None:
                tally.settle(key, number, None if error is None else str(error.name()), message.partition())

            while tally.outstanding >= MAX_OUTSTANDING:
                producer.poll(0.01)
            tally.reserve()
            producer.produce(topic, b"%d" % number, key.encode(), on_delivery=delivered)
        producer.poll(0)
        tally.rounds += 1
    producer.flush(FLUSH_S)


def kafka_python(bootstrap: str, topic: str, tally: Tally, *, idempotent: bool) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=bootstrap.split(","), acks="all", enable_idempotence=idempotent, linger_ms=5
    )
    while not tally.stopped.is_set():
        for key in tally.keys:
            tally.reserve()
            number = tally.rounds
            try:
                sent = producer.send(topic, key=key.encode(), value=b"%d" % number)
            except Exception as error:  # after a fatal error every later record fails in this way
                tally.settle(key, number, type(error).__name__)
                continue
            sent.add_callback(lambda to, key=key, number=number: tally.settle(key, number, None, to.partition))
            sent.add_errback(lambda error, key=key, number=number: tally.settle(key, number, type(error).__name__))
        tally.rounds += 1
    producer.flush(FLUSH_S)
    producer.close(FLUSH_S)


def aiokafka(bootstrap: str, topic: str, tally: Tally, *, idempotent: bool) -> None:
    from aiokafka import AIOKafkaProducer

    async def run() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=idempotent)
        await producer.start()

        def settled(sent: Any, key: str, number: int) -> None:
            if (error := sent.exception()) is not None:
                tally.settle(key, number, type(error).__name__)
            else:
                tally.settle(key, number, None, sent.result().partition)

        while not tally.stopped.is_set():
            for key in tally.keys:
                while tally.outstanding >= MAX_OUTSTANDING:
                    await asyncio.sleep(0)  # pause: lets the task of the producer run
                tally.reserve()
                sent = await producer.send(topic, key=key.encode(), value=b"%d" % tally.rounds)
                sent.add_done_callback(lambda sent, key=key, number=tally.rounds: settled(sent, key, number))
            tally.rounds += 1
            await asyncio.sleep(0)  # pause: lets the task of the producer run
        await producer.flush()
        await producer.stop()

    asyncio.run(run())


LIBRARIES = {"librdkafka": librdkafka, "kafka-python": kafka_python, "aiokafka": aiokafka}


def main(library: str, bootstrap: str, topic: str, mode: str) -> None:
    tally = Tally(mode)
    LIBRARIES[library](bootstrap, topic, tally, idempotent=mode == "idempotent")
    tally.report()


if __name__ == "__main__":
    main(*sys.argv[1:])
