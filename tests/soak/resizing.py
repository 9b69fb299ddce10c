"""Resizes a topic every few seconds, and keeps the records of its partitions before they are removed."""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from operator import itemgetter
from pathlib import Path

import msgspec
import trio

from anabranch import Admin
from anabranch.audit.manifest import LayoutLine as StoredLayout
from anabranch.audit.manifest import decode_layouts
from anabranch.broker.log.paths import offset_of
from anabranch.client.errors import KafkaError
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import NoNodeError, ZkError, ZkStore
from anabranch.runtime.zk_kazoo import open_zk
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.history.events import ARCHIVE, EXPIRED, Created, Drained, Event, LayoutSet, Removed, Replica, StoredBatch
from tests.soak import disks
from tests.soak.cluster import LOG_DIR_NAMES
from tests.soak.network import HOST
from tests.soak.recorder import Recorder
from tests.soak.workload import Progress
from tests.support.controller.topic_incarnations import Incarnation, TopicIncarnations

EVERY_S = (2.0, 6.0)
STOCK_REFRESH_S = 6.0
"""The time in which stock clients notice a removal. Until then no partition with the same number is created."""
FINISH_LIMIT_S = 90.0
_LOOK_EVERY_S = 0.05
_ADMIN_TIMEOUT_MS = 5_000
_LAYOUTS = "partition-count-checkpoint"


class Resizer:
    """Resizes the topic. ``watch`` reads the znodes without a proxy; ``run`` requests one count after the other."""

    def __init__(
        self, directory: Path, recorder: Recorder, topic: str, initial: int, progress: Iterable[Progress]
    ) -> None:
        self._directory = directory
        self._archive = directory.parent / "archive"
        self._recorder = recorder
        self._initial = initial
        self._progress = list(progress)
        self._incarnations = TopicIncarnations(topic)
        self._znode: TopicZnode | None = None
        self._removed_at = -STOCK_REFRESH_S
        self._ends: dict[tuple[TopicPartition, int], int] = {}
        """The end offsets of removed partitions, from the topic's znode."""
        self._numbers: set[int] = set()
        self._created_again = 0
        self._closed: set[tuple[TopicPartition, int]] = set()
        self._layouts: dict[tuple[TopicPartition, int], dict[StoredLayout, None]] = {}

    @property
    def partitions(self) -> list[TopicPartition]:
        """The existing partitions that have had a leader."""
        return self._incarnations.tps()

    def may_vanish(self, tp: TopicPartition) -> bool:
        """Whether the partition may be removed at any time, with its commits. Initial partitions are never removed."""
        return tp.partition >= self._initial

    def created_again(self) -> int:
        """How many partitions were created so far with the number of a removed partition."""
        return self._created_again

    # ------------------------------------------------------------ asking

    async def run(self, bootstrap: str, seed: int) -> None:
        """Resize until cancelled. If a request fails because of a fault, the znodes show its result anyway."""
        rng = random.Random(seed)
        while True:
            await trio.sleep(rng.uniform(*EVERY_S))  # pause: between two resizes
            count = self._next_count(rng)
            if count is None:
                continue
            self._recorder.fault("resize", f"to {count}")
            try:
                async with Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=_ADMIN_TIMEOUT_MS) as admin:
                    await admin.create_partitions({self._incarnations.topic: count}, timeout_ms=1000)
            except (OSError, KafkaError) as error:
                self._recorder.fault("resize not answered", f"to {count}: {error}", count=False)

    def _next_count(self, rng: random.Random) -> int | None:
        """Choose another count, even during a resize. The new resize cancels the one in progress, or follows it."""
        if self._znode is None:
            return None
        undeleted = self._znode.undeleted_partition_count
        staying = [part for part in self._incarnations.present.values() if not part.is_leaving]
        may_create = trio.current_time() - self._removed_at > STOCK_REFRESH_S
        most = 2 * self._initial if may_create else len(staying)
        if undeleted < most and rng.random() < 0.6:
            return rng.randint(undeleted + 1, most)
        return rng.randint(self._initial, undeleted - 1) if undeleted > self._initial else None

    # ------------------------------------------------------------ watching

    async def watch(self, zookeeper_port: int) -> None:
        """Watch the znodes and keep the files of removable partitions, until cancelled."""
        while True:
            with suppress(ZkError):
                async with open_zk(f"{HOST}:{zookeeper_port}", on_hang=None) as zk:
                    while True:
                        await self._look(zk)
                        await trio.to_thread.run_sync(self._keep_files)
                        await trio.sleep(_LOOK_EVERY_S)  # polls: the next observation
            await trio.sleep(_LOOK_EVERY_S)  # polls: until ZooKeeper serves again

    async def _look(self, zk: ZkStore) -> None:
        topic = self._incarnations.topic
        path = paths.topic(topic)
        znode = TopicZnode.decode(path, (await zk.get(path)).data)
        for number in sorted({*znode.partitions, *self._incarnations.present}):
            state_path = PartitionState.path(topic, number)
            state, incarnation = None, -1
            with suppress(NoNodeError):
                found = await zk.get(state_path)
                state, incarnation = PartitionState.decode(state_path, found.data), found.czxid
            for event in self._incarnations.saw(number, incarnation, state, znode, self._recorder.now_ms()):
                self._saw(event)
        if gone := [part for part in self._incarnations.gone if (part.tp, part.incarnation) not in self._ends]:
            znode = TopicZnode.decode(path, (await zk.get(path)).data)
            for part in gone:
                # One write removes a state and stores the end of the log.
                self._ends[part.tp, part.incarnation] = znode.base_offset(part.tp.partition)
        self._znode = znode

    def _saw(self, event: Event) -> None:
        self._recorder.record(event)
        if isinstance(event, LayoutSet):
            self._count_revived(event)
        elif isinstance(event, Removed):
            self._removed_at = trio.current_time()
            for progress in self._progress:
                progress.positions.pop(event.tp, None)
        elif isinstance(event, Created):
            self._created_again += event.tp.partition in self._numbers
            self._numbers.add(event.tp.partition)
            if event.tp.partition >= self._initial:
                self._recorder.fault("created", str(event.tp), count=False)

    def _count_revived(self, event: LayoutSet) -> None:
        part = event.tp, event.incarnation
        if event.tp.partition >= event.undeleted:
            self._closed.add(part)
        elif part in self._closed:
            self._closed.remove(part)
            self._recorder.revived += 1
            self._recorder.fault("revived", str(event.tp), count=False)

    async def finish(self) -> None:
        """Wait until the last resize is done."""
        with trio.move_on_after(FINISH_LIMIT_S):
            while self._left():
                await trio.sleep(_LOOK_EVERY_S)  # polls: until all is done
        if left := self._left():
            self._recorder.problem(f"a resize was not complete after {FINISH_LIMIT_S:g} s: {left}")

    def _left(self) -> str:
        return self._incarnations.unfinished(self._znode) if self._znode is not None else "no znode was read"

    # ------------------------------------------------------------ keeping

    def _keep_files(self) -> None:
        """Link the segments of partitions that may be removed, and read the layouts that replicas have stored."""
        brokers = sorted(path for path in self._directory.glob("broker-*") if path.is_dir())
        for broker, name in itertools.product(brokers, LOG_DIR_NAMES):
            for part in list(self._incarnations.present.values()):
                source = broker / name / str(part.tp)
                if disks.incarnation_in(source) != part.incarnation:
                    continue
                self._note_layouts(source / _LAYOUTS, (part.tp, part.incarnation))
                if self.may_vanish(part.tp):
                    target = self._archive / f"{part.tp}-{part.incarnation}" / broker.name
                    target.mkdir(parents=True, exist_ok=True)
                    for segment in disks.segments_of(source):
                        _link(segment, target / segment.name)

    def _note_layouts(self, path: Path, part: tuple[TopicPartition, int]) -> None:
        with suppress(OSError):
            self._layouts.setdefault(part, {}).update(dict.fromkeys(decode_layouts(path.read_text(), str(path))))

    def events(self, groups: Iterable[str]) -> Iterator[Event]:
        """The events at the end of a run: all layouts, and the records of removed partitions."""
        self._keep_files()
        now_ms = self._recorder.now_ms()
        for (tp, incarnation), layouts in self._layouts.items():
            for layout in sorted(layouts):
                yield LayoutSet(now_ms, tp, incarnation, *msgspec.structs.astuple(layout))
        for part in self._incarnations.gone:
            start, end, batches = self._archived(part)
            yield Replica(now_ms, ARCHIVE, part.tp, start, end, end, incarnation=part.incarnation)
            yield from batches
            for group in groups:
                yield Drained(now_ms, group, part.tp, end, part.incarnation)
        for part in self._incarnations.present.values():
            if self.may_vanish(part.tp):  # it may have been closed, drained and revived
                yield from max(self._kept_logs(part, EXPIRED).values(), key=itemgetter(1), default=(0, 0, []))[2]

    def _archived(self, part: Incarnation) -> tuple[int, int, list[StoredBatch]]:
        """Return the start, end and batches of a removed partition, from the longest in-sync log.

        The end in the topic's znode may come from an out-of-sync replica, with records that were never committed.
        """
        highest, logs = self._ends[part.tp, part.incarnation], self._kept_logs(part, ARCHIVE)
        if max((end for _, end, _ in logs.values()), default=0) < highest:
            self._recorder.problem(f"{part.tp} was removed before its log was copied up to its end, offset {highest}")
        isr = part.state.isr if part.state is not None else []
        in_sync = [log for broker, log in logs.items() if broker in isr]
        return max(in_sync or logs.values(), key=_whole_to_its_end, default=(highest, highest, []))

    def _kept_logs(self, part: Incarnation, source: int) -> dict[int, tuple[int, int, list[StoredBatch]]]:
        """Return the start, end and batches of each broker's kept log; ``source`` is the broker id in the batches."""
        now_ms, logs = self._recorder.now_ms(), dict[int, tuple[int, int, list[StoredBatch]]]()
        for broker in sorted((self._archive / f"{part.tp}-{part.incarnation}").glob("broker-*")):
            if segments := disks.segments_of(broker):
                batches = disks.stored_batches(segments, now_ms, source, part.tp, part.incarnation)
                start = offset_of(segments[0].name) or 0
                end = batches[-1].next_offset if batches else start
                logs[int(broker.name.removeprefix("broker-"))] = start, end, batches
        return logs

    def incarnation(self, tp: TopicPartition) -> int | None:
        """The incarnation of a partition; None when the partition is removed."""
        present = self._incarnations.present.get(tp.partition)
        return None if present is None else present.incarnation


def _whole_to_its_end(log: tuple[int, int, list[StoredBatch]]) -> tuple[bool, int]:
    """Order kept logs: without a hole before with one, then by their ends.

    A replica that lost its tail may begin again at the log start offset, in another segment. The kept log has the
    segments of both lives, and neither what was between them nor a hole of the topic.
    """
    _, end, batches = log
    return all(first.next_offset == second.base_offset for first, second in pairwise(batches)), end


def _link(source: Path, target: Path) -> None:
    """Link a file, even if it has replaced an older file. A file that does not exist any more is already linked."""
    with suppress(OSError):
        if target.exists() and target.samefile(source):
            return
        new = target.with_suffix(".new")
        os.link(source, new)
        new.replace(target)
