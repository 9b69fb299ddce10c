"""A resized topic on a scripted broker, with and without a coordinator, and a log of a consumer's deliveries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import anyio

from anabranch import Consumer
from anabranch.client.group.group_protocol import encode_assignment
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.generated.consumer_group_position import ConsumerGroupPositionResponse
from anabranch.protocol.generated.find_coordinator import FindCoordinatorResponse
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupResponse
from anabranch.protocol.generated.leave_group import LeaveGroupResponse
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitResponse
from anabranch.protocol.generated.offset_fetch import OffsetFetchResponse
from anabranch.protocol.generated.offset_for_leader_epoch import OffsetForLeaderEpochResponse
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.generated.sync_group import SyncGroupResponse
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.protocol.messages import answered, by_partition
from tests.unit.client.fake_broker import FakeBroker

PARENT, CHILD = TopicPartition("t", 0), TopicPartition("t", 1)
NO_SECOND_TRY = {"retry_backoff_ms": 600_000, "retry_backoff_max_ms": 600_000}
"""These pauses are longer than a test, so no request is tried twice."""
FAST = {"retry_backoff_ms": 5, "fetch_max_wait_ms": 20, "auto_offset_reset": "earliest"}


class Resized(FakeBroker):
    """A topic that was split, 1 -> 2. The parent has ten records from before the split, and the child has five."""

    def __init__(self) -> None:
        super().__init__({"t": 2})
        self.announce("t", (1, 2, 1))
        self.metadata_hook = self.set_epochs
        self.lineage = {0: Lineage(1), 1: Lineage(0, -1, (LineageEntry(0, {0: 0}),))}
        self.answers = {
            ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: self.lineages,
            ApiKey.OFFSET_FOR_LEADER_EPOCH: self.ends,
        }
        self.fill(PARENT, 10)
        self.fill(CHILD, 5)

    def fill(self, tp: TopicPartition, count: int) -> None:
        for number in range(count):
            self.logs[tp].append(build_batch([(b"k", b"%d" % number, [], 0)]))

    def set_epochs(self, response: MetadataResponse) -> None:
        for topic in response.topics:
            topic.partitions[0].leader_epoch = 1

    def lineages(self, body: Any) -> PartitionLeaderEpochsForPartitionsResponse:
        response = answered(PartitionLeaderEpochsForPartitionsResponse, body, self.lineage_of)
        for topic, asked in zip(response.topics, body.topics, strict=True):
            topic.topic_incarnation = asked.topic_incarnation
        return response

    def lineage_of(self, _topic: str, partition: int, _asked: object) -> dict[str, Any]:
        known = self.lineage[partition]
        lineage = [
            {"epoch": epoch, "losers": [{"partition_index": q, "leader_epoch": f} for q, f in losers.items()]}
            for epoch, losers in known.entries
        ]
        return {"as_of": known.as_of, "floor": known.floor, "lineage": lineage}

    def ends(self, body: Any) -> OffsetForLeaderEpochResponse:
        return answered(
            OffsetForLeaderEpochResponse,
            body,
            lambda _, p, asked: {"leader_epoch": asked.leader_epoch, "end_offset": 10},
        )


class Shrunk(Resized):
    """The same topic shrunk to 1 again: the child has five records and accepts no more."""

    def __init__(self) -> None:
        super().__init__()
        self.announce("t", (1, 1, 2))
        self.lineage = {0: Lineage(2, -1, (LineageEntry(2, {1: 0}),)), 1: self.lineage[1]._replace(as_of=1)}

    def set_epochs(self, response: MetadataResponse) -> None:
        for topic in response.topics:
            topic.partitions[0].leader_epoch = 2
            topic.partitions[1].leader_epoch = 1

    def ends(self, body: Any) -> OffsetForLeaderEpochResponse:
        response = super().ends(body)
        for topic in response.topics:
            for p in topic.partitions:
                p.end_offset = 10 if p.partition == 0 else 5
        return response


class Coordinated(Resized):
    """The same topic with a coordinator.

    The coordinator returns committed offsets, and positions to clients that are not members.
    """

    def __init__(self) -> None:
        super().__init__()
        self.committed: dict[int, tuple[int, int]] = {}
        """(offset, incarnation) by partition."""
        self.answers |= {
            ApiKey.FIND_COORDINATOR: lambda body: FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port),
            ApiKey.OFFSET_FETCH: self.offset_fetch,
            ApiKey.OFFSET_COMMIT: self.offset_commit,
            ApiKey.CONSUMER_GROUP_POSITION: self.position,
        }

    def offset_fetch(self, body: Any) -> OffsetFetchResponse:
        def committed(_topic: str, p: int, _asked: object) -> dict[str, Any]:
            offset, incarnation = self.committed.get(p, (-1, -1))
            return {"committed_offset": offset, "metadata": "", "incarnation": incarnation}

        return answered(OffsetFetchResponse, body, committed)

    def offset_commit(self, body: Any) -> OffsetCommitResponse:
        for topic in body.topics:
            for p in topic.partitions:
                self.committed[p.partition_index] = (p.committed_offset, p.incarnation)
        return answered(OffsetCommitResponse, body, lambda *_: {})

    def position(self, body: Any) -> ConsumerGroupPositionResponse:
        assert (body.generation_id, body.member_id) == (-1, "")
        return answered(
            ConsumerGroupPositionResponse,
            body,
            lambda _, p, asked: {"incarnation": asked.incarnation, "position": self.committed.get(p, (-1, -1))[0]},
        )


class Grouped(Coordinated):
    """A group of one member with ``partitions``.

    Its coordinator requests the parent's position until offset 10 is reported, and returns an older position.
    """

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = list(partitions)
        self.reports: dict[int, int] = {}
        self.answers |= {
            ApiKey.JOIN_GROUP: self.join,
            ApiKey.SYNC_GROUP: lambda body: SyncGroupResponse(assignment=encode_assignment(self.partitions)),
            ApiKey.HEARTBEAT: lambda body: HeartbeatResponse(),
            ApiKey.LEAVE_GROUP: lambda body: LeaveGroupResponse(),
            ApiKey.CONSUMER_GROUP_POSITION: self.poll,
        }

    def join(self, body: Any) -> JoinGroupResponse:
        return JoinGroupResponse(
            generation_id=1, protocol_name=body.protocols[0].name, leader="another", member_id="member"
        )

    async def poll(self, body: Any) -> ConsumerGroupPositionResponse:
        asked = [p for topic in body.topics for p in topic.partitions]
        self.reports |= {p.partition_index: p.position for p in asked if p.position >= 0}
        if body.max_wait_ms:
            await anyio.sleep_forever()
        wanted = {0: 1000} | {p.partition_index: p.incarnation for p in asked if p.need_position}
        partitions = {p: {"incarnation": incarnation, "position": -1} for p, incarnation in sorted(wanted.items())}
        partitions[0]["need_position"] = self.reports.get(0) != 10
        partitions[0]["position"] = 3 if self.reports else -1
        return by_partition(ConsumerGroupPositionResponse, {"t": partitions})


def member_of(broker: FakeBroker, **config: Any) -> Consumer:
    """Return a consumer in group ``g`` that commits only on request."""
    return Consumer(bootstrap_servers=broker.address, group_id="g", enable_auto_commit=False, **FAST | config)


class Story:
    """Callbacks and deliveries in their order."""

    def __init__(self) -> None:
        self.lines: list[Any] = []

    def on_partition_key_maybe_revoked(self, partitions: list[TopicPartition]) -> None:
        self.lines.append(("flush", [tp.partition for tp in partitions]))

    async def on_partition_key_assigned(self, partitions: list[TopicPartition]) -> None:
        await anyio.lowlevel.checkpoint()
        self.lines.append(("load", [tp.partition for tp in partitions]))

    async def read_until(self, consumer: Consumer, holds: Callable[[], bool], **arguments: Any) -> None:
        while not holds():
            found = await consumer.getmany(timeout_ms=20, **arguments)
            self.lines += [(tp.partition, record.offset) for tp, records in found.items() for record in records]

    def records(self, partition: int) -> list[int]:
        return [line[1] for line in self.lines if line[0] == partition]
