"""Exported directories for the audit's tests: a small topic written by our own batch builder, whole or broken."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anabranch.audit.manifest import MANIFEST_NAME, LayoutLine, Manifest, PartitionEntry, SegmentEntry
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import place, positive_hash

T0 = 1_700_000_000_000


@dataclass
class PartitionWriter:
    """Appends batches to one partition's segments, and keeps a producer's state."""

    path: Path
    offset: int = 0
    sequence: int = 0
    segment: Path | None = None
    segments: list[Path] = field(default_factory=list)

    def roll(self) -> None:
        self.segment = self.path / f"{self.offset:020d}.log"
        self.segment.touch()
        self.segments.append(self.segment)

    def write(self, batch: bytes, records: int) -> None:
        if self.segment is None:
            self.roll()
        assert self.segment is not None
        with self.segment.open("ab") as file:
            file.write(batch)
        self.offset += records

    def append(
        self,
        records: Sequence[tuple[bytes | None, bytes | None]],
        *,
        compression: CompressionType = CompressionType.NONE,
        leader_epoch: int = 0,
        sequence: int | None = None,
        producer_id: int = 7,
        headers: Sequence[tuple[str, bytes | None]] = (),
    ) -> None:
        first = self.sequence if sequence is None else sequence
        batch = build_batch(
            [(key, value, headers, T0) for key, value in records],
            compression=compression,
            base_offset=self.offset,
            leader_epoch=leader_epoch,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=first,
        )
        self.sequence = first + len(records)
        self.write(batch, len(records))


class TopicWriter:
    """A topic below ``root``; ``finish`` writes the manifest of its files."""

    def __init__(self, root: Path, topic: str, initial: int, *, cleanup_policy: str = "delete") -> None:
        self.root = root
        self.topic = topic
        self.initial = initial
        self.cleanup_policy = cleanup_policy
        self.layouts: dict[int, list[LayoutLine]] = {}
        self.partitions: dict[int, PartitionWriter] = {}
        for partition in range(initial):
            self.add_partition(partition)

    def add_partition(self, partition: int) -> None:
        path = self.root / f"{self.topic}-{partition}"
        path.mkdir(parents=True)
        self.partitions[partition] = PartitionWriter(path)

    def place(self, key: bytes, undeleted: int | None = None) -> PartitionWriter:
        return self.partitions[place(positive_hash(key), self.initial, undeleted or self.initial)]

    def manifest(self) -> Manifest:
        entries = [
            PartitionEntry(
                partition=number,
                log_start_offset=0,
                high_watermark=writer.offset,
                segments=[SegmentEntry(x.name, int(x.stem), x.stat().st_size) for x in writer.segments],
                layouts=self.layouts.get(number, []),
            )
            for number, writer in self.partitions.items()
        ]
        last = max((y for x in self.layouts.values() for y in x), key=lambda x: x.layout_version, default=None)
        return Manifest(
            topic=self.topic,
            cleanup_policy=self.cleanup_policy,
            initial_partition_count=self.initial,
            undeleted_partition_count=last.undeleted_partition_count if last else self.initial,
            layout_version=last.layout_version if last else 0,
            partitions=entries,
        )

    def finish(self) -> None:
        (self.root / MANIFEST_NAME).write_bytes(self.manifest().encode())


def write_sample(root: Path, prepare: Callable[[TopicWriter], None] | None = None) -> TopicWriter:
    """Three partitions, 40 keys, all codecs, two segments each; values are ``<sequence>\\t<text>``."""
    writer = TopicWriter(root, "events", 3)
    codecs = list(CompressionType)
    for round_number in range(12):
        per_partition: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
        for key_number in range(40):
            key = b"key-%d" % key_number
            value = b"%d\tchange of %s" % (round_number * 40 + key_number, key)
            per_partition.setdefault(place(positive_hash(key), 3, 3), []).append((key, value))
        for partition, records in per_partition.items():
            if round_number == 6:
                writer.partitions[partition].roll()
            codec = codecs[round_number % len(codecs)]
            writer.partitions[partition].append(records, compression=codec)
    if prepare is not None:
        prepare(writer)
    writer.finish()
    return writer
