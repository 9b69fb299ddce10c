"""``python -m bench.audit_speed``: the audit of a topic in Kafka against ``kafka-consumer-perf-test``, in turns.

Kafka's own broker has the topic. The audit applies all checks to the broker's segment files. Each is timed from the
start of its process to the end, less the time that it takes for a topic of a few records.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.kafka_peer import KafkaCluster, java_command
from bench.maven import PeerUnavailable

PARTITIONS = 4
KEYS = 10_000
FEW = 100
TIMEOUT_S = 600
CONSUMER = "org.apache.kafka.tools.ConsumerPerformance"


def produce(bootstrap: str, topic: str, records: int, size: int, codec: str) -> None:
    """Write records by key with an idempotent producer; each value begins with an ascending number."""
    from confluent_kafka import Producer
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(60)
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "batch.size": 16384,
            "compression.type": codec,
            "partitioner": "murmur2_random",
            "queue.buffering.max.messages": 500_000,
        }
    )
    filler = json.dumps([n * 2654435761 % 10**9 for n in range(20_000)]).encode()
    for n in range(records):
        head = b"%d\t" % n
        at = n * 37 % (len(filler) - size)
        while True:
            try:
                producer.produce(topic, head + filler[at : at + size - len(head)], b"key-%d" % (n % KEYS))
                break
            except BufferError:
                producer.poll(0.01)
        if n & 1023 == 0:
            producer.poll(0)
    if producer.flush(TIMEOUT_S):
        raise RuntimeError(f"{topic} was not written")


def files(data: Path, topic: str, directory: Path) -> Path:
    """A directory with links to the topic's partitions only."""
    directory.mkdir()
    for p in range(PARTITIONS):
        (directory / f"{topic}-{p}").symlink_to(data / f"{topic}-{p}")
    return directory


def seconds(command: list[str], expected: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    took = time.perf_counter() - began
    if expected not in done.stdout:
        raise RuntimeError(f"{command[-1]}: {done.stdout[-2000:]} {done.stderr[-2000:]}")
    return took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit_speed", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--records", type=int, default=4_000_000, help="records of 100 B; a quarter as many of 1 KiB")
    parser.add_argument("--codec", default="none")
    arguments = parser.parse_args()
    workloads = [("few", FEW, 100), ("100 B", arguments.records, 100), ("1 KiB", arguments.records // 4, 1024)]
    took: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as scratch:
        try:
            with KafkaCluster(Path(scratch, "kafka")) as kafka:
                data = Path(scratch, "kafka", "kafka-1", "data")
                commands: dict[tuple[str, str], tuple[list[str], str]] = {}
                for number, (name, records, size) in enumerate(workloads):
                    topic = f"audit-{number}"
                    produce(kafka.bootstrap, topic, records, size, arguments.codec)
                    directory = files(data, topic, Path(scratch, topic))
                    audit = [sys.executable, "-m", "anabranch.cli.main", "audit", str(directory), "--order-by", "tsv:0"]
                    commands[name, "audit"] = audit, f"{records:,} records"
                    read = ["--bootstrap-server", kafka.bootstrap, "--topic", topic, "--messages", str(records)]
                    commands[name, "consumer"] = java_command(CONSUMER, read, heap="1g"), f" {records}, "
                for number in range(arguments.rounds):
                    for (name, who), (command, expected) in commands.items():
                        spent = seconds(command, expected)
                        took.setdefault((name, who), []).append(spent)
                        print(f"round {number + 1} {name:<6} {who:<9} {spent:>7.1f} s", flush=True)
        except PeerUnavailable as reason:
            raise SystemExit(f"nothing to compare with: {reason}") from None
    for name, records, _ in workloads[1:]:
        whole = {who: statistics.median(took[name, who]) for who in ("audit", "consumer")}
        beyond = {who: whole[who] - statistics.median(took["few", who]) for who in whole}
        print(
            f"{name}: without fixed times the audit reads {records / beyond['audit']:,.0f} records/s, "
            f"{beyond['consumer'] / beyond['audit']:.2f} of the consumer's rate; "
            f"with fixed times {whole['consumer'] / whole['audit']:.2f} of that rate"
        )


if __name__ == "__main__":
    main()
