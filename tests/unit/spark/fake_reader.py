"""A ``LogReader`` over a topic in memory, with the parts that a stream's driver uses."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from anabranch.client.cluster import Cluster, Node, PartitionInfo, TopicInfo
from anabranch.client.config import ConsumerConfig
from anabranch.client.consumer.log_reader import LineageAnswer
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.client.net.offsets import EpochEnd, OffsetAndTimestamp
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import LineageEntry

EARLIEST, LATEST = -2, -1


@dataclass
class FakePartition:
    end: int = 0
    start: int = 0
    leader_epoch: int = 0
    incarnation: int = 50
    entries: tuple[LineageEntry, ...] = ()
    ends: dict[int, int] = field(default_factory=dict)


class FakeReader:
    """One topic ``t``. ``over`` and ``over_ends`` describe removed partitions."""

    def __init__(self, count: int, end: int = 0) -> None:
        self.config = ConsumerConfig.parse(
            {"bootstrap_servers": "fake:1", "default_api_timeout_ms": 200, "retry_backoff_ms": 1}
        )
        self.cluster_id = "cluster-a"
        self.incarnation = 7
        self.topic_id = uuid.UUID(int=7)
        self.layout_version = 0
        self.partitions = {p: FakePartition(end) for p in range(count)}
        self.over: dict[int, int] = {}
        self.over_ends: dict[int, int] = {}
        self.silent: set[int] = set()
        """Partition numbers whose lineage no broker returns."""
        self.committed: dict[TopicPartition, OffsetAndMetadata] = {}
        self.lineage_requests = 0
        self.is_deleted = False

    async def cluster(self, topics: Iterable[str] | None) -> Cluster:
        partitions = {
            p: PartitionInfo(p, 1, known.leader_epoch, incarnation=known.incarnation)
            for p, known in self.partitions.items()
        }
        topic = TopicInfo(
            "t",
            self.topic_id,
            partitions,
            initial_partition_count=1,
            undeleted_partition_count=len(partitions),
            layout_version=self.layout_version,
            ordered_delivery=True,
            incarnation=self.incarnation,
        )
        return Cluster({1: Node(1, "fake", 1)}, {} if self.is_deleted else {"t": topic}, self.cluster_id)

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, timeout_ms: float | None = None, partial: bool = False
    ) -> dict[TopicPartition, OffsetAndTimestamp]:
        found = {}
        for tp, at in timestamps.items():
            known = self.partitions[tp.partition]
            offset = {EARLIEST: known.start, LATEST: known.end}[at]
            found[tp] = OffsetAndTimestamp(offset, -1, known.leader_epoch)
        return found

    async def lineages(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, LineageAnswer]:
        self.lineage_requests += 1
        found = {}
        for tp in partitions:
            known = self.partitions.get(tp.partition)
            over = self.over.get(tp.partition, -1)
            if tp.partition not in self.silent and (known is not None or over >= 0):
                lineage = None if known is None else Lineage(known.leader_epoch, -1, known.entries)
                found[tp] = LineageAnswer(lineage, over, self.over_ends.get(tp.partition, -1))
        return found

    async def epoch_ends(
        self, epochs: Iterable[tuple[TopicPartition, int]]
    ) -> dict[tuple[TopicPartition, int], EpochEnd]:
        return {
            (tp, epoch): EpochEnd(epoch, self.partitions[tp.partition].ends[epoch])
            for tp, epoch in epochs
            if tp.partition in self.partitions and epoch in self.partitions[tp.partition].ends
        }

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        self.committed.update(offsets)

    # ------------------------------------------------------------ events of the topic

    def split(self) -> None:
        """Split the topic, 1 -> 2: keys of partition 0 go to partition 1."""
        first = self.partitions[0]
        first.ends[0], first.leader_epoch = first.end, 1
        begins = self.over_ends.get(1, 0)
        epoch = self.over.get(1, -1) + 1
        self.partitions[1] = FakePartition(
            begins, begins, epoch, self.incarnation + 100 + epoch, (LineageEntry(epoch, {0: 0}),)
        )
        self.layout_version += 1

    def remove(self, p: int) -> None:
        gone = self.partitions.pop(p)
        self.over[p], self.over_ends[p] = gone.leader_epoch + 1, gone.end
        self.layout_version += 1
