"""Records a simulated cluster as a history: events as they happen, and at the end of the run every replica's log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import trio

from anabranch.broker.log.batch_reader import BatchReader
from anabranch.client.consumer.consumer import Consumer
from anabranch.client.group.coordinator_link import CoordinatorLink
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionResponse,
)
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest
from anabranch.protocol.generated.offset_commit import OffsetCommitRequest
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from sim.storage import SimDisk, SimStorage
from tests.history.events import (
    UNKNOWN,
    Event,
    OffsetFetched,
    PositionAnswered,
    PositionReported,
    Replica,
    SessionExtended,
    StoredBatch,
    encode_event,
)
from tests.sim.sim_cluster import SimCluster
from tests.support.client.commits import record_commits

LOG_DIR = "/logs"


def now_ms() -> float:
    return trio.current_time() * 1000


class Recorder:
    """The history of one run. Every event also goes into the cluster's trace."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self.events: list[Event] = []

    def add(self, event: Event) -> None:
        self.events.append(event)
        self._cluster.happened(encode_event(event))

    def spy_on(self, consumer: Consumer, member: str) -> None:
        """Record a member's commits and its fetches of committed offsets, including background commits and fetches."""
        link = consumer._link
        assert link is not None
        record_commits(consumer, member, now_ms, self.add)
        fetch, group = link.fetch_offsets, link.group_id

        async def fetch_offsets(partitions: Any, timeout_ms: float, **options: Any) -> Any:
            asked_ms = now_ms()
            wanted = list(partitions)
            found = await fetch(wanted, timeout_ms, **options)
            for tp in wanted:
                offset = found[tp].offset if tp in found else -1
                incarnation = getattr(found.get(tp), "incarnation", UNKNOWN)
                self.add(OffsetFetched(now_ms(), group, tp, offset, asked_ms, incarnation=incarnation))
            return found

        self._spy_on_positions(link, member)
        link.fetch_offsets = fetch_offsets  # type: ignore[method-assign]

    def _spy_on_positions(self, link: CoordinatorLink, member: str) -> None:
        ask, group = link.request, link.group_id
        session_ms = 0

        async def request(body: Any, **options: Any) -> Any:
            if isinstance(body, OffsetCommitRequest):
                for tp, incarnation, position in _processed(body):
                    generation = body.generation_id
                    self.add(PositionReported(now_ms(), group, member, generation, tp, position, incarnation, False))
            if isinstance(body, JoinGroupRequest):
                nonlocal session_ms
                session_ms = body.session_timeout_ms
            if isinstance(body, ConsumerGroupPositionRequest):
                for tp, incarnation, position in _positions(body):
                    self.add(PositionReported(now_ms(), group, member, body.generation_id, tp, position, incarnation))
            asked_ms = now_ms()
            answer = await ask(body, **options)
            if isinstance(answer, HeartbeatResponse | ConsumerGroupPositionResponse) and not answer.error_code:
                self.add(SessionExtended(now_ms(), group, member, asked_ms + session_ms))
            if isinstance(answer, ConsumerGroupPositionResponse):
                for tp, incarnation, position in _positions(answer):
                    self.add(PositionAnswered(now_ms(), group, member, tp, position, incarnation))
            return answer

        link.request = request  # type: ignore[method-assign]


def _positions(
    body: ConsumerGroupPositionRequest | ConsumerGroupPositionResponse,
) -> Iterator[tuple[TopicPartition, int, int]]:
    for topic in body.topics:
        for found in topic.partitions:
            if found.position >= 0:
                yield TopicPartition(topic.name, found.partition_index), found.incarnation, found.position


def _processed(body: OffsetCommitRequest) -> Iterator[tuple[TopicPartition, int, int]]:
    """The positions that a commit reports, once the commit is accepted."""
    for topic in body.topics:
        for offset in topic.partitions:
            if offset.is_processed:
                yield TopicPartition(topic.name, offset.partition_index), offset.incarnation, offset.committed_offset


# ---------------------------------------------------------------- replicas


def stored_batches(storage: SimStorage, tp: TopicPartition) -> Iterator[RecordBatch]:
    """Read every batch in a replica's log files, and check its CRC."""
    directory = f"{LOG_DIR}/{tp}"
    if not storage.exists(directory):
        return
    for name in storage.listdir(directory):
        if not name.endswith(".log"):
            continue
        path = f"{directory}/{name}"
        size, position = storage.size(path), 0
        reader = BatchReader(storage.open(path), size)
        while position < size:
            batch = reader.at(position)
            yield batch
            position += batch.length


def log_end(disk: SimDisk, tp: TopicPartition) -> int:
    return max((batch.next_offset for batch in stored_batches(disk.mount(), tp)), default=last_segment(disk, tp))


def last_segment(disk: SimDisk, tp: TopicPartition) -> int:
    """The base offset of the last segment. A log without records continues at this offset."""
    storage, directory = disk.mount(), f"{LOG_DIR}/{tp}"
    names = storage.listdir(directory) if storage.exists(directory) else []
    return max((int(name.removesuffix(".log")) for name in names if name.endswith(".log")), default=0)


def stored_values(disk: SimDisk, tp: TopicPartition) -> set[str]:
    """The data records in the log files of a replica."""
    batches = (batch for batch in stored_batches(disk.mount(), tp) if not batch.is_control)
    return {(record.value or b"").decode() for batch in batches for record in batch}


def replica_events(
    disk: SimDisk, broker: int, tp: TopicPartition, incarnation: int, high_watermark: int
) -> Iterator[Event]:
    """The log of one replica on disk, as events."""
    batches = list(stored_batches(disk.mount(), tp))
    end = batches[-1].next_offset if batches else last_segment(disk, tp)
    start = batches[0].base_offset if batches else end
    yield Replica(now_ms(), broker, tp, start, end, min(high_watermark, end), incarnation=incarnation)
    for batch in batches:
        yield stored_event(broker, tp, incarnation, batch)


def stored_event(broker: int, tp: TopicPartition, incarnation: int, batch: RecordBatch) -> StoredBatch:
    """The event of a stored batch."""
    values: list[str | None] = [None] * (batch.last_offset_delta + 1)
    for record in batch if not batch.is_control else ():
        values[record.offset - batch.base_offset] = (record.value or b"").decode()
    return StoredBatch(
        now_ms(),
        broker,
        tp,
        batch.base_offset,
        batch.partition_leader_epoch,
        hashlib.sha256(bytes(batch.buffer[: batch.length])).hexdigest()[:16],
        values,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        incarnation,
    )
