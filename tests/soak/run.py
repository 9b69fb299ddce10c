"""A run: cluster, workload and faults. At the end the history checker gets the final logs."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import trio

from anabranch import Admin, NewTopic
from anabranch.client.errors import KafkaError
from anabranch.protocol.errors import KafkaError as StoredError
from tests.history.checks import check_history
from tests.history.events import Drained, OrderedGroup, read_history
from tests.history.index import Violation
from tests.soak import disks
from tests.soak.cluster import LOG_DIR_FAILED_STATUS, NO_START_STATUS, WATCHDOG_STATUS, SoakCluster, run_cluster
from tests.soak.faults import BROKERS, Faults, Plan, kill_schedule, mixed_schedule
from tests.soak.observer import Observer
from tests.soak.recorder import Recorder
from tests.soak.resizing import Resizer
from tests.soak.workload import (
    OWN_WRITER,
    STOCK_WRITERS,
    WRITERS,
    OwnMember,
    Progress,
    StockMember,
    StockWriter,
    Stop,
    write,
)

TOPIC = "soak"
PARTITIONS = 4
CONFIGS = {"delete.records.when.drained": "true"}
STOCK_GROUP, OWN_GROUP = "stock-readers", "own-readers"
STOCK_MEMBERS = 3
DRAIN_LIMIT_S = 90.0
TOPIC_LIMIT_S = 60.0
_CHECK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class SoakConfig:
    """The settings of a run. ``per_s``: the total of records a second; Anabranch's producer writes a third of them."""

    directory: Path
    seconds: float
    seed: int
    per_s: float = 1500.0
    schedule: Callable[[int], Iterator[tuple[Plan, ...]]] = mixed_schedule
    only: tuple[str, ...] = ()
    """The kinds of faults in the schedule; empty for all kinds. A few kinds help to search for one bug."""
    overrides: Mapping[str, str] = field(default_factory=dict)
    resize: bool = True
    """Whether the topic grows and shrinks every few seconds."""

    @property
    def history(self) -> Path:
        return self.directory / "history.jsonl"

    def plans(self) -> Iterator[tuple[Plan, ...]]:
        for together in self.schedule(self.seed):
            kept = tuple(plan for plan in together if not self.only or plan.kind in self.only)
            if kept:
                yield kept


@dataclass(slots=True)
class SoakResult:
    """The result of a run: the recorder with observed ``problems``, and the checker's ``violations``."""

    recorder: Recorder
    violations: list[Violation]
    check_s: float

    @property
    def good(self) -> bool:
        return not self.violations and not self.recorder.problems

    def summary(self) -> str:
        recorder = self.recorder
        counts, faults = recorder.counts, recorder.faults
        lines = [
            f"sent {counts['Sent']}, acknowledged {counts['Acked']}, without an outcome or refused "
            f"{counts['NotWritten']}, delivered {counts['Polled']}, commits {counts['Committed']}, "
            f"rebalances {counts['Assigned']}",
            f"partitions created {counts['Created']}, revived {recorder.revived}, removed {counts['Removed']}",
            f"longest time without an acknowledgement {recorder.longest_silence_ms / 1000:.1f} s",
            f"faults {sum(faults.values())}: " + ", ".join(f"{kind} {count}" for kind, count in sorted(faults.items())),
            f"{len(self.violations)} violations, {len(recorder.problems)} problems, in {self.check_s:.1f} s",
            *recorder.problems,
            *map(str, self.violations),
        ]
        return "\n".join(lines)


async def soak(config: SoakConfig) -> SoakResult:
    """Run the cluster with faults, undo them, drain, stop, read the logs and check. The directory must not exist."""
    config.directory.mkdir(parents=True)
    recorder = Recorder(config.history)
    try:
        async with trio.open_nursery() as nursery:
            await _live(config, recorder, nursery)
            nursery.cancel_scope.cancel()
    finally:
        recorder.close()
    started = time.monotonic()
    violations = await trio.to_thread.run_sync(check_history, read_history(config.history))
    return SoakResult(recorder, violations, time.monotonic() - started)


async def _live(config: SoakConfig, recorder: Recorder, nursery: trio.Nursery) -> None:
    excused: set[str] = set()

    def on_death(name: str, status: int) -> None:
        if status in (WATCHDOG_STATUS, LOG_DIR_FAILED_STATUS) and name in excused:
            recorder.fault("ended", f"{name} with status {status}", count=False)
        elif status == NO_START_STATUS and cluster.found_no_zookeeper(name):
            recorder.fault("ended", f"{name}: it was started while ZooKeeper was down", count=False)
        else:
            recorder.problem(f"{name} ended by itself with status {status}")

    async with run_cluster(
        config.directory / "cluster", nursery, on_death=on_death, overrides=config.overrides
    ) as cluster:
        await _create_topic(cluster)
        progress = {STOCK_GROUP: Progress(), OWN_GROUP: Progress()}
        resizer = Resizer(cluster.directory, recorder, TOPIC, PARTITIONS, progress.values())
        nursery.start_soon(resizer.watch, cluster.zookeeper_port)
        observer = Observer(cluster, recorder, resizer)
        reading, writing = Stop(), Stop()
        async with trio.open_nursery() as readers:
            _start_readers(readers, cluster, recorder, progress, reading)
            try:
                async with trio.open_nursery() as onlookers:
                    for broker in cluster.direct:
                        onlookers.start_soon(observer.watch_watermarks, broker)
                    onlookers.start_soon(observer.watch_commits, list(progress))
                    await _break_and_heal(config, cluster, recorder, observer, resizer, excused, writing)
                    onlookers.cancel_scope.cancel()
                await resizer.finish()
                await _drain(observer, recorder, progress)
            except trio.Cancelled:
                reading.abandon()
                raise
            finally:
                reading.set()
        await _stop_and_read(cluster, recorder, resizer)
        recorder.record(*await trio.to_thread.run_sync(lambda: list(resizer.events(progress))))


async def _create_topic(cluster: SoakCluster) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        with trio.fail_after(TOPIC_LIMIT_S):
            while True:
                try:
                    await admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3, CONFIGS)])
                    return
                except (OSError, KafkaError):
                    await trio.sleep(_CHECK_EVERY_S)  # polls: until three brokers are registered


def _start_readers(
    nursery: trio.Nursery, cluster: SoakCluster, recorder: Recorder, progress: dict[str, Progress], stop: Stop
) -> None:
    for number in range(STOCK_MEMBERS):
        member = StockMember(f"stock-{number}", STOCK_GROUP, cluster.bootstrap, recorder, progress[STOCK_GROUP])
        nursery.start_soon(trio.to_thread.run_sync, member.run, TOPIC, stop)
    recorder.record(OrderedGroup(recorder.now_ms(), OWN_GROUP))
    for number in range(2):
        own = OwnMember(f"own-{number}", OWN_GROUP, cluster.bootstrap, recorder, progress[OWN_GROUP])
        nursery.start_soon(own.run, TOPIC, stop)


async def _break_and_heal(
    config: SoakConfig,
    cluster: SoakCluster,
    recorder: Recorder,
    observer: Observer,
    resizer: Resizer,
    excused: set[str],
    writing: Stop,
) -> None:
    """Run the load and the faults. Returns when all faults are undone and every record has its outcome."""
    faults = Faults(cluster, recorder, observer, [TOPIC], resizer.created_again)
    faults.excused = excused
    await faults.whole()
    async with trio.open_nursery() as writers:
        try:
            per_s = config.per_s / len(WRITERS)
            for name in STOCK_WRITERS:
                writer = StockWriter(name, cluster.bootstrap, TOPIC, per_s, recorder)
                writers.start_soon(trio.to_thread.run_sync, writer.run, writing)
            writers.start_soon(write, OWN_WRITER, cluster.bootstrap, TOPIC, per_s, recorder, writing)
            with trio.move_on_after(config.seconds):
                async with trio.open_nursery() as trouble:
                    if config.resize:
                        trouble.start_soon(resizer.run, cluster.bootstrap, config.seed)
                    await faults.run(config.plans(), wait_for_isr=config.schedule is not kill_schedule)
                    trouble.cancel_scope.cancel()
            recorder.fault("healed", "all faults are over", count=False)
            await faults.whole()
        except trio.Cancelled:
            writing.abandon()
            raise
        finally:
            writing.set()


async def _drain(observer: Observer, recorder: Recorder, progress: dict[str, Progress]) -> None:
    """Wait until each group has read everything, or the time limit. Then the checker names the missing records."""
    ends = await observer.end_offsets()
    with trio.move_on_after(DRAIN_LIMIT_S):
        while any(group.positions.get(tp, 0) < end for group in progress.values() for tp, end in ends.items()):
            await trio.sleep(_CHECK_EVERY_S)  # polls: until all is read
    recorder.record(*(Drained(recorder.now_ms(), group, tp, end) for group in progress for tp, end in ends.items()))


async def _stop_and_read(cluster: SoakCluster, recorder: Recorder, resizer: Resizer) -> None:
    for broker_id, broker in enumerate(BROKERS, 1):
        if not await cluster.stop(broker):
            recorder.problem(f"{broker} did not stop on SIGTERM")
        for log_dir in cluster.log_dirs(broker):
            try:
                found = disks.read_replicas(log_dir, broker_id, TOPIC, recorder.now_ms(), resizer.incarnation)
                recorder.record(*await trio.to_thread.run_sync(partial(list, found)))
            except StoredError as error:
                recorder.problem(f"a log of {broker} is damaged: {error}")


def remove(config: SoakConfig) -> None:
    shutil.rmtree(config.directory)
