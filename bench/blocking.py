"""The blocking client beside kafka-python and confluent-kafka: ``python -m bench.blocking``.

Each run is a process of its own, and the clients take turns within a round, on one broker. A run has records/s and the
CPU time of the client's process. ``iterate`` reads records of 100 bytes one by one, ``send`` sends them one by one,
``send_many`` sends them in one call. kafka-python has no such call, so its ``send`` stands beside it. ``compiled`` is
our client from a compiled wheel. The last column is the p99 of the delay with which a timer of 1 ms fires in another
thread of the program. It is from further, longer runs, while records are read or sent, because a timer costs CPU
time too. The lines below the table have the same number of programs without a client: one that sleeps, for the machine
alone, and one whose main thread computes, for the interpreter alone.
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
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from bench.compiled import ROOT, NotInstalled, client_environment, install

TOPIC = "blocking"
VALUE = b"x" * 100
KEYS = [b"k%d" % number for number in range(100)]
RECORDS = {"iterate": 200_000, "send": 60_000, "send_many": 100_000}
TIMED_RECORDS = {"iterate": 1_500_000, "send": 500_000, "send_many": 500_000}
"""Records of a run beside a timer, at most."""
PARTITIONS = 4
LINGER_MS = 5
DEADLINE_S = 600
OURS, COMPILED, KAFKA_PYTHON, CONFLUENT = "ours", "compiled", "kafka-python", "confluent"
NO_CLIENT = "no client"
LONGEST_S = 5
"""After so many seconds a run takes no further record."""
CLIENTS = {
    "iterate": (OURS, COMPILED, KAFKA_PYTHON, CONFLUENT),
    "send": (OURS, COMPILED, KAFKA_PYTHON, CONFLUENT),
    "send_many": (OURS, COMPILED, KAFKA_PYTHON),
}


class Cost(NamedTuple):
    """A span of time by ``perf_counter``, and the CPU time of all threads of the process in it, in seconds."""

    began_s: float
    wall_s: float
    cpu_s: float
    count: int
    """The records."""

    @classmethod
    def now(cls) -> Cost:
        return cls(time.perf_counter(), 0, time.process_time(), 0)

    def since(self, count: int) -> Cost:
        return Cost(self.began_s, time.perf_counter() - self.began_s, time.process_time() - self.cpu_s, count)

    @property
    def is_long(self) -> bool:
        return time.perf_counter() > self.began_s + LONGEST_S


def iterate_ours(bootstrap: str, count: int) -> Cost:
    from anabranch.sync import Consumer

    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None) as consumer:
        consumer.subscribe([TOPIC])
        return timed(iter(consumer), count)


def timed(records: Iterator[object], count: int) -> Cost:
    next(records)
    began = Cost.now()
    for number in range(count):
        next(records)
        if not number % 1000 and began.is_long:
            break
    return began.since(number + 1)


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
            if not number % 1000 and began.is_long:
                break
        producer.flush()
        return began.since(number + 1)


def send_many_ours(bootstrap: str, count: int) -> Cost:
    from anabranch.sync import Producer

    pairs = [(KEYS[number % 100], VALUE) for number in range(count)]
    with Producer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS) as producer:
        producer.send_and_wait(TOPIC, VALUE, KEYS[0])
        began = Cost.now()
        assert len(producer.send_many(TOPIC, pairs)) == count
        return began.since(count)


def send_kafka_python(bootstrap: str, count: int) -> Cost:
    import kafka

    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, linger_ms=LINGER_MS)
    try:
        producer.send(TOPIC, VALUE, KEYS[0]).get(30)
        began = Cost.now()
        for number in range(count):
            producer.send(TOPIC, VALUE, KEYS[number % 100])
            if not number % 1000 and began.is_long:
                break
        producer.flush()
        return began.since(number + 1)
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
        if not number % 1000 and began.is_long:
            break
    producer.flush()
    return began.since(number + 1)


def sleep(_bootstrap: str, _count: int) -> Cost:
    began = Cost.now()
    time.sleep(LONGEST_S)
    return began.since(0)


def compute(_bootstrap: str, _count: int) -> Cost:
    began = Cost.now()
    while not began.is_long:
        pass
    return began.since(0)


RUNS: dict[tuple[str, str], Callable[[str, int], Cost]] = {
    ("iterate", OURS): iterate_ours,
    ("iterate", KAFKA_PYTHON): iterate_kafka_python,
    ("iterate", CONFLUENT): iterate_confluent,
    ("send", OURS): send_ours,
    ("send", KAFKA_PYTHON): send_kafka_python,
    ("send", CONFLUENT): send_confluent,
    ("send_many", OURS): send_many_ours,
    ("send_many", KAFKA_PYTHON): send_kafka_python,
    ("sleep", NO_CLIENT): sleep,
    ("compute", NO_CLIENT): compute,
}


@contextmanager
def timer(late: list[tuple[float, float]]) -> Iterator[None]:
    """A thread that sleeps for 1 ms at a time, and notes when it wakes and how many ms late."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            began = time.perf_counter()
            time.sleep(0.001)
            now = time.perf_counter()
            late.append((now, (now - began) * 1000 - 1))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def one_run(workload: str, client: str, bootstrap: str, count: int, with_timer: bool) -> dict[str, float]:
    run = RUNS[workload, OURS if client == COMPILED else client]
    late: list[tuple[float, float]] = []
    with timer(late) if with_timer else nullcontext():
        cost = run(bootstrap, count)
    if not with_timer:
        return {"rate": cost.count / cost.wall_s, "cpu_us": cost.cpu_s / cost.count * 1e6}
    during = [late_ms for at_s, late_ms in late if 0 < at_s - cost.began_s < cost.wall_s]
    return {"timer_p99_ms": statistics.quantiles(during, n=100)[98]}


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
            install(ROOT, Path(directory), compiled=True)
        except NotInstalled as reason:
            site = None
            print(f"without compiled runs: {reason}")
        filled = 0
        while filled <= TIMED_RECORDS["iterate"] * scale:
            filled += send_ours(bootstrap, 500_000).count
        for number in range(rounds + 1):
            for workload in only or CLIENTS:
                for client in CLIENTS[workload]:
                    if client == COMPILED and site is None:
                        continue
                    environment = client_environment(site if client == COMPILED else None)
                    with_timer = number == rounds
                    count = int((TIMED_RECORDS if with_timer else RECORDS)[workload] * scale)
                    arguments = ["--run", workload, client, bootstrap, str(count)]
                    found = in_process([*arguments, *(["--timer"] if with_timer else [])], environment)
                    samples.setdefault((workload, client), []).append(found)
    controls = {
        workload: in_process(["--run", workload, NO_CLIENT, bootstrap, "0", "--timer"], client_environment(None))
        for workload in ("sleep", "compute")
    }
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
    for workload, control in controls.items():
        print(f"timer p99 of a program without a client that {workload}s: {control['timer_p99_ms']:.1f} ms")


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
