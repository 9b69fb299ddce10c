"""A topic ``t`` with one partition in the directories of three brokers, and a fake Admin for these brokers."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio

from anabranch.audit.manifest import MANIFEST_NAME, Manifest
from anabranch.broker.log.checkpoint_files import (
    LogIdentity,
    encode_epochs,
    encode_offsets,
    encode_partition_metadata,
)
from anabranch.client.admin.types import LogDirDescription, ReplicaSize, TopicDescription
from anabranch.client.cluster import PartitionInfo
from anabranch.client.net.offsets import OffsetAndTimestamp
from anabranch.export.live import export_topic
from anabranch.export.run import ExportReport
from anabranch.protocol.records import iter_batches, set_base_offset
from anabranch.protocol.types import TopicPartition
from tests.support.log.batches import batch_of

TP = TopicPartition("t", 0)
TOPIC_ID = uuid.UUID(int=7)


def batches(base: int, count: int, epoch: int = 0, value_bytes: int = 10) -> bytes:
    """``count`` batches of two records from offset ``base`` on."""
    data = bytearray()
    for number in range(count):
        batch = bytearray(batch_of(2, value_bytes=value_bytes))
        set_base_offset(memoryview(batch), base + 2 * number, epoch)
        data += batch
    return bytes(data)


def offsets(path: Path) -> list[int]:
    """The offsets of a ``.log`` file's records."""
    return [record.offset for batch in iter_batches(path.read_bytes()) for record in batch]


def index_of(log: bytes, base: int) -> bytes:
    """An offset index with an entry for each batch."""
    index, position = b"", 0
    for batch in iter_batches(log, allow_partial_tail=True):
        index += struct.pack(">ii", batch.last_offset - base, position)
        position += batch.length
    return index


class Replica:
    """A broker's directory of the partition."""

    def __init__(self, log_dir: Path) -> None:
        self.log_dir = log_dir
        self.directory = log_dir / "t-0"
        self.directory.mkdir(parents=True)
        metadata = encode_partition_metadata(LogIdentity(TOPIC_ID, 40))
        (self.directory / "partition.metadata").write_bytes(metadata)
        self.epochs([(0, 0)])

    def segment(self, base: int, data: bytes) -> Path:
        """Write or replace a segment with a full index, in a new file, as a compaction does."""
        path = self.directory / f"{base:020d}.log"
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.with_suffix(".index").write_bytes(index_of(data, base))
        return path

    def append(self, base: int, data: bytes) -> None:
        """Append to a segment, as a broker does."""
        path = self.directory / f"{base:020d}.log"
        with path.open("ab") as file:
            file.write(data)
        path.with_suffix(".index").write_bytes(index_of(path.read_bytes(), base))

    def remove(self, base: int) -> None:
        for suffix in (".log", ".index"):
            (self.directory / f"{base:020d}{suffix}").unlink()

    def epochs(self, entries: list[tuple[int, int]]) -> None:
        (self.directory / "leader-epoch-checkpoint").write_bytes(encode_epochs(entries))

    def layouts(self, *lines: str) -> None:
        text = "\n".join(["0", str(len(lines)), *lines, ""])
        (self.directory / "partition-count-checkpoint").write_text(text)

    def high_watermark(self, offset: int) -> None:
        (self.log_dir / "replication-offset-checkpoint").write_bytes(encode_offsets({TP: offset}))


@dataclass
class Cluster:
    """The state that the fake Admin returns. The tests change it."""

    root: Path
    leader: int = 1
    isr: tuple[int, ...] = (1, 2, 3)
    live: tuple[int, ...] = (1, 2, 3)
    assigned: tuple[int, ...] = (1, 2, 3)
    log_start: int = 0
    high_watermark: int = 0
    topic_id: uuid.UUID = TOPIC_ID
    incarnation: int = 40
    cluster_id: str = "cluster-a"
    cleanup_policy: str = "delete"
    replicas: dict[int, Replica] = field(default_factory=dict)

    def replica(self, broker: int) -> Replica:
        if broker not in self.replicas:
            self.replicas[broker] = Replica(self.root / f"broker-{broker}")
        return self.replicas[broker]

    async def describe_topics(self, names: list[str]) -> Any:
        info = PartitionInfo(
            0, leader=self.leader, leader_epoch=5, replicas=self.assigned, isr=self.isr, incarnation=self.incarnation
        )
        return {name: TopicDescription(name, self.topic_id, False, (info,)) for name in names}

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes=[SimpleNamespace(id=broker) for broker in self.live], cluster_id=self.cluster_id)

    async def describe_log_dirs(self, brokers: Iterable[int]) -> Any:
        assert set(brokers) <= set(self.live)
        here = {TP: ReplicaSize(1, 0, False)}
        return {broker: [LogDirDescription(str(self.root / f"broker-{broker}"), here)] for broker in brokers}

    async def list_offsets(self, specs: dict[TopicPartition, str]) -> Any:
        found = {"earliest": self.log_start, "latest": self.high_watermark}
        return {tp: OffsetAndTimestamp(found[spec], -1, 0) for tp, spec in specs.items()}

    async def describe_configs(self, topics: list[str]) -> Any:
        return {topic: {"cleanup.policy": SimpleNamespace(value=self.cleanup_policy)} for topic in topics}

    def export(self, to: Path | str | None = None, topic: str = "t", **options: Any) -> ExportReport:
        async def run() -> ExportReport:
            return await export_topic(self, topic, to or self.root / "out", **options)  # type: ignore[arg-type]

        return anyio.run(run)

    @property
    def out(self) -> Path:
        return self.root / "out" / "t-0"

    def manifest(self) -> Manifest:
        return Manifest.decode((self.root / "out" / MANIFEST_NAME).read_bytes())

    def exported(self, directory: Path | None = None) -> list[int]:
        """Return the offsets in the manifest's files, in the order of the files."""
        entry = self.manifest().partitions[0]
        return [offset for segment in entry.segments for offset in offsets((directory or self.out) / segment.name)]
