"""The printed table: medians with ranges, and ratios that are paired by round. CPU of the brokers comes first. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

from anabranch.protocol.plurals import counted
from bench.targets import Target
from bench.workloads import Workload

Samples = Sequence[Mapping[str, float]]

COLUMNS = [
    ("CPU of the brokers, s per GB of values", "cpu_s_per_gb"),
    ("records/s", "records_per_s"),
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
"""The title and the key of each number of a sample, in the order of the table."""


def paired_ratio(samples: Samples, others: Samples, key: str) -> float | None:
    """The median of the ratios of ``key``, each of two samples of the same round; None if no round has both.

    A slow minute of the machine is in both samples of its round, so their ratio keeps it out.
    """
    pairs = zip(samples, others, strict=False)
    ratios = [one[key] / other[key] for one, other in pairs if key in one and other.get(key)]
    return statistics.median(ratios) if ratios else None


def ratios(targets: Sequence[Target], workload: str, key: str) -> dict[str, float]:
    """The paired ratio of each two targets, by ``"name/name"``."""
    found = {}
    for one, other in combinations(targets, 2):
        ratio = paired_ratio(one.samples.get(workload, []), other.samples.get(workload, []), key)
        if ratio is not None:
            found[f"{one.name}/{other.name}"] = ratio
    return found


def spread(samples: Samples, key: str) -> str:
    """The median and the range of the samples, as text."""
    numbers = [sample[key] for sample in samples if key in sample]
    if not numbers:
        return "-"
    digits = 0 if statistics.median(numbers) >= 100 else 2
    low, middle, high = (f"{value:,.{digits}f}" for value in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle} ({low}-{high})"


def print_table(targets: Sequence[Target], workloads: Sequence[Workload]) -> None:
    for title, key in COLUMNS:
        measured = [w for w in workloads if any(key in sample for sample in targets[0].samples[w.name])]
        if measured:
            print(f"\n{title}: median (range); ratios: the median of those of each round")
        for workload in measured:
            cells = [f"{target.name} {spread(target.samples.get(workload.name, []), key):<32}" for target in targets]
            compared = [f"{names} {ratio:.2f}" for names, ratio in ratios(targets, workload.name, key).items()]
            print(f"  {workload.name:<44} {' '.join(cells)} {', '.join(compared)}")
    print_warm_ups(targets, workloads)
    print_client_ratios(targets[0], workloads)
    for target in targets:
        start_mb, most_mb = target.start_rss / 1e6, target.load_rss / 1e6
        print(
            f"\n{target.name}, {counted(target.replicas, 'broker')}: RSS {start_mb:,.0f} MB at the start, "
            f"at most {most_mb:,.0f} MB"
        )


def print_warm_ups(targets: Sequence[Target], workloads: Sequence[Workload]) -> None:
    """Print the time until each side was warm, and the sides that never were."""
    warmed = [workload for workload in workloads if workload.name in targets[0].warm_ups]
    if warmed:
        print("\nwarm-up before the first round: until two rounds in a row agreed within 10 %")
    for workload in warmed:
        cells = [f"{target.name} {target.warm_ups[workload.name]!s:<32}" for target in targets]
        print(f"  {workload.name:<44} {' '.join(cells)}")


def print_client_ratios(target: Target, workloads: Sequence[Workload]) -> None:
    """Print the ratio of the rates of Anabranch's client and each other client, against the same broker."""
    names = {workload.name for workload in workloads}
    for workload in workloads:
        what, _, client = workload.name.rpartition(", ")
        for other in ("aiokafka", "librdkafka"):
            if client == "anabranch" and f"{what}, {other}" in names:
                ratio = paired_ratio(target.samples[workload.name], target.samples[f"{what}, {other}"], "records_per_s")
                print(f"{what}: rate of our client over that of {other} {ratio:.2f}")
