"""Exports a topic of a running cluster: its segment files from the brokers' log directories, with a manifest."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from anabranch import Admin
from anabranch.client.admin.types import LogDirDescription
from anabranch.client.cluster import PartitionInfo
from anabranch.command_error import CommandError
from anabranch.export.destination import open_destination
from anabranch.export.replica_files import read_high_watermarks, read_leader_epochs
from anabranch.export.run import PARTIAL_EVERY_BYTES, ExportProgress, ExportReport, ExportRun, NoProgress, ReplicaSource
from anabranch.export.segment_pieces import SourceChangedError
from anabranch.export.state import CopyKey, Head, ReplicaBounds
from anabranch.protocol.sentinels import NO_OFFSET
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.znode import format_id

COPY_ATTEMPTS = 20
RETRY_DELAY_S = 0.25


async def export_topic(
    admin: Admin,
    topic: str,
    to: str | Path,
    log_dirs: Mapping[int, Path] | None = None,
    *,
    all_replicas: bool = False,
    progress: ExportProgress | None = None,
    partial_every: int = PARTIAL_EVERY_BYTES,
) -> ExportReport:
    """Copy the new records of every partition to ``to``, a directory or a URI, up to the high watermark.

    The files are read from the paths that the brokers report, so this runs on the brokers' machine. ``log_dirs`` maps a
    broker id to another path of its log directory, such as a mounted volume. Raises ``CommandError`` when a directory
    cannot be read or the export cannot continue, and ``KafkaError`` when a broker refuses a request.
    """
    destination = open_destination(to)
    cluster = _Cluster(admin, topic, log_dirs or {}, all_replicas)
    head = await cluster.head()
    with destination.hold():
        run = ExportRun(destination, head, progress or NoProgress(), partial_every)
        try:
            return await _export(cluster, run)
        finally:
            run.stop()  # after a cancellation a thread may still copy


async def _export(cluster: _Cluster, run: ExportRun) -> ExportReport:
    await anyio.to_thread.run_sync(run.open)
    view = await cluster.look(run)
    for key in sorted(view.sources, key=lambda key: (key.partition, key.broker is not None, key.broker)):
        await _copy(cluster, run, key, view.sources[key])
    for partition, directories in view.directories.items():
        run.add_layouts(partition, directories)
    return await anyio.to_thread.run_sync(run.finish, view.unread)


async def _copy(cluster: _Cluster, run: ExportRun, key: CopyKey, source: ReplicaSource) -> None:
    """Copy one replica. When its files change meanwhile, continue at the reached offset."""
    reached, attempts = -1, 0
    while True:
        changed: Exception | None = None
        try:
            await anyio.to_thread.run_sync(run.copy, key, source)
        except (SourceChangedError, FileNotFoundError) as error:
            changed = error
        end = run.copies[key].end_offset if key in run.copies else NO_OFFSET
        if changed is None and (key.broker is None or source.may_lag or end >= source.bounds.high_watermark):
            return
        reached, attempts = end, 1 if end > reached else attempts + 1
        if attempts > COPY_ATTEMPTS:
            if changed is None:
                return  # an in-sync replica lacks records: the audit reports that
            raise CommandError(
                f"{source.directory} changed {attempts} times while it was copied, most recently: {changed}; "
                "export again later"
            )
        await anyio.sleep(RETRY_DELAY_S)
        present = (await cluster.look(run, key.partition)).sources.get(key)
        if present is None:
            return  # the partition or this replica was removed
        source = present


@dataclass(frozen=True, slots=True)
class _View:
    """The replicas to copy, all known directories of each partition, and the brokers that did not respond."""

    sources: dict[CopyKey, ReplicaSource]
    directories: dict[int, list[Path]]
    unread: tuple[int, ...]


class _Cluster:
    """The present state of one topic, from the brokers."""

    def __init__(self, admin: Admin, topic: str, log_dirs: Mapping[int, Path], all_replicas: bool) -> None:
        self._admin = admin
        self._topic = topic
        self._log_dirs = log_dirs
        self._all_replicas = all_replicas

    async def head(self) -> Head:
        description = (await self._admin.describe_topics([self._topic]))[self._topic]
        configs = await self._admin.describe_configs(topics=[self._topic])
        cluster = await self._admin.describe_cluster()
        return Head(
            self._topic,
            format_id(description.topic_id) if description.topic_id.int else "",
            cluster.cluster_id or "",
            configs[self._topic]["cleanup.policy"].value or "delete",
            {p.partition: p.incarnation for p in description.partitions if p.incarnation >= 0},
        )

    async def look(self, run: ExportRun, partition: int | None = None) -> _View:
        """The present state of all partitions, or of one partition.

        The ISR is requested after the high watermarks, so the ISR's replicas have all records below the high
        watermarks.
        """
        numbers = [p.partition for p in await self._partitions() if partition in (None, p.partition)]
        tps = [TopicPartition(self._topic, number) for number in numbers]
        starts = await self._admin.list_offsets(dict.fromkeys(tps, "earliest"))
        ends = await self._admin.list_offsets(dict.fromkeys(tps, "latest"))
        partitions = [p for p in await self._partitions() if p.partition in numbers]
        live = {node.id for node in (await self._admin.describe_cluster()).nodes}
        wanted = {p.leader for p in partitions} | {replica for p in partitions for replica in p.replicas}
        places = _Places(await self._admin.describe_log_dirs(sorted(live & wanted)), self._log_dirs)
        sources: dict[CopyKey, ReplicaSource] = {}
        directories: dict[int, list[Path]] = {}
        unread = set()
        for info in partitions:
            tp = TopicPartition(self._topic, info.partition)
            leader = places.readable(info.leader, tp)
            start, end = starts[tp].offset, ends[tp].offset
            sources[CopyKey(info.partition, None)] = _source(info.leader, leader, start, end)
            others = [broker for broker in info.replicas if broker != info.leader]
            found = {broker: places.of(broker, tp) for broker in others}
            directories[info.partition] = [leader, *(path for path in found.values() if path is not None)]
            run.leaders[info.partition] = info.leader
            run.add_layouts(info.partition, directories[info.partition])
            for broker in info.replicas if self._all_replicas else ():
                key = CopyKey(info.partition, broker)
                if broker == info.leader:
                    if key in run.copies:  # it was a follower before
                        sources[key] = _source(broker, leader, start, end)
                elif found[broker] is None:
                    unread.add(broker)
                else:
                    place = places.readable(broker, tp)
                    known = end if broker in info.isr else min(end, read_high_watermarks(place.parent).get(tp, 0))
                    sources[key] = _source(broker, place, start, known, may_lag=broker not in info.isr)
        return _View(sources, directories, tuple(sorted(unread)))

    async def _partitions(self) -> Sequence[PartitionInfo]:
        partitions = (await self._admin.describe_topics([self._topic]))[self._topic].partitions
        without = sorted(p.partition for p in partitions if p.leader < 0)
        if without:
            raise CommandError(
                f"partition {without[0]} of {self._topic} has no leader; start a broker with an in-sync replica of it, "
                "and export again"
            )
        return partitions


class _Places:
    """The local paths of the brokers' replicas."""

    def __init__(self, described: Mapping[int, Iterable[LogDirDescription]], log_dirs: Mapping[int, Path]) -> None:
        self._described = described
        self._log_dirs = log_dirs

    def of(self, broker: int, tp: TopicPartition) -> Path | None:
        """A replica's directory; None when the broker does not report one."""
        here = [
            directory.path
            for directory in self._described.get(broker, ())
            if tp in directory.partitions and not directory.partitions[tp].is_future
        ]
        return self._log_dirs.get(broker, Path(here[0])) / f"{tp.topic}-{tp.partition}" if here else None

    def readable(self, broker: int, tp: TopicPartition) -> Path:
        path = self.of(broker, tp)
        if path is None:
            raise CommandError(
                f"broker {broker} reports no log directory for {tp.topic}-{tp.partition}; try again in a moment"
            )
        if not os.access(path, os.R_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise CommandError(
                f"cannot read {path} of broker {broker} on this machine; run the export on the broker's machine, or "
                f"give the path of its log directory here with --log-dir {broker}=PATH"
            )
        return path


def _source(broker: int, directory: Path, start: int, end: int, *, may_lag: bool = False) -> ReplicaSource:
    return ReplicaSource(broker, directory, ReplicaBounds(start, end, read_leader_epochs(directory)), may_lag)
