"""Runs the workloads: warm-ups until each cluster is warm, then rounds in which the clusters take turns."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.compiled import client_environment
from bench.failover import fail_over
from bench.measure import cpu_s, loop_ms, rss_bytes, znode_bytes
from bench.memory import watch_memory
from bench.targets import Target
from bench.warm_up import WarmUp
from bench.workloads import FAIL_OVER, MEMORY, REPEATED, THOUSAND, WIDE, Workload

LOAD_DEADLINE_S = 900
CREATE_DEADLINE_S = 120


def run_rounds(targets: list[Target], workloads: list[Workload], rounds: int, scale: float, site: Path | None) -> None:
    """Run each workload in every round against each target in turn, so that slow minutes hit all.

    Each round begins with another target. Sample ``i`` of each target is from the same round, for the ratios.
    """
    for number in range(rounds):
        topics: dict[tuple[str, str], str] = {}
        turns = targets[number % len(targets) :] + targets[: number % len(targets)]
        for index, workload in enumerate(workloads):
            for target in turns:
                if workload.ours is not None and target is not targets[0]:
                    continue
                topic = topics.get((target.name, workload.fetch_of or ""))
                if topic is None:
                    topic = f"bench-{number}-{index}-{workload.kind}"
                    create_topic(target, topic, workload)
                topics[target.name, workload.name] = topic
                sample = run_load(target, workload, topic, scale, site)
                target.samples.setdefault(workload.name, []).append(sample)
                print(f"round {number + 1} {workload.name:<44} {target.name:<10} {in_brief(sample)}", flush=True)
        for target in targets:
            delete_topics(target, sorted({topic for (name, _), topic in topics.items() if name == target.name}))


def warm_up(targets: list[Target], workloads: list[Workload], scale: float, site: Path | None) -> None:
    """Run each workload that has a rate against all sides in turn, until each is warm or a limit is reached."""
    topics: dict[tuple[str, str], str] = {}
    for index, workload in enumerate(workloads):
        if not workload.has_rate:
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
            print(f"warm-up {workload.name:<44} {target.name:<10} {target.warm_ups[workload.name]}", flush=True)
    for target in targets:
        delete_topics(target, sorted({topic for (name, _), topic in topics.items() if name == target.name}))


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
    command += ["--keys", str(workload.keys), "--pids", *map(str, target.pids())]
    done = subprocess.run(
        command, env=client_environment(site), capture_output=True, text=True, timeout=LOAD_DEADLINE_S
    )
    if done.returncode != 0:
        raise SystemExit(f"{workload.name} against {target.name} failed: {done.stderr.strip()[-800:]}")
    sample: dict[str, float] = json.loads(done.stdout)
    return sample


def create_topic(target: Target, topic: str, workload: Workload) -> None:
    """Create the topic with librdkafka's admin client, in the same way on all sides."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    new = NewTopic(topic, workload.partitions, target.replicas, config=dict(workload.ours or {}))
    for future in admin.create_topics([new], operation_timeout=CREATE_DEADLINE_S).values():
        future.result(CREATE_DEADLINE_S)


def delete_topics(target: Target, topics: list[str]) -> None:
    from confluent_kafka.admin import AdminClient

    if not topics:  # a run that only resizes has no topics here
        return
    admin = AdminClient({"bootstrap.servers": target.bootstrap})
    for future in admin.delete_topics(topics).values():
        future.result(30)


def in_brief(sample: dict[str, float]) -> str:
    if "fail_over_s" in sample:
        return f"{sample['fail_over_s']:11.2f} s"
    if "rss_end_mb" in sample:
        return " ".join(f"{sample[f'rss_{when}_mb']:,.0f} MB at the {when}" for when in ("start", "middle", "end"))
    if "records_per_s" not in sample:
        return ", ".join(f"{name} {value:,.2f}" for name, value in sample.items())
    return f"{sample['records_per_s']:>11,.0f} records/s {sample['cpu_s_per_gb']:6.2f} CPU s/GB"
