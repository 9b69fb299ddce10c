"""``make bench``: rounds of A/B/A/B on one machine, then the table with medians and ranges.

Rounds count only once both sides are warm (``warm_up``). The table says how long that took.

``python -m bench [--rounds N] [--scale F] [--only WORD ...] [--json FILE]``. Without Maven there is no Kafka column.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anabranch.protocol.plurals import counted
from bench.compiled import NotCompiled, client_environment, install_compiled
from bench.failover import fail_over
from bench.kafka_peer import kafka_jars
from bench.maven import PeerUnavailable
from bench.measure import cpu_s, loop_ms, rss_bytes, znode_bytes
from bench.memory import watch_memory
from bench.targets import Target, anabranch_target, kafka_target
from bench.warm_up import WarmUp

FAIL_OVER = "fail-over"
THOUSAND = "resize-thousand"
WIDE = "resize-wide"
REPEATED = frozenset(
    {
        "resize-hand-over",
        "resize-throughput",
        "resize-throughput-saturated",
        THOUSAND,
        WIDE,
        "resize-while-draining",
        "cost-of-order",
        "cost-of-the-gate",
    }
)
"""The kinds of workloads that only Anabranch can run. Their ``records`` is the number of resizes or rounds."""
LOAD_DEADLINE_S = 900
MEMORY = "memory"


CREATE_DEADLINE_S = 120
DRAINED = {"delete.records.when.drained": "true"}
STAMPED = {**DRAINED, "message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table: the load, its records, and the topic's partitions and replicas.

    ``size`` is the size of a record's value in bytes; for hand-overs it is the ms between two records of a key.
    """

    name: str
    kind: str
    records: int
    size: int
    fetch_of: str | None = None
    replicas: int = 1
    partitions: int = 6
    ours: Mapping[str, str] | None = None
    """The topic's configuration, for a workload that only Anabranch can run; None if Kafka runs the workload too."""


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
    Workload("3 replicas: produce 1 KiB, librdkafka", "confluent-idempotent", 300_000, 1024, replicas=3, partitions=12),
    Workload("3 replicas: one record at a time", "confluent-latency", 1_000, 1024, replicas=3),
    Workload("3 replicas: memory", MEMORY, 400_000, 1024, replicas=3, partitions=12),
    Workload("3 replicas: leader killed", FAIL_OVER, 0, 0, replicas=3, partitions=1),
    Workload("produce 100 B by key: cost of order", "cost-of-order", 240, 100, ours={}),
    Workload("fetch 100 B by key: cost of the gate", "cost-of-the-gate", 12, 100, partitions=4, ours={}),
    Workload("resize: hand-over, 1,280 records/s", "resize-hand-over", 24, 50, replicas=3, partitions=4, ours=STAMPED),
    Workload("resize: hand-over, 3,200 records/s", "resize-hand-over", 24, 20, replicas=3, partitions=4, ours=STAMPED),
    Workload("resize: throughput", "resize-throughput", 6, 100, replicas=3, partitions=4, ours=DRAINED),
    Workload(
        "resize: throughput, saturated", "resize-throughput-saturated", 6, 100, replicas=3, partitions=4, ours=DRAINED
    ),
    Workload("resize: 1,000 to 2,000", THOUSAND, 1, 0, replicas=3, partitions=1_000, ours={}),
    Workload("resize: 4 to 2,000 and back, 20 resizes", WIDE, 20, 0, replicas=3, partitions=4, ours={}),
    Workload("resize: 4 to 8 while 1,996 drain", "resize-while-draining", 5, 0, replicas=3, partitions=4, ours={}),
]


def create_topic(target: Target, topic: str, workload: Workload) -> None:
    """Create the topic with librdkafka's admin client, in the same way on both sides."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    new = NewTopic(topic, workload.partitions, target.replicas, config=dict(workload.ours or {}))
    for future in admin.create_topics([new], operation_timeout=CREATE_DEADLINE_S).values():
        future.result(CREATE_DEADLINE_S)


def run_load(target: Target, workload: Workload, topic: str, scale: float, site: Path | None) -> dict[str, float]:
    """Run one workload once. Returns the client's measurements and the brokers' CPU time."""
    if workload.kind == FAIL_OVER:
        return fail_over(target, topic)
    if workload.kind in REPEATED:
        speed = {"loop_ms": loop_ms()}
        sample = speed | run_client(target, workload, workload.kind, topic, workload.records, site)
        if workload.kind in (THOUSAND, WIDE):
            prefix = "wide_" if workload.kind == WIDE else ""
            sample |= {f"{prefix}{name}": size for name, size in znode_bytes(target.zookeeper, topic).items()}
        return sample
    records = max(1000, int(workload.records * scale))
    if workload.kind == MEMORY:
        sample = watch_memory(
            lambda: rss_bytes(target.pids()),
            lambda kind, count: run_client(target, workload, kind, topic, count, site),
            records,
        )
        target.load_rss = max(target.load_rss, rss_bytes(target.pids()))
        return sample
    pids = target.pids()
    before = cpu_s(pids)
    others_before = cpu_s(target.other_pids())
    sample = run_client(target, workload, workload.kind, topic, records, site)
    gigabytes = sample["records"] * workload.size / 1e9
    sample["records_per_s"] = sample["records"] / sample["seconds"]
    sample["cpu_s_per_gb"] = (cpu_s(pids) - before) / gigabytes
    if others_before:
        sample["others_cpu_s_per_gb"] = (cpu_s(target.other_pids()) - others_before) / gigabytes
    target.load_rss = max(target.load_rss, rss_bytes(pids))
    return sample


def run_client(
    target: Target, workload: Workload, kind: str, topic: str, records: int, site: Path | None
) -> dict[str, float]:
    """Run one client process. Returns its measurements; raises ``SystemExit`` with the end of its errors."""
    command = [sys.executable, "-P", "-m", "bench.load", kind, "--bootstrap", target.bootstrap, "--topic", topic]
    command += ["--partitions", str(workload.partitions), "--records", str(records), "--size", str(workload.size)]
    command += ["--pids", *map(str, target.pids())]
    done = subprocess.run(
        command, env=client_environment(site), capture_output=True, text=True, timeout=LOAD_DEADLINE_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{workload.name} against {target.name} failed: {done.stderr.strip()[-800:]}")
    sample: dict[str, float] = json.loads(done.stdout)
    return sample


def in_order(workloads: list[Workload]) -> list[list[Workload]]:
    """The workloads in parts. All rounds of a part precede the next part. Kills are last: they leave cold brokers."""
    killing = [workload for workload in workloads if workload.kind == FAIL_OVER]
    return [part for part in ([workload for workload in workloads if workload not in killing], killing) if part]


def run_rounds(targets: list[Target], workloads: list[Workload], rounds: int, scale: float, site: Path | None) -> None:
    """Run each workload in every round against each target in turn, so that slow minutes hit both."""
    for number in range(rounds):
        topics: dict[tuple[str, str], str] = {}
        for index, workload in enumerate(workloads):
            for target in targets:
                if workload.ours is not None and target is not targets[0]:
                    continue
                topic = topics.get((target.name, workload.fetch_of or ""))
                if topic is None:
                    topic = f"bench-{number}-{index}-{workload.kind}"
                    create_topic(target, topic, workload)
                topics[target.name, workload.name] = topic
                sample = run_load(target, workload, topic, scale, site)
                target.samples.setdefault(workload.name, []).append(sample)
                print(f"round {number + 1} {workload.name:<38} {target.name:<10} {in_brief(sample)}", flush=True)
        for target in targets:
            delete_topics(target, sorted({topic for (name, _), topic in topics.items() if name == target.name}))


def warm_up(targets: list[Target], workloads: list[Workload], scale: float, site: Path | None) -> None:
    """Run each workload that has a rate against both sides in turn, until each is warm or a limit is reached."""
    topics: dict[tuple[str, str], str] = {}
    for index, workload in enumerate(workloads):
        if workload.kind in (FAIL_OVER, MEMORY) or workload.ours is not None:
            continue
        for target in targets:
            target.warm_ups[workload.name] = WarmUp()
        number = 0
        while waiting := [target for target in targets if not target.warm_ups[workload.name].is_over]:
            number += 1
            for target in waiting:
                began = time.perf_counter()
                topic = topics.get((target.name, workload.fetch_of or ""))
                if topic is None:
                    if old := topics.get((target.name, workload.name)):
                        delete_topics(target, [old])
                    topic = topics[target.name, workload.name] = f"warm-up-{index}-{number}"
                    create_topic(target, topic, workload)
                rate = run_load(target, workload, topic, scale, site)["records_per_s"]
                target.warm_ups[workload.name].add(rate, time.perf_counter() - began)
        for target in targets:
            print(f"warm-up {workload.name:<38} {target.name:<10} {target.warm_ups[workload.name]}", flush=True)
    for target in targets:
        delete_topics(target, sorted({topic for (name, _), topic in topics.items() if name == target.name}))


def in_brief(sample: dict[str, float]) -> str:
    if "fail_over_s" in sample:
        return f"{sample['fail_over_s']:11.2f} s"
    if "records_per_s" not in sample and "rss_end_mb" not in sample:
        return ", ".join(f"{name} {value:,.2f}" for name, value in sample.items())
    if "rss_end_mb" in sample:
        return " ".join(f"{sample[f'rss_{when}_mb']:,.0f} MB at the {when}" for when in ("start", "middle", "end"))
    return f"{sample['records_per_s']:>11,.0f} records/s {sample['cpu_s_per_gb']:6.2f} CPU s/GB"


def delete_topics(target: Target, topics: list[str]) -> None:
    from confluent_kafka.admin import AdminClient

    if not topics:  # a run that only resizes has no topics here
        return
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for future in admin.delete_topics(topics).values():
        future.result(30)


def spread(samples: list[dict[str, float]], key: str) -> str:
    """The median and the range of the samples, as text."""
    numbers = [sample[key] for sample in samples if key in sample]
    if not numbers:
        return "-"
    digits = 0 if statistics.median(numbers) >= 100 else 2
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle} ({low}-{high})"


def print_table(targets: list[Target], workloads: list[Workload]) -> None:
    columns = [
        ("records/s", "records_per_s"),
        ("CPU s/GB", "cpu_s_per_gb"),
        ("CPU s/GB of ZooKeeper and the controller, if they are separate processes", "others_cpu_s_per_gb"),
        ("from the assignment to the first records, ms; not included in the rate", "first_records_ms"),
        ("p50 ms", "p50_ms"),
        ("p99 ms", "p99_ms"),
        ("from kill -9 of the leader to the next acknowledgement, s", "fail_over_s"),
        ("extra time to produce a record with a key, with ordered delivery, % (at most 3)", "order_percent"),
        ("control: the same between two topics without ordered delivery, %", "order_control_percent"),
        ("extra CPU of the client, with ordered delivery, %", "order_client_cpu_percent"),
        ("control: the same between two topics without ordered delivery, %", "order_client_cpu_control_percent"),
        ("extra CPU of the brokers, with ordered delivery, %", "order_broker_cpu_percent"),
        ("control: the same between two topics without ordered delivery, %", "order_broker_cpu_control_percent"),
        ("extra time to read a record behind gates of past resizes, %", "gate_percent"),
        ("control: the same between two topics without ordered delivery, %", "gate_control_percent"),
        ("extra CPU of the client behind gates of past resizes, %", "gate_client_cpu_percent"),
        ("control: the same between two topics without ordered delivery, %", "gate_client_cpu_control_percent"),
        ("hand-over p50, ms (at most 10)", "hand_over_p50_ms"),
        ("hand-over p99, ms (at most 50)", "hand_over_p99_ms"),
        (
            "rate of a resize's slowest second, % of the rate before (at least 80): the median resize",
            "window_percent",
        ),
        ("control: the same for as many seconds without a resize, %", "window_before_percent"),
        (
            "rate of a resize's slowest second, % of the rate before (at least 80): the worst resize",
            "least_window_percent",
        ),
        ("control: the same for as many seconds without a resize, %", "least_window_before_percent"),
        ("the longest time without an acknowledgement in the seconds of a resize, ms", "longest_stop_ms"),
        ("control: the same for as many seconds without a resize, ms", "longest_stop_before_ms"),
        ("CPU time that the machine's host took (steal) around the worst resize, %", "stolen_percent"),
        ("from 1,000 to 2,000 partitions, s", "doubling_s"),
        ("the largest znode of a partition, bytes (below 1,024)", "partition_znode_bytes"),
        ("the znode of the topic, bytes (below 65,536)", "topic_znode_bytes"),
        ("from 4 to 2,000 partitions the first time, which creates them, s", "wide_first_grow_s"),
        ("from 2,000 to 4 partitions, s", "wide_shrink_s"),
        ("from 4 to 2,000 partitions again, which revives draining partitions, s", "wide_revival_s"),
        ("the largest znode of a partition after these, bytes (below 65,536)", "wide_partition_znode_bytes"),
        ("the znode of the topic after these, bytes (below 65,536)", "wide_topic_znode_bytes"),
        ("from 4 to 8 partitions while 1,996 drain, s", "grow_while_draining_s"),
        ("the same while four drain, s", "grow_alone_s"),
        ("a fixed piece of Python before each run: how fast the machine was, ms", "loop_ms"),
        ("RSS of all brokers at the start, MB", "rss_start_mb"),
        ("RSS of all brokers half-way, MB", "rss_middle_mb"),
        ("RSS of all brokers at the end, MB", "rss_end_mb"),
    ]
    for title, key in columns:
        measured = [w for w in workloads if any(key in sample for sample in targets[0].samples[w.name])]
        if measured:
            print(f"\n{title}: median (range)")
        for workload in measured:
            cells = [f"{target.name} {spread(target.samples.get(workload.name, []), key):<36}" for target in targets]
            print(f"  {workload.name:<38} {' '.join(cells)} {ratio(targets, workload, key)}")
    print_warm_ups(targets, workloads)
    print_client_ratios(targets[0], workloads)
    for target in targets:
        start_mb, most_mb = target.start_rss / 1e6, target.load_rss / 1e6
        print(
            f"\n{target.name}, {counted(target.replicas, 'broker')}: RSS {start_mb:,.0f} MB at the start, "
            f"at most {most_mb:,.0f} MB"
        )


def print_warm_ups(targets: list[Target], workloads: list[Workload]) -> None:
    """Print the time until each side was warm, and the sides that never were."""
    warmed = [workload for workload in workloads if workload.name in targets[0].warm_ups]
    if warmed:
        print("\nwarm-up before the first round: until two rounds in a row agreed within 10 %")
    for workload in warmed:
        cells = [f"{target.name} {target.warm_ups[workload.name]!s:<36}" for target in targets]
        print(f"  {workload.name:<38} {' '.join(cells)}")


def print_client_ratios(target: Target, workloads: list[Workload]) -> None:
    """Print the ratio of the rates of Anabranch's client and each other client, against the same broker."""
    names = {workload.name for workload in workloads}
    for workload in workloads:
        what, _, client = workload.name.rpartition(", ")
        for other in ("aiokafka", "librdkafka"):
            if client == "anabranch" and f"{what}, {other}" in names:
                ours, theirs = (
                    statistics.median(sample["records_per_s"] for sample in target.samples[name])
                    for name in (workload.name, f"{what}, {other}")
                )
                print(f"{what}: rate of our client over that of {other} {ours / theirs:.2f}")


def ratio(targets: list[Target], workload: Workload, key: str) -> str:
    """The ratio of the medians, Anabranch's over Kafka's, as text."""
    medians = []
    for target in targets:
        numbers = [sample[key] for sample in target.samples.get(workload.name, []) if key in sample]
        if not numbers:
            return ""
        medians.append(statistics.median(numbers))
    return f"ratio {medians[0] / medians[1]:.2f}" if len(medians) == 2 else ""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records, not the resizes")
    parser.add_argument("--only", nargs="*", default=[], help="workloads whose name contains one of these words")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    chosen = [w for w in WORKLOADS if not arguments.only or any(word in w.name for word in arguments.only)]
    needed = {w.fetch_of for w in chosen}
    workloads = [w for w in WORKLOADS if w in chosen or w.name in needed]
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as temporary:
        directory = Path(temporary)
        site: Path | None = directory / "site"
        try:
            install_compiled(directory / "site")
            print("our client runs compiled")
        except NotCompiled as reason:
            site = None
            print(f"our client runs uncompiled: {reason}")
        report: dict[str, Any] = {}
        for replicas in sorted({workload.replicas for workload in workloads}):
            group = [workload for workload in workloads if workload.replicas == replicas]
            with ExitStack() as clusters:
                targets = start_targets(directory, replicas, clusters, with_kafka=not arguments.no_kafka)
                warm_up(targets, group, arguments.scale, site)
                for part in in_order(group):
                    run_rounds(targets, part, arguments.rounds, arguments.scale, site)
                print_table(targets, group)
                report |= {f"{target.name}, {replicas} brokers": described(target) for target in targets}
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def start_targets(directory: Path, replicas: int, clusters: ExitStack, *, with_kafka: bool) -> list[Target]:
    """Start Anabranch, and Kafka when it is available."""
    targets = [clusters.enter_context(anabranch_target(directory, replicas))]
    if with_kafka:
        try:
            kafka_jars()
            targets.append(clusters.enter_context(kafka_target(directory, replicas)))
        except PeerUnavailable as reason:
            print(f"without Kafka: {reason}")
    return targets


def described(target: Target) -> dict[str, Any]:
    warm_ups = {
        name: {"settled": found.is_settled, "seconds": found.seconds, "records_per_s": found.rates}
        for name, found in target.warm_ups.items()
    }
    return {
        "rss_start_bytes": target.start_rss,
        "rss_load_bytes": target.load_rss,
        "warm_ups": warm_ups,
        "samples": target.samples,
    }


if __name__ == "__main__":
    main()
