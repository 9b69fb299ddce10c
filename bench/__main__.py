"""``make bench``: rounds of A/B/A/B on one machine, then the table with medians and ranges.

``python -m bench [--rounds N] [--scale F] [--only WORD ...] [--json FILE]``. Without Maven there is no Kafka column.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anabranch.testing.processes import ProcessCluster
from bench.compiled import NotCompiled, client_environment, install_compiled
from bench.kafka_peer import KafkaCluster, PeerUnavailable, kafka_jars
from bench.measure import cpu_s, rss_bytes

PARTITIONS = 6


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table: what the client process does, with which records."""

    name: str
    kind: str
    records: int
    size: int
    fetch_of: str | None = None


WORKLOADS = [
    Workload("produce 1 KiB, librdkafka", "confluent-produce", 600_000, 1024),
    Workload("fetch 1 KiB, librdkafka", "confluent-fetch", 400_000, 1024, "produce 1 KiB, librdkafka"),
    Workload("produce 100 B, librdkafka", "confluent-produce", 1_500_000, 100),
    Workload("fetch 100 B, librdkafka", "confluent-fetch", 1_200_000, 100, "produce 100 B, librdkafka"),
    Workload("one record at a time, librdkafka", "confluent-latency", 2_000, 1024),
    Workload("produce 1 KiB, aiokafka", "aiokafka-produce", 100_000, 1024),
    Workload("fetch 1 KiB, aiokafka", "aiokafka-fetch", 200_000, 1024, "produce 1 KiB, librdkafka"),
    Workload("produce 1 KiB, anabranch", "anabranch-produce", 100_000, 1024),
    Workload("fetch 1 KiB, anabranch", "anabranch-fetch", 200_000, 1024, "produce 1 KiB, librdkafka"),
    Workload("produce 100 B, aiokafka", "aiokafka-produce", 200_000, 100),
    Workload("fetch 100 B, aiokafka", "aiokafka-fetch", 500_000, 100, "produce 100 B, librdkafka"),
    Workload("produce 100 B, anabranch", "anabranch-produce", 200_000, 100),
    Workload("fetch 100 B, anabranch", "anabranch-fetch", 500_000, 100, "produce 100 B, librdkafka"),
]


@dataclass(slots=True)
class Target:
    """A running cluster of one broker."""

    name: str
    bootstrap: str
    broker_pids: list[int]
    start_rss: int
    load_rss: int = 0
    samples: dict[str, list[dict[str, float]]] = field(default_factory=dict)


@contextmanager
def anabranch_target(directory: Path) -> Iterator[Target]:
    with ProcessCluster(brokers=1, directory=directory / "anabranch") as cluster:
        pids = list(cluster.broker_pids().values())
        yield Target("Anabranch", cluster.bootstrap, pids, rss_bytes(pids))


@contextmanager
def kafka_target(directory: Path) -> Iterator[Target]:
    with KafkaCluster(directory / "kafka") as cluster:
        yield Target("Kafka", cluster.bootstrap, cluster.broker_pids, rss_bytes(cluster.broker_pids))


def create_topic(target: Target, topic: str) -> None:
    """Through librdkafka's admin client, the same for both."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(30)


def run_load(target: Target, workload: Workload, topic: str, scale: float, site: Path | None) -> dict[str, float]:
    """One run of one workload: what the client measured and what the brokers spent on it."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "bench.load",
        workload.kind,
        "--bootstrap",
        target.bootstrap,
        "--topic",
        topic,
    ]
    command += ["--partitions", str(PARTITIONS), "--records", str(max(1000, int(workload.records * scale)))]
    command += ["--size", str(workload.size)]
    before = cpu_s(target.broker_pids)
    done = subprocess.run(command, env=client_environment(site), capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        raise SystemExit(f"{workload.name} against {target.name} failed: {done.stderr.strip()[-800:]}")
    sample: dict[str, float] = json.loads(done.stdout)
    gigabytes = sample["records"] * workload.size / 1e9
    sample["records_per_s"] = sample["records"] / sample["seconds"]
    sample["cpu_s_per_gb"] = (cpu_s(target.broker_pids) - before) / gigabytes
    target.load_rss = max(target.load_rss, rss_bytes(target.broker_pids))
    return sample


def run_rounds(targets: list[Target], workloads: list[Workload], rounds: int, scale: float, site: Path | None) -> None:
    """Every round runs each workload against each target in turn, so slow minutes hit both."""
    for number in range(rounds):
        topics: dict[tuple[str, str], str] = {}
        for index, workload in enumerate(workloads):
            for target in targets:
                topic = topics.get((target.name, workload.fetch_of or ""))
                if topic is None:
                    topic = f"bench-{number}-{index}"
                    create_topic(target, topic)
                topics[target.name, workload.name] = topic
                sample = run_load(target, workload, topic, scale, site)
                target.samples.setdefault(workload.name, []).append(sample)
                rate = f"{sample['records_per_s']:>11,.0f} records/s {sample['cpu_s_per_gb']:6.2f} CPU s/GB"
                print(f"round {number + 1} {workload.name:<34} {target.name:<10} {rate}", flush=True)
        for target in targets:
            delete_topics(target, sorted({topic for (name, _), topic in topics.items() if name == target.name}))


def delete_topics(target: Target, topics: list[str]) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for future in admin.delete_topics(topics).values():
        future.result(30)


def spread(samples: list[dict[str, float]], key: str) -> str:
    """Median and range."""
    numbers = [sample[key] for sample in samples if key in sample]
    if not numbers:
        return "-"
    digits = 0 if statistics.median(numbers) >= 100 else 2
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle} ({low}-{high})"


def print_table(targets: list[Target], workloads: list[Workload]) -> None:
    columns = [("records/s", "records_per_s"), ("CPU s/GB", "cpu_s_per_gb"), ("p50 ms", "p50_ms"), ("p99 ms", "p99_ms")]
    for title, key in columns:
        measured = [w for w in workloads if any(key in sample for sample in targets[0].samples[w.name])]
        if measured:
            print(f"\n{title}: median (range)")
        for workload in measured:
            cells = [f"{target.name} {spread(target.samples[workload.name], key):<36}" for target in targets]
            print(f"  {workload.name:<34} {' '.join(cells)} {ratio(targets, workload, key)}")
    print_client_ratios(targets[0], workloads)
    for target in targets:
        start_mb, most_mb = target.start_rss / 1e6, target.load_rss / 1e6
        print(f"\n{target.name}: RSS {start_mb:,.0f} MB at start, at most {most_mb:,.0f} MB")


def print_client_ratios(target: Target, workloads: list[Workload]) -> None:
    """Our client's rate over the other clients', against the same broker."""
    names = {workload.name for workload in workloads}
    for workload in workloads:
        what, _, client = workload.name.rpartition(", ")
        for other in ("aiokafka", "librdkafka"):
            if client == "anabranch" and f"{what}, {other}" in names:
                ours, theirs = (
                    statistics.median(sample["records_per_s"] for sample in target.samples[name])
                    for name in (workload.name, f"{what}, {other}")
                )
                print(f"{what}: our client over {other}'s rate {ours / theirs:.2f}")


def ratio(targets: list[Target], workload: Workload, key: str) -> str:
    """Ours over Kafka's, of the medians."""
    medians = []
    for target in targets:
        numbers = [sample[key] for sample in target.samples[workload.name] if key in sample]
        if not numbers:
            return ""
        medians.append(statistics.median(numbers))
    return f"ratio {medians[0] / medians[1]:.2f}" if len(medians) == 2 else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiply the number of records by this")
    parser.add_argument("--only", nargs="*", default=[], help="workloads whose name contains one of these words")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    chosen = [w for w in WORKLOADS if not arguments.only or any(word in w.name for word in arguments.only)]
    needed = {w.fetch_of for w in chosen}
    workloads = [w for w in WORKLOADS if w in chosen or w.name in needed]
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        site: Path | None = directory / "site"
        try:
            install_compiled(directory / "site")
            print("our client runs compiled")
        except NotCompiled as reason:
            site = None
            print(f"our client runs uncompiled: {reason}")
        targets = [stack.enter_context(anabranch_target(directory))]
        if not arguments.no_kafka:
            try:
                kafka_jars()
                targets.append(stack.enter_context(kafka_target(directory)))
            except PeerUnavailable as reason:
                print(f"without Kafka: {reason}")
        run_rounds(targets, workloads, arguments.rounds, arguments.scale, site)
        print_table(targets, workloads)
        if arguments.json is not None:
            report: dict[str, Any] = {
                target.name: {
                    "rss_start_bytes": target.start_rss,
                    "rss_load_bytes": target.load_rss,
                    "samples": target.samples,
                }
                for target in targets
            }
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
