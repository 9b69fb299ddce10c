"""The blocking client beside kafka-python and confluent-kafka: ``python -m bench.blocking``.

Each run is a process of its own, and the clients take turns within a round, on one broker. A run has records/s and the
CPU time of the client's process. ``iterate`` reads records of 100 bytes one by one, ``send`` sends them one by one,
``send_many`` sends them in one call. kafka-python has no such call, so its ``send`` stands beside it. ``compiled`` is
our client from a compiled wheel. The last column is the p99 of the delay with which a timer of 1 ms fires in another
thread of the program. It is from further runs, because a timer costs CPU time too. The line below the table has the
same number of a program without a client, for the machine alone.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.compiled import NotCompiled, client_environment, install_compiled

TOPIC = "blocking"
VALUE = b"x" * 100
KEYS = [b"k%d" % number for number in range(100)]
RECORDS = {"iterate": 200_000, "send": 60_000, "send_many": 100_000}
PARTITIONS = 4
LINGER_MS = 5
DEADLINE_S = 600
OURS, COMPILED, KAFKA_PYTHON, CONFLUENT = "ours", "compiled", "kafka-python", "confluent"
NO_CLIENT = "no client"
IDLE_S = 5
CLIENTS = {
    "iterate": (OURS, COMPILED, KAFKA_PYTHON, CONFLUENT),
    "send": (OURS, COMPILED, KAFKA_PYTHON, CONFLUENT),
    "send_many": (OURS, COMPILED, KAFKA_PYTHON),
}


class Cost(NamedTuple):
    """The time and the CPU time of all threads of the process, in seconds."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), time.process_time())

    def since(self) -> Cost:
        return Cost(time.perf_counter() - self.wall_s, time.process_time() - self.cpu_s)


def iterate_ours(bootstrap: str, count: int) -> Cost:
    from anabranch.sync import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None) as consumer:
        consumer.subscribe([TOPIC])
        return timed(iter(consumer), count)


def timed(records: Iterator[object], count: int) -> Cost:
    next(records)
    began = Cost.now()
    for _ in range(count):
        next(records)
    return began.since()


def iterate_kafka_python(bootstrap: str, count: int) -> Cost:
    import kafka

    consumer = kafka.KafkaConsumer(TOPIC, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None)
    try:
        return timed(iter(consumer), count)
    finally:
        consumer.close()


def iterate_confluent(bootstrap: str, count: int) -> Cost:
    import confluent_kafka

    settings = {"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest", "group.id": f"bench-{os.getpid()}"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe([TOPIC])
    try:
        return timed(iter(lambda: consumer.poll(1.0), consumer), count)
    finally:
        consumer.close()


def send_ours(bootstrap: str, count: int) -> Cost:
    from anabranch.sync import Producer

    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        producer.send_and_wait(TOPIC, VALUE, KEYS[0])
        began = Cost.now()
        for number in range(count):
            producer.send(TOPIC, VALUE, KEYS[number % 100])
        producer.flush()
        return began.since()


def send_many_ours(bootstrap: str, count: int) -> Cost:
    from anabranch.sync import Producer

    pairs = [(KEYS[number % 100], VALUE) for number in range(count)]
    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        producer.send_and_wait(TOPIC, VALUE, KEYS[0])
        began = Cost.now()
        assert len(producer.send_many(TOPIC, pairs)) == count
        return began.since()


def send_kafka_python(bootstrap: str, count: int) -> Cost:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS)
    try:
        producer.send(TOPIC, VALUE, KEYS[0]).get(30)
        began = Cost.now()
        for number in range(count):
            producer.send(TOPIC, VALUE, KEYS[number % 100])
        producer.flush()
        return began.since()
    finally:
        producer.close()


def send_confluent(bootstrap: str, count: int) -> Cost:
    import confluent_kafka

    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "linger.ms": LINGER_MS})
    producer.produce(TOPIC, VALUE, KEYS[0])
    producer.flush()
    began = Cost.now()
    for number in range(count):
        while True:
            try:
                producer.produce(TOPIC, VALUE, KEYS[number % 100])
                break
            except BufferError:
                producer.poll(0.01)
    producer.flush()
    return began.since()


def idle(_bootstrap: str, seconds: int) -> Cost:
    began = Cost.now()
    time.sleep(seconds)
    return began.since()


RUNS: dict[tuple[str, str], Callable[[str, int], Cost]] = {
    ("iterate", OURS): iterate_ours,
    ("iterate", KAFKA_PYTHON): iterate_kafka_python,
    ("iterate", CONFLUENT): iterate_confluent,
    ("send", OURS): send_ours,
    ("send", KAFKA_PYTHON): send_kafka_python,
    ("send", CONFLUENT): send_confluent,
    ("send_many", OURS): send_many_ours,
    ("send_many", KAFKA_PYTHON): send_kafka_python,
    ("idle", NO_CLIENT): idle,
}


@contextmanager
def timer(late_ms: list[float]) -> Iterator[None]:
    """A thread that sleeps for 1 ms at a time and notes how late it wakes."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            late_ms.append((time.perf_counter() - began) * 1000 - 1)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def one_run(workload: str, client: str, bootstrap: str, count: int, with_timer: bool) -> dict[str, float]:
    late_ms: list[float] = []
    run = RUNS[workload, OURS if client == COMPILED else client]
    if with_timer:
        with timer(late_ms):
            run(bootstrap, count)
        return {"timer_p99_ms": statistics.quantiles(late_ms, n=100)[98]}
    cost = run(bootstrap, count)
    return {"rate": count / cost.wall_s, "cpu_us": cost.cpu_s / count * 1e6}


def in_process(arguments: list[str], environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, "-P", str(Path(__file__).resolve()), *arguments]
    root = str(Path(__file__).resolve().parents[1])
    paths = os.pathsep.join(filter(None, (environment.get("PYTHONPATH"), root)))
    done = subprocess.run(
        command,
        env={**environment, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(bootstrap: str, rounds: int, scale: float, only: list[str]) -> None:
    samples: dict[tuple[str, str], list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as directory:
        site: Path | None = Path(directory)
        try:
            install_compiled(Path(directory))
        except NotCompiled as reason:
            site = None
            print(f"without compiled runs: {reason}")
        send_ours(bootstrap, int(RECORDS["iterate"] * scale) + 1)
        for number in range(rounds + 1):
            for workload in only or CLIENTS:
                for client in CLIENTS[workload]:
                    if client == COMPILED and site is None:
                        continue
                    environment = client_environment(site if client == COMPILED else None)
                    arguments = ["--run", workload, client, bootstrap, str(int(RECORDS[workload] * scale))]
                    with_timer = number == rounds
                    found = in_process([*arguments, *(["--timer"] if with_timer else [])], environment)
                    samples.setdefault((workload, client), []).append(found)
    control = in_process(["--run", "idle", NO_CLIENT, bootstrap, str(IDLE_S), "--timer"], client_environment(None))
    loads = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(f"load of the machine: {loads}, {os.cpu_count()} processors")
    heads = ("workload", "client", "records/s", "of kafka-python", "CPU us per record", "timer p99 ms")
    print(f"| {' | '.join(heads)} |")
    print("|---" * len(heads) + "|")
    for (workload, client), found in samples.items():
        rate = statistics.median(sample["rate"] for sample in found[:-1])
        others = samples[workload, KAFKA_PYTHON]
        ratio = statistics.median(a["rate"] / b["rate"] for a, b in zip(found[:-1], others[:-1], strict=True))
        cpu_us = statistics.median(sample["cpu_us"] for sample in found[:-1])
        late = found[-1]["timer_p99_ms"]
        print(f"| {workload} | {client} | {rate:,.0f} | {ratio:.1f} | {cpu_us:.1f} | {late:.1f} |")
    print(f"timer p99 without a client: {control['timer_p99_ms']:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--only", nargs="*", choices=list(CLIENTS), default=[])
    parser.add_argument("--bootstrap", help="the address of a cluster; without it, one broker is started")
    parser.add_argument("--run", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--timer", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        workload, client, bootstrap, count = arguments.run
        print(json.dumps(one_run(workload, client, bootstrap, int(count), arguments.timer)))
    elif arguments.bootstrap:
        measure(arguments.bootstrap, arguments.rounds, arguments.scale, arguments.only)
    else:
        from anabranch import NewTopic
        from anabranch.sync import Admin
        from anabranch.testing.processes import ProcessCluster

        with ProcessCluster(brokers=1) as cluster:
            with Admin(bootstrap_servers=cluster.bootstrap) as admin:
                admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])
            measure(cluster.bootstrap, arguments.rounds, arguments.scale, arguments.only)


if __name__ == "__main__":
    main()
