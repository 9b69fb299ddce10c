"""An exported topic with a history of resizes, written by the broker's own log, for the audit's tests."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trio

from anabranch.audit.manifest import (
    MANIFEST_NAME,
    EpochStart,
    FileEntry,
    LayoutLine,
    Manifest,
    PartitionEntry,
    ReplicaEntry,
    SegmentEntry,
    decode_layouts,
)
from anabranch.audit.summary import crc32c_of
from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.layout_history import LayoutEntry
from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.log_creation import create_log
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.producer_state import ProducerState
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from tests.support.log.log_fixture import START_MS, LogFixture

TOPIC = "events"
TOPIC_ID = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")


class History:
    """A topic that is resized while an idempotent producer writes to it. ``finish`` exports the topic."""

    def __init__(self, root: Path, partitions: int, **config: Any) -> None:
        self.root = root
        self.initial = self.count = partitions
        self.version = 0
        self.written = 0
        self.epochs: dict[int, int] = {}
        self.logs: dict[int, PartitionLog] = {}
        self._config = LogConfig(**config)
        self._env = LogFixture(root).env
        self._sequences: dict[int, int] = {}
        self._give_layouts()

    def _give_layouts(self) -> None:
        """Give every partition the present layout in a new leader epoch, and create missing partitions."""
        for partition in range(max(self.count, len(self.logs))):
            if partition not in self.logs:
                self._create(partition)
            epoch = self.epochs[partition] = self.epochs.get(partition, -1) + 1
            log = self.logs[partition]
            log.assign_epoch(epoch)
            log.layouts.assign(LayoutEntry(epoch, self.initial, self.count, self.version))

    def _create(self, partition: int) -> None:
        directory, name = str(self.root / f"{TOPIC}-{partition}"), TopicPartition(TOPIC, partition)
        metadata = LogIdentity(TOPIC_ID, 5)
        self.logs[partition] = create_log(self._env, directory, name, metadata, self._config, ProducerState())

    def resize(self, partitions: int) -> None:
        self.count, self.version = partitions, self.version + 1
        self._give_layouts()

    def partition_of(self, key: bytes) -> int:
        return place(positive_hash(key), self.initial, self.count)

    def batch(
        self, partition: int, records: list[tuple[bytes | None, bytes]], sequence: int | None = None, **fields: Any
    ) -> bytearray:
        """The next batch of the partition's producer. Each record has a later timestamp."""
        first = self._sequences.get(partition, 0) if sequence is None else sequence
        self._sequences[partition] = first + len(records)
        self.written += len(records)
        named = {"producer_id": 7, "producer_epoch": 0, "base_sequence": first} | fields
        at = START_MS + self.written
        return bytearray(build_batch([(key, value, (), at) for key, value in records], **named))

    def append(self, partition: int, records: list[tuple[bytes | None, bytes]]) -> None:
        self.logs[partition].append_as_leader(self.batch(partition, records), self.epochs[partition])

    def append_unchecked(
        self, partition: int, records: list[tuple[bytes | None, bytes]], epoch: int | None = None, **fields: Any
    ) -> tuple[int, int]:
        """Append a batch as a follower does, without a leader's checks. Return the batch's offset and position."""
        log = self.logs[partition]
        offset, position = log.log_end_offset, log.segments[-1].size_bytes
        leader_epoch = self.epochs[partition] if epoch is None else epoch
        log.append_as_follower(self.batch(partition, records, base_offset=offset, leader_epoch=leader_epoch, **fields))
        return offset, position

    def write_rounds(self, keys: list[bytes], rounds: int) -> None:
        """Write rounds with one record of every key, in one batch per partition. Values are ``<number>\\t<text>``."""
        of_partition: dict[int, list[bytes]] = {}
        for key in keys:
            of_partition.setdefault(self.partition_of(key), []).append(key)
        for _ in range(rounds):
            for partition, placed in of_partition.items():
                first = self.written
                self.append(partition, [(key, b"%d\t%s" % (first + n, key)) for n, key in enumerate(placed)])

    def finish(self, copied: tuple[int, ...] = ()) -> None:
        """Close the logs and write the manifest. Broker 2 also has a replica of each partition in ``copied``."""

        async def close() -> None:
            for log in self.logs.values():
                log.layouts.save()
                await log.close()

        trio.run(close)
        self.write_manifest(copied)

    def write_manifest(self, copied: tuple[int, ...] = ()) -> None:
        """Write the manifest of the present files."""
        for partition in copied:
            folder = f"{TOPIC}-{partition}"
            shutil.copytree(self.root / folder, self.root / "replicas" / "2" / folder)
        entries = [self._entry(partition, partition in copied) for partition in sorted(self.logs)]
        manifest = Manifest(TOPIC, "delete", self.initial, self.count, entries, self.version, generation=1)
        (self.root / MANIFEST_NAME).write_bytes(manifest.encode())

    def _entry(self, partition: int, copied: bool) -> PartitionEntry:
        folder = self.root / f"{TOPIC}-{partition}"
        end, segments = self.logs[partition].log_end_offset, list(_segments(folder))
        epochs = [EpochStart(*line) for line in self.logs[partition].leader_epoch_cache.entries]
        path = folder / "partition-count-checkpoint"
        layouts: list[LayoutLine] = decode_layouts(path.read_text(), str(path))
        replicas = [ReplicaEntry(2, 0, end, segments, epochs)] if copied else []
        return PartitionEntry(partition, 0, end, segments, layouts, epochs, leader=1, replicas=replicas)


def _segments(folder: Path) -> Iterator[SegmentEntry]:
    for log in sorted(folder.glob("*.log")):
        files = [
            FileEntry(path.name, *crc32c_of(path))
            for path in (log.with_suffix(".index"), log.with_suffix(".timeindex"))
        ]
        size, crc = crc32c_of(log)
        yield SegmentEntry(log.name, int(log.stem), size, crc32c=crc, files=files)
