"""``make bench``: the clusters take turns on one machine, then the table with medians, ranges and paired ratios.

Rounds count only once all sides are warm (``warm_up``). The table says how long that took.

``python -m bench --help`` lists the options. Without Maven there is no Kafka column.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench import history
from bench.compiled import ROOT, NotInstalled, install, install_revision
from bench.kafka_peer import kafka_jars
from bench.maven import PeerUnavailable
from bench.rounds import run_rounds, warm_up
from bench.table import print_table
from bench.targets import Target, anabranch_target, kafka_target
from bench.workloads import chosen, in_parts

MEMORY_FILES = Path("/dev/shm")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the records, not the resizes")
    parser.add_argument("--short", action="store_true", help="100 B and one record, one and three replicas: 15 minutes")
    parser.add_argument("--all", action="store_true", help="also other clients, memory, fail-over and resizes: hours")
    parser.add_argument("--only", nargs="*", default=[], help="workloads whose name contains one of these words")
    parser.add_argument("--against", metavar="REV", help="compare with an earlier commit, too")
    parser.add_argument("--tmpfs", action="store_true", help=f"keep all files in memory, in {MEMORY_FILES}")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--no-kafka", action="store_true")
    arguments = parser.parse_args()
    workloads = chosen(arguments.only, short=arguments.short, everything=arguments.all)
    if not workloads:
        parser.error(f"no workload has a name with {' or '.join(map(repr, arguments.only))}")
    if arguments.tmpfs and not MEMORY_FILES.is_dir():
        parser.error(f"--tmpfs needs {MEMORY_FILES}, which this system does not have")
    commit = history.present_commit()
    with tempfile.TemporaryDirectory(
        prefix="anabranch-bench-", dir=MEMORY_FILES if arguments.tmpfs else None
    ) as temporary:
        directory = Path(temporary)
        site: Path | None = directory / "site"
        try:
            install(ROOT, directory / "site", compiled=True)
            print("our client runs compiled")
        except NotInstalled as reason:
            site = None
            print(f"our client runs uncompiled: {reason}")
        earlier: dict[str, Path] = {}
        if arguments.against:
            try:
                earlier[install_revision(arguments.against, directory / "earlier")] = directory / "earlier"
            except NotInstalled as reason:
                parser.error(f"--against: {reason}")
        report: dict[str, Any] = {}
        for replicas in sorted({workload.replicas for workload in workloads}):
            group = [workload for workload in workloads if workload.replicas == replicas]
            with ExitStack() as clusters:
                targets = start_targets(directory, replicas, clusters, earlier, with_kafka=not arguments.no_kafka)
                warm_up(targets, group, arguments.scale, site)
                for part in in_parts(group):
                    run_rounds(targets, part, arguments.rounds, arguments.scale, site)
                print_table(targets, group)
                if not arguments.only and arguments.scale >= 1:
                    history.append(targets, group, arguments.rounds, commit)
                report |= {f"{target.name}, {replicas} brokers": described(target) for target in targets}
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(report, indent=2) + "\n")


def start_targets(
    directory: Path, replicas: int, clusters: ExitStack, earlier: dict[str, Path], *, with_kafka: bool
) -> list[Target]:
    """Start Anabranch, its earlier commits, and Kafka when it is available."""
    targets = [clusters.enter_context(anabranch_target(directory, replicas))]
    targets += [
        clusters.enter_context(anabranch_target(directory, replicas, name, site)) for name, site in earlier.items()
    ]
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
