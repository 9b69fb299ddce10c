"""The demo from start to verdict: cluster, topic, workers, live view, checks in memory, export, audit on disk."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from anabranch import Admin, NewTopic
from anabranch.cli.errors import CommandError
from anabranch.demo.events import Event, load_events
from anabranch.demo.verify import Acknowledged, Observed, Verdict, verify
from anabranch.demo.view import LiveView
from anabranch.exporting import ExportReport, export_topic

TOPIC = "file-changes"
GROUP = "file-changes-readers"
PARTITIONS = 6
PRODUCERS = 4
CONSUMERS = 3
# The events carry the time at which they happened, years ago: retention and rolling by time would act on that.
TOPIC_CONFIGS = {"retention.ms": "-1", "segment.ms": str(2**63 - 1), "segment.bytes": str(256 * 1024)}
GROUP_READY_DEADLINE_S = 60.0
STALL_DEADLINE_S = 60.0
WORKER_STOP_DEADLINE_S = 30.0


@dataclass(slots=True)
class DemoResult:
    """What the run showed. ``audit`` is the audit's report as JSON values."""

    verdict: Verdict
    produce_s: float
    deliver_s: float
    exported: ExportReport
    audit: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict.passed and bool(self.audit.get("passed"))

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "topic": TOPIC,
            "partitions": PARTITIONS,
            "producers": PRODUCERS,
            "consumers": CONSUMERS,
            "produce_seconds": round(self.produce_s, 3),
            "deliver_seconds": round(self.deliver_s, 3),
            "delivered": asdict(self.verdict),
            "exported": asdict(self.exported),
            "audit": self.audit,
        }


class Worker:
    """A producer or consumer process and the last thing it reported."""

    def __init__(self, role: str, index: int, directory: Path, arguments: list[str]) -> None:
        self.name = f"{role}r {index + 1}" if role == "produce" else f"{role.removesuffix('e')}er {index + 1}"
        self.out = directory / f"{role}-{index}.tsv"
        self.log = directory / f"{role}-{index}.log"
        self.last: dict[str, Any] = {"count": 0}
        self.assigned: list[int] | None = None
        self._argv = [
            sys.executable,
            "-m",
            "anabranch.demo.worker",
            role,
            "--out",
            str(self.out),
            "--index",
            str(index),
        ]
        self._argv += arguments
        self.process: trio.Process | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run to the end, keeping what it reports. Raises ``CommandError`` when it fails."""
        with self.log.open("wb") as log:
            self.process = await trio.lowlevel.open_process(
                self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        task_status.started()
        try:
            assert self.process.stdout is not None
            rest = b""
            async for chunk in self.process.stdout:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    self.last = json.loads(line)
                    self.assigned = self.last.get("assigned", self.assigned)
            status = await self.process.wait()
        finally:
            if self.process.returncode is None:
                self.process.kill()
        if status != 0:
            last_words = self.log.read_text(errors="replace").strip().splitlines()[-1:]
            raise CommandError(f"{self.name} exited with status {status}: {' '.join(last_words)}")

    async def finish(self) -> None:
        """Ask it to stop: its stdin closes."""
        assert self.process is not None and self.process.stdin is not None
        await self.process.stdin.aclose()


async def stream_events(
    bootstrap: str, directory: Path, limit: int | None, view: LiveView
) -> tuple[Verdict, float, float]:
    """Create the topic, run the workers, judge what they report: the verdict and two durations in seconds."""
    total = sum(1 for _ in load_events(limit))
    async with Admin(bootstrap_servers=bootstrap) as admin:
        await admin.create_topics(
            [NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=1, configs=TOPIC_CONFIGS)]
        )
    common = ["--bootstrap", bootstrap, "--topic", TOPIC]
    share = [] if limit is None else ["--events", str(limit)]
    producers = [
        Worker("produce", i, directory, [*common, "--count", str(PRODUCERS), *share]) for i in range(PRODUCERS)
    ]
    consumers = [Worker("consume", i, directory, [*common, "--group", GROUP]) for i in range(CONSUMERS)]
    view.add_bar("produced", total)
    for worker in consumers:
        view.add_bar(worker.name, total)
    async with trio.open_nursery() as nursery:
        view.stage(f"a group of {CONSUMERS} consumers joins")
        for worker in consumers:
            await nursery.start(worker.run)
        await _group_is_complete(consumers)
        view.stage(f"{PRODUCERS} producers stream {total:,} events into {PARTITIONS} partitions")
        started = trio.current_time()
        for worker in producers:
            await nursery.start(worker.run)
        produced_at = await _all_delivered(producers, consumers, total, view)
        delivered_at = trio.current_time()
        for worker in consumers:
            await worker.finish()
        nursery.cancel_scope.deadline = trio.current_time() + WORKER_STOP_DEADLINE_S
    view.stage("checking what was delivered")
    acknowledged = [Acknowledged(*map(int, fields)) for fields in _rows(producers)]
    verdict = verify(load_events(limit), acknowledged, _observations(consumers))
    return verdict, produced_at - started, delivered_at - started


async def _group_is_complete(consumers: list[Worker]) -> None:
    with trio.move_on_after(GROUP_READY_DEADLINE_S):
        while sorted(p for worker in consumers for p in worker.assigned or []) != list(range(PARTITIONS)) or not all(
            worker.assigned for worker in consumers
        ):
            await trio.sleep(0.02)
        return
    state = {worker.name: worker.assigned for worker in consumers}
    raise CommandError(f"the consumer group did not divide the partitions in {GROUP_READY_DEADLINE_S:g} s: {state}")


async def _all_delivered(producers: list[Worker], consumers: list[Worker], total: int, view: LiveView) -> float:
    """Wait until as many records were read as were written; returns when the last one was acknowledged.

    Gives up without an error when nothing moves for ``STALL_DEADLINE_S``: the verdict then names what is missing.
    """
    produced_at = 0.0
    seen, moved_at = -1, trio.current_time()
    while True:
        produced = sum(worker.last["count"] for worker in producers)
        consumed = [worker.last["count"] for worker in consumers]
        view.update("produced", produced)
        for worker, count in zip(consumers, consumed, strict=True):
            partitions = ",".join(map(str, worker.assigned or []))
            view.update(worker.name, count, note=f"partitions {partitions}")
        now = trio.current_time()
        if produced + sum(consumed) != seen:
            seen, moved_at = produced + sum(consumed), now
        if produced == total and not produced_at:
            produced_at = now
        if (produced == total and sum(consumed) >= total) or now - moved_at > STALL_DEADLINE_S:
            return produced_at or now
        await trio.sleep(0.02)


def _rows(workers: list[Worker]) -> Iterator[list[str]]:
    for worker in workers:
        with worker.out.open(encoding="utf-8") as lines:
            for line in lines:
                yield line.rstrip("\n").split("\t")


def _observations(consumers: list[Worker]) -> Iterator[Observed]:
    for time_ns, partition, offset, sequence, unix_time, path, change in _rows(consumers):
        event = Event(int(sequence), int(unix_time), path, change)
        yield Observed(int(time_ns), int(partition), int(offset), event)


async def run_demo(bootstrap: str, directory: Path, limit: int | None, view: LiveView) -> DemoResult:
    """The whole job against a running cluster. ``directory`` takes the workers' files and the export."""
    verdict, produce_s, deliver_s = await stream_events(bootstrap, directory, limit, view)
    view.stage("exporting the topic's segment files")
    export_directory = directory / "export"
    async with Admin(bootstrap_servers=bootstrap) as admin:
        exported = await export_topic(admin, TOPIC, export_directory)
    view.stage("Spark reads the exported files")
    started = time.monotonic()
    report = await trio.to_thread.run_sync(_audit, str(export_directory))
    report["seconds"] = round(time.monotonic() - started, 3)
    return DemoResult(verdict, produce_s, deliver_s, exported, report)


def _audit(directory: str) -> dict[str, Any]:
    from audit.run import run_audit

    return run_audit(directory, order_by="tsv:0").to_json()
