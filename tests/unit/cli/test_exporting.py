"""Exporting a resized topic: its history of layouts comes from all replicas, for each may have missed a part of it."""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from anabranch.cli.errors import CommandError
from anabranch.exporting import export_topic
from audit.manifest import MANIFEST_NAME, Layout, Manifest
from client.admin_types import LogDirDescription, ReplicaSize, TopicDescription
from client.cluster import PartitionInfo
from client.offsets import OffsetAndTimestamp
from protocol.types import TopicPartition
from tests.batches import batch_of

TP = TopicPartition("t", 0)


class FakeAdmin:
    """Brokers 1, 2 and 3 have the partition in directories of their own; 1 leads it, ``live`` answer."""

    def __init__(self, root: Path, live: tuple[int, ...] = (1, 2, 3)) -> None:
        self.root = root
        self.live = live

    async def describe_topics(self, names: list[str]) -> Any:
        partition = PartitionInfo(0, leader=1, leader_epoch=5, replicas=(1, 2, 3), isr=self.live)
        return {"t": TopicDescription("t", uuid.uuid4(), False, (partition,))}

    async def describe_cluster(self) -> Any:
        return SimpleNamespace(nodes=[SimpleNamespace(id=broker) for broker in self.live])

    async def describe_log_dirs(self, brokers: list[int]) -> Any:
        assert set(brokers) <= set(self.live)
        return {
            broker: [LogDirDescription(str(self.root / f"broker-{broker}"), {TP: ReplicaSize(1, 0, False)})]
            for broker in brokers
        }

    async def list_offsets(self, specs: dict[TopicPartition, str]) -> Any:
        return {tp: OffsetAndTimestamp(0 if spec == "earliest" else 2, -1, 0) for tp, spec in specs.items()}

    async def describe_configs(self, topics: list[str]) -> Any:
        return {"t": {"cleanup.policy": SimpleNamespace(value="delete")}}


def replica(root: Path, broker: int, *layouts: str) -> None:
    directory = root / f"broker-{broker}" / "t-0"
    directory.mkdir(parents=True)
    (directory / f"{0:020d}.log").write_bytes(batch_of(2))
    (directory / "partition-count-checkpoint").write_text("\n".join(["0", str(len(layouts)), *layouts, ""]))


def exported(root: Path, admin: FakeAdmin) -> Manifest:
    async def export() -> None:
        await export_topic(admin, "t", root / "out")  # type: ignore[arg-type]

    anyio.run(export)
    return Manifest.decode((root / "out" / MANIFEST_NAME).read_bytes())


def test_what_the_leader_missed_is_taken_from_the_others(tmp_path: Path) -> None:
    replica(tmp_path, 1, "0 4 4 0", "5 4 9 2")
    replica(tmp_path, 2, "0 4 4 0", "3 4 6 1")
    replica(tmp_path, 3, "4 4 6 1", "5 4 9 2")
    manifest = exported(tmp_path, FakeAdmin(tmp_path))
    assert manifest.partitions[0].layouts == [
        Layout(0, 4, 4, 0), Layout(3, 4, 6, 1), Layout(4, 4, 6, 1), Layout(5, 4, 9, 2)
    ]  # fmt: skip
    assert (manifest.undeleted_partition_count, manifest.layout_version) == (9, 2)


def test_replicas_that_cannot_be_reached_are_left_out(tmp_path: Path) -> None:
    replica(tmp_path, 1, "0 4 4 0")
    assert exported(tmp_path, FakeAdmin(tmp_path, live=(1, 3))).partitions[0].layouts == [Layout(0, 4, 4, 0)]


def test_replicas_that_contradict_each_other_are_an_error(tmp_path: Path) -> None:
    replica(tmp_path, 1, "3 4 6 1")
    replica(tmp_path, 2, "3 4 9 2")
    replica(tmp_path, 3)
    with pytest.raises(CommandError, match="replicas disagree about the layout of leader epoch 3"):
        exported(tmp_path, FakeAdmin(tmp_path))
