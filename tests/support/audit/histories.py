"""Manifests and reports of invented topics, for tests of the audit's page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from anabranch.audit.manifest import LayoutLine, Manifest, PartitionEntry
from anabranch.audit.report import AuditReport, Check, Epoch, HotKey, Violation

T0 = 1_700_000_000_000
RECORDS = 100
"""The number of records of a partition in each leader epoch."""


def topic(counts: Sequence[int], name: str = "events") -> Manifest:
    """A topic that had these partition counts in turn; every partition has one leader epoch per layout."""
    layouts = [LayoutLine(version, counts[0], count, version) for version, count in enumerate(counts)]
    entries = []
    for p in range(max(counts)):
        first = next(layout for layout in layouts if p < layout.undeleted_partition_count)
        entries.append(PartitionEntry(p, 0, -1, [], layouts[first.layout_version :]))
    return Manifest(name, "delete", counts[0], counts[-1], entries, layout_version=len(counts) - 1)


def epochs_of(manifest: Manifest) -> list[Epoch]:
    """The leader epochs of the files. Each partition in use got RECORDS records of 10 bytes under each layout."""
    return [
        Epoch(
            topic=manifest.topic,
            partition=entry.partition,
            leader_epoch=layout.leader_epoch,
            layout_version=layout.layout_version,
            initial_partition_count=layout.initial_partition_count,
            undeleted_partition_count=layout.undeleted_partition_count,
            first_offset=RECORDS * number,
            last_offset=RECORDS * (number + 1) - 1,
            first_timestamp=T0 + 1000 * layout.layout_version,
            last_timestamp=T0 + 1000 * layout.layout_version + 999,
            batches=10,
            records=RECORDS,
            bytes=10 * RECORDS,
        )
        for entry in manifest.partitions
        for number, layout in enumerate(x for x in entry.layouts if entry.partition < x.undeleted_partition_count)
    ]


def report(
    manifests: Iterable[Manifest],
    checks: Sequence[Check] = (Check("key order", 1000), Check("crc", 100)),
    hot_keys: Sequence[HotKey] = (),
    epochs: Sequence[Epoch] | None = None,
) -> AuditReport:
    manifests = list(manifests)
    if epochs is None:
        epochs = [epoch for manifest in manifests for epoch in epochs_of(manifest)]
    return AuditReport(
        directory="exported",
        topics=[manifest.topic for manifest in manifests],
        partitions=sum(len(manifest.partitions) for manifest in manifests),
        segments=sum(len(manifest.partitions) for manifest in manifests),
        batches=sum(epoch.batches for epoch in epochs),
        records=sum(epoch.records for epoch in epochs),
        checks=list(checks),
        bytes=sum(epoch.bytes for epoch in epochs),
        epochs=list(epochs),
        hot_keys=list(hot_keys),
    )


def violation(
    partition: int, offset: int, message: str = "order value 3 comes after 7", name: str = "events"
) -> Violation:
    return Violation(name, partition, offset, f"{name}-{partition}/00000000000000000000.log", 4096, message)
