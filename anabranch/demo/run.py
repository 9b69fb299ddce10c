"""The demo from start to verdict: two topics under one load, resized alike; one keeps the order of every key.

The control topic has the same events from the same producers at the same time, the same number of consumers, and the
same resizes, but ``enable.ordered.delivery=false``. As in Kafka, a key's partition is then its hash modulo the count,
and no consumer waits for another. In Kafka a topic can only grow. Therefore violations before the first shrink are
counted separately.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import trio

from anabranch import Admin, NewTopic
from anabranch.command_error import CommandError
from anabranch.demo.events import Event, load_events
from anabranch.demo.hand_over import Flush, Percentiles, Resize, hand_overs, percentiles
from anabranch.demo.processes import Worker
from anabranch.demo.resizing import STEPS, Done, EventStream, Resizer, drained_after
from anabranch.demo.states import StateStore
from anabranch.demo.verify import Acknowledged, ObservedRecord, RunVerdict, disordered, verify
from anabranch.demo.view import LiveView
from anabranch.export.live import export_topic
from anabranch.export.run import ExportReport
from anabranch.local.cluster import LocalCluster
from anabranch.view.moves import moves

TOPIC = "file-changes"
CONTROL = "file-changes-control"
PARTITIONS = 4
PRODUCERS = 2
CONSUMERS = 3
PAGE_NAME = "audit.html"
STREAM_S = 20.0
"""The duration of the stream of events. The resizes happen during the stream; slow resizes prolong the stream."""
YIELDING = ["--nice", "10"]
"""Producers and the control topic's consumers run at low priority, so that they do not slow the measured hand-overs.

In a real cluster, clients run on other machines than the brokers. Here a resize fills two cores for 0.2 s.
"""
TOPIC_CONFIGS = {
    "segment.bytes": str(256 * 1024),
    "min.insync.replicas": "2",
    "message.timestamp.type": "LogAppendTime",
}
GROUP_READY_DEADLINE_S = 60.0
STALL_DEADLINE_S = 60.0
QUIET_S = 3.0
WORKER_STOP_DEADLINE_S = 30.0


@dataclass(slots=True)
class Side:
    """One of the two topics with its group of consumers."""

    topic: str
    directory: Path
    consumers: list[Worker]

    @property
    def states(self) -> Path:
        return states_of(self.directory, self.topic)


@dataclass(slots=True)
class DemoResult:
    """The result of the run. ``audit`` is the audit's report on the ordered topic, as JSON values.

    There are three kinds of hand-overs. At a split, a rebalance first assigns the new partitions. At a merge, all
    members keep their partitions. After the kill of a broker, its partitions wait for other leaders.
    """

    verdict: RunVerdict
    control: RunVerdict
    control_out_of_order_growing: int
    steps: list[Done]
    keys_moved: int
    hand_over_growing: Percentiles
    hand_over_shrinking: Percentiles
    hand_over_killed: Percentiles
    produce_s: float
    paused_s: float
    deliver_s: float
    exported: ExportReport
    drained_s: float | None = None
    audit: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict.passed and bool(self.audit.get("passed")) and self.drained_s is not None

    def to_json(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "topic": TOPIC,
            "partitions": [PARTITIONS, *(done.partitions for done in self.steps)],
            "producers": PRODUCERS,
            "consumers": CONSUMERS,
            "produce_seconds": round(self.produce_s, 3),
            "paused_seconds": round(self.paused_s, 3),
            "deliver_seconds": round(self.deliver_s, 3),
            "resizes": [asdict(done) for done in self.steps],
            "keys_moved": self.keys_moved,
            "hand_over_growing": asdict(self.hand_over_growing),
            "hand_over_shrinking": asdict(self.hand_over_shrinking),
            "hand_over_broker_killed": asdict(self.hand_over_killed),
            "violations": self.verdict.violations,
            "delivered": asdict(self.verdict),
            "control_violations": self.control.violations,
            "control": asdict(self.control),
            "control_out_of_order_growing": self.control_out_of_order_growing,
            "exported": asdict(self.exported),
            "drained_seconds": self.drained_s,
            "audit": self.audit,
        }


def states_of(directory: Path, topic: str) -> Path:
    """The path of the database that a topic's consumers share."""
    return directory / f"{topic}-states.sqlite"


def make_side(bootstrap: str, directory: Path, topic: str, label: str, *options: str) -> Side:
    # One process creates the table before several use it at once.
    states = states_of(directory, topic)
    StateStore(states).close()
    arguments = ["--bootstrap", bootstrap, "--topic", topic, "--group", f"{topic}-readers", "--states", str(states)]
    arguments += options
    consumers = [Worker("consume", f"{label} {i + 1}", i, directory / topic, arguments) for i in range(CONSUMERS)]
    return Side(topic, directory, consumers)


async def stream_events(
    cluster: LocalCluster, directory: Path, limit: int | None, seconds: float, view: LiveView
) -> tuple[list[Side], list[Worker], list[Done], float, float]:
    """Run the workers and the resizes.

    Returns the sides, the producers, the resizes, the seconds until all events were produced, and the seconds until all
    were delivered.
    """
    bootstrap = cluster.bootstrap
    total = sum(1 for _ in load_events(limit))
    ordered = make_side(bootstrap, directory, TOPIC, "reader")
    sides = [ordered, make_side(bootstrap, directory, CONTROL, "control", *YIELDING)]
    arguments = ["--bootstrap", bootstrap, "--count", str(PRODUCERS), "--rate", str(total / seconds), *YIELDING]
    for side in sides:
        arguments += ["--topic", side.topic]
    if limit is not None:
        arguments += ["--events", str(limit)]
    producers = [Worker("produce", f"producer {i + 1}", i, directory, arguments) for i in range(PRODUCERS)]
    view.add_bar("written", total * len(sides))
    for side in sides:
        for worker in side.consumers:
            view.add_bar(worker.name, total)
    async with trio.open_nursery() as nursery:
        view.stage(f"two groups of {CONSUMERS} consumers join, one for each topic")
        for side in sides:
            for worker in side.consumers:
                await nursery.start(worker.run)
        for side in sides:
            await _group_is_complete(side.consumers)
        view.stage(f"{PRODUCERS} producers stream {total:,} events into both topics, {PARTITIONS} partitions each")
        for worker in producers:
            await nursery.start(worker.run)
        resizer = Resizer(cluster, [side.topic for side in sides], _stream(producers, total, len(sides)), view.stage)
        nursery.start_soon(resizer.run)
        while not any(worker.last["count"] for worker in producers):
            await trio.sleep(0.02)
        started = trio.current_time()
        produced_at = await _all_delivered(producers, sides, total, resizer, view)
        delivered_at = trio.current_time()
        for side in sides:
            for worker in side.consumers:
                await worker.finish()
        nursery.cancel_scope.deadline = trio.current_time() + WORKER_STOP_DEADLINE_S
    return sides, producers, resizer.done, produced_at - started, delivered_at - started


def _stream(producers: list[Worker], events: int, topics: int) -> EventStream:
    async def let_go_on(sequence: int) -> None:
        for worker in producers:
            await worker.write_line(str(sequence))

    return EventStream(events, lambda: sum(worker.last["count"] for worker in producers) // topics, let_go_on)


async def _group_is_complete(consumers: list[Worker]) -> None:
    with trio.move_on_after(GROUP_READY_DEADLINE_S):
        while sorted(p for worker in consumers for p in worker.assigned or []) != list(range(PARTITIONS)) or not all(
            worker.assigned for worker in consumers
        ):
            await trio.sleep(0.02)
        return
    state = {worker.name: worker.assigned for worker in consumers}
    raise CommandError(f"the consumers did not get all partitions within {GROUP_READY_DEADLINE_S:g} s: {state}")


async def _all_delivered(
    producers: list[Worker], sides: list[Side], total: int, resizer: Resizer, view: LiveView
) -> float:
    """Wait until every side has read all written events; returns the time at which the last one was acknowledged.

    Returns without an error when there is no progress for ``STALL_DEADLINE_S``. The verdict then names the missing
    events.
    """
    produced_at = 0.0
    seen, moved_at = -1, trio.current_time()
    while True:
        produced = sum(worker.last["count"] for worker in producers)
        consumed = [sum(worker.last["count"] for worker in side.consumers) for side in sides]
        view.update("written", produced)
        for side in sides:
            for worker in side.consumers:
                view.update(worker.name, worker.last["count"], note=_note(worker))
        now = trio.current_time()
        if produced + sum(consumed) != seen:
            seen, moved_at = produced + sum(consumed), now
        all_produced = produced == total * len(sides)
        if all_produced and not produced_at:
            produced_at = now
        # Events that two members processed are counted twice, so some may be missing although the sum is reached.
        complete = all(count == total for count in consumed)
        quiet = all(count >= total for count in consumed) and now - moved_at > QUIET_S
        if (all_produced and resizer.finished and (complete or quiet)) or now - moved_at > STALL_DEADLINE_S:
            return produced_at or now
        await trio.sleep(0.02)


def _note(worker: Worker) -> str:
    """A note with a consumer's partitions. It marks those that wait for other partitions."""
    note = f"partitions {','.join(map(str, worker.assigned or []))}"
    blocked = worker.last.get("blocked")
    return f"{note}; {','.join(map(str, blocked))} waiting" if blocked else note


def read_observations(side: Side) -> tuple[list[ObservedRecord], list[Flush]]:
    """The deliveries and flushes that a side's consumers recorded."""
    observed, flushes = [], []
    for worker in side.consumers:
        for kind, *fields in worker.rows():
            if kind == "f":
                begun, ended, partitions = fields
                flushes.append(
                    Flush(int(begun), int(ended), tuple(map(int, partitions.split(",") if partitions else [])))
                )
            else:
                time_ns, partition, offset, sequence, unix_time, path, change, known, appended_ns = fields
                event = Event(int(sequence), int(unix_time), path, change)
                place = (int(time_ns), int(partition), int(offset))
                observed.append(ObservedRecord(*place, event, int(known), int(appended_ns)))
    return observed, flushes


def acknowledged(producers: list[Worker], topic: str) -> Iterator[Acknowledged]:
    for worker in producers:
        for of_topic, *fields in worker.rows():
            if of_topic == topic:
                yield Acknowledged(*map(int, fields))


def judge(
    side: Side, producers: list[Worker], limit: int | None
) -> tuple[RunVerdict, list[ObservedRecord], list[Flush]]:
    observed, flushes = read_observations(side)
    store = StateStore(side.states)
    saved = store.all()
    store.close()
    return verify(load_events(limit), acknowledged(producers, side.topic), observed, saved), observed, flushes


async def run_demo(
    cluster: LocalCluster, directory: Path, limit: int | None, view: LiveView, seconds: float = STREAM_S
) -> DemoResult:
    """Run the demo on a running cluster. ``directory`` is for the workers' files, the states and the export."""
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        brokers = len(cluster.brokers)
        ordered = NewTopic(TOPIC, PARTITIONS, brokers, TOPIC_CONFIGS)
        control = NewTopic(CONTROL, PARTITIONS, brokers, {**TOPIC_CONFIGS, "enable.ordered.delivery": "false"})
        await admin.create_topics([ordered, control])
    sides, producers, steps, produce_s, deliver_s = await stream_events(cluster, directory, limit, seconds, view)
    view.stage("checking the deliveries")
    verdict, observed, flushes = judge(sides[0], producers, limit)
    control_verdict, control_observed, _ = judge(sides[1], producers, limit)
    first_shrink_ns = next((done.last_began_ns for done in steps if done.shrinks), None)
    moved = hand_overs(observed, flushes, [_resize(done) for done in steps])

    def took(chosen: Callable[[Done], bool]) -> Percentiles:
        return percentiles(move for move in moved if move.step >= 0 and chosen(steps[move.step]))

    view.stage("exporting the topic's segment files")
    export_directory = directory / "export"
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        exported = await export_topic(admin, TOPIC, export_directory)
        result = DemoResult(
            verdict,
            control_verdict,
            sum(first_shrink_ns is None or late.time_ns < first_shrink_ns for late, _ in disordered(control_observed)),
            steps,
            keys_moved=len(moved),
            hand_over_growing=took(lambda step: step.killed is None and not step.shrinks),
            hand_over_shrinking=took(lambda step: step.killed is None and step.shrinks),
            hand_over_killed=took(lambda step: step.killed is not None),
            produce_s=produce_s,
            paused_s=max(worker.last.get("paused_s", 0.0) for worker in producers),
            deliver_s=deliver_s,
            exported=exported,
        )
        view.stage("Spark reads the exported files, while the marked partitions are drained")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(audit_into, result, export_directory, directory / PAGE_NAME)
            result.drained_s = await drained_after(admin, TOPIC, STEPS[-1].partitions)
    return result


def _resize(done: Done) -> Resize:
    planned = moves(PARTITIONS, done.partitions_before, done.partitions)
    return Resize(done.began_ns, frozenset((move.source, move.target) for move in planned))


async def audit_into(result: DemoResult, directory: Path, page: Path) -> None:
    """Audit the exported files, and store the report in ``result``.

    A cancellation does not wait for Spark. Otherwise Ctrl-C would have no effect until Spark is ready.
    """
    started = time.monotonic()
    result.audit = await trio.to_thread.run_sync(_audit, str(directory), page, abandon_on_cancel=True)
    result.audit["seconds"] = round(time.monotonic() - started, 3)


def _audit(directory: str, page: Path) -> dict[str, Any]:
    """The audit's report as JSON values; its page is written to ``page``."""
    from anabranch.audit.class_archive import archive_of_user
    from anabranch.audit.discovery import discover
    from anabranch.audit.page import render_page
    from anabranch.audit.run import run_audit

    report = run_audit(directory, order_by="tsv:0", classes=archive_of_user(may_write=False))
    page.write_text(render_page(report, [topic.manifest for topic in discover(directory)]), encoding="utf-8")
    return report.to_json()
