"""What a broker takes and serves while its topic's partition count changes (KIP-253); the test plays the controller.

The topic ``t`` has 4 partitions and grows to 6, layout (6, 1); 6 -> 4 then is layout (4, 2).
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from broker.log.layout_history import LayoutEntry
from broker.log.partition_log import AppendOrigin, PartitionLog
from broker.log.slices import TimeSlice
from broker.node import Node
from broker.replication.isr import ReplicaProgress
from protocol.batch_builder import build_batch, build_control_batch
from protocol.batch_layout import CONTROL_COMMIT
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from protocol.generated.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from protocol.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from protocol.generated.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from protocol.generated.produce import PartitionProduceData, PartitionProduceResponse, ProduceRequest, TopicProduceData
from protocol.generated.stop_replica import StopReplicaPartitionState, StopReplicaRequest, StopReplicaTopicState
from protocol.key_placement import place, positive_hash
from protocol.types import TopicPartition
from runtime.channel import Channel
from runtime.sim_zk import FakeZk
from tests.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, one_broker
from zk_schemas import paths
from zk_schemas.config import ConfigChange, ConfigZnode
from zk_schemas.config_keys import TOPIC_CONFIGS

pytestmark = pytest.mark.trio

TOPIC_ID = uuid.UUID(int=7)
FIRST, GROWN, SHRUNK = (4, 0), (6, 1), (4, 2)
UNTAGGED = (-1, -1)
NEVER_ANSWERED_MS = 60_000
"""Of a request that is answered for another reason."""


class Broker:
    """The broker with the requests of a controller, a producer and a consumer of topic ``t``."""

    def __init__(self, broker: OneBroker, node: Node) -> None:
        self.harness = broker
        self.node = node

    # ------------------------------------------------------------ the controller

    def state(
        self, partition: int, epoch: int, layout: tuple[int, int], incarnation: int = -1
    ) -> LeaderAndIsrPartitionState:
        undeleted, version = layout
        return LeaderAndIsrPartitionState(
            partition_index=partition,
            controller_epoch=self.harness.controller_epoch,
            leader=BROKER_ID,
            leader_epoch=epoch,
            isr=[BROKER_ID],
            replicas=[BROKER_ID],
            initial_partition_count=4,
            undeleted_partition_count=undeleted,
            layout_version=version,
            incarnation=100 + partition if incarnation < 0 else incarnation,
        )

    async def lead(self, *states: LeaderAndIsrPartitionState) -> set[int]:
        """The error codes of a LeaderAndIsr."""
        response = await self.harness.leader_and_isr("t", TOPIC_ID, list(states))
        return {error.error_code for topic in response.topics for error in topic.partition_errors}

    async def has(self, layout: tuple[int, int], *partitions: int, epoch: int) -> None:
        """Give partitions a layout with a new leader epoch."""
        assert await self.lead(*[self.state(partition, epoch, layout) for partition in partitions]) == {0}

    async def stop(self, partition: int, *, leader_epoch: int, incarnation: int) -> int:
        state = StopReplicaPartitionState(
            partition_index=partition, leader_epoch=leader_epoch, delete_partition=True, incarnation=incarnation
        )
        topics = [StopReplicaTopicState(topic_name="t", partition_states=[state])]
        epoch = self.harness.controller_epoch
        response = await self.harness.request(
            StopReplicaRequest(controller_id=1000, controller_epoch=epoch, topic_states=topics)
        )
        return int(response.partition_errors[0].error_code)

    async def configure(self, zk: FakeZk, **config: str) -> None:
        """Alter the topic's configuration and wait until it acts."""
        names = {name.replace("_", "."): value for name, value in config.items()}
        session = zk.session()
        await session.create(ConfigZnode.topic_path("t"), ConfigZnode(names).encode(), make_parents=True)
        change = ConfigChange("topics/t").encode()
        await session.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)
        wanted = {key: TOPIC_CONFIGS[key].parse(value) for key, value in names.items()}
        with trio.fail_after(DEADLINE_S):
            while any(self.node.dynamic.topic_value("t", key) != value for key, value in wanted.items()):
                await trio.sleep(0.005)  # polls: the broker is told by a watch

    # ------------------------------------------------------------ clients

    async def produce(
        self, partition: int, layout: tuple[int, int], records: bytes | None = None
    ) -> PartitionProduceResponse:
        response = await self.harness.request(produce_request(partition, layout, records))
        found: PartitionProduceResponse = response.responses[0].partition_responses[0]
        return found

    async def fetch(self, layout: tuple[int, int], *partitions: int, **fields: Any) -> FetchResponse:
        response: FetchResponse = await self.harness.request(fetch_request(layout, *partitions, **fields))
        return response

    async def codes(self, layout: tuple[int, int], *partitions: int, **fields: Any) -> dict[int, ErrorCode]:
        """Error codes of a fetch by partition."""
        response = await self.fetch(layout, *partitions, **fields)
        return {
            found.partition_index: ErrorCode.of(found.error_code)
            for topic in response.responses
            for found in topic.partitions
        }

    def history(self, partition: int) -> list[LayoutEntry]:
        """The layouts that are kept of a partition."""
        log = self.node.logs.get(TopicPartition("t", partition))
        assert log is not None
        return log.layouts.entries

    def end_offset(self, partition: int) -> int:
        """Log end offset."""
        log = self.node.logs.get(TopicPartition("t", partition))
        assert log is not None
        return log.log_end_offset


def produce_request(
    partition: int, layout: tuple[int, int], records: bytes | None = None, acks: int = -1, timeout_ms: int = 5_000
) -> ProduceRequest:
    data = PartitionProduceData(index=partition, records=records or keyed(None))
    topic = TopicProduceData(
        name="t", partition_data=[data], undeleted_partition_count=layout[0], layout_version=layout[1]
    )
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


def fetch_request(layout: tuple[int, int], *partitions: int, **fields: Any) -> FetchRequest:
    asked = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in partitions]
    topic = FetchTopic(topic="t", partitions=asked, undeleted_partition_count=layout[0], layout_version=layout[1])
    limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, **fields}
    return FetchRequest(topics=[topic], **limits)


def keyed(*keys: bytes | None, **fields: int) -> bytes:
    return build_batch([(key, b"v", (), 1_000) for key in keys], **fields)


def of_producer(sequence: int) -> bytes:
    return keyed(None, producer_id=9, producer_epoch=0, base_sequence=sequence)


def key_of(partition: int, undeleted: int) -> bytes:
    keys = (b"k%d" % number for number in range(1_000))
    return next(key for key in keys if place(positive_hash(key), 4, undeleted) == partition)


@asynccontextmanager
async def broker_of(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    zk: FakeZk | None = None,
    settings: Mapping[str, str] | None = None,
) -> AsyncIterator[Broker]:
    """A broker that leads the topic's first four partitions in epoch 0."""
    nodes: list[Node] = []
    real_init = Node.__init__

    def init(self: Node, *args: Any) -> None:
        real_init(self, *args)
        nodes.append(self)

    monkeypatch.setattr(Node, "__init__", init)
    async with one_broker(directory, settings, zk) as harness:
        broker = Broker(harness, nodes[-1])
        await broker.has(FIRST, 0, 1, 2, 3, epoch=0)
        yield broker


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    async with broker_of(tmp_path, monkeypatch) as found:
        yield found


# ---------------------------------------------------------------- LeaderAndIsr


async def test_layout_and_leader_epoch_change_together_and_only_together(broker: Broker) -> None:
    assert (await broker.produce(1, FIRST)).error_code == 0
    same_epoch = broker.state(1, 0, GROWN)
    assert await broker.lead(same_epoch) == {ErrorCode.INVALID_REQUEST}
    same_epoch.leader = 2
    assert await broker.lead(same_epoch) == {ErrorCode.INVALID_REQUEST}
    assert (await broker.produce(1, FIRST)).error_code == 0
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == 0


async def test_each_layout_is_kept_on_disk_and_loaded_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.has(FIRST, 1, epoch=1)
        await broker.has(GROWN, 1, epoch=2)
    checkpoint = tmp_path / "t-1" / "partition-count-checkpoint"
    assert checkpoint.read_text() == "0\n2\n0 4 4 0\n2 4 6 1\n"
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.has(SHRUNK, 1, epoch=5)
    assert checkpoint.read_text() == "0\n3\n0 4 4 0\n2 4 6 1\n5 4 4 2\n"


async def test_a_large_order_lets_others_through_and_stops_for_a_newer_controller(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resize gives every partition a new epoch in one request; what is left of it when it is overtaken is stale."""
    asked = 0

    def due(_slice: TimeSlice) -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            assert broker.node.replicas.check_controller(broker.harness.controller_epoch + 1)
        return True

    monkeypatch.setattr(TimeSlice, "due", due)
    states = [broker.state(partition, 1, GROWN) for partition in range(4)]
    response = await broker.harness.leader_and_isr("t", TOPIC_ID, states)
    codes = [error.error_code for error in response.topics[0].partition_errors]
    assert codes == [0, 0, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH]
    assert [len(broker.history(partition)) for partition in range(4)] == [2, 2, 1, 1]


async def test_hole_4_a_marked_partition_and_a_survivor_differ(broker: Broker) -> None:
    """While a shrink runs the survivor keeps the old layout: a count kept per topic would let its new keys in early."""
    await broker.has(GROWN, 1, 5, epoch=1)
    await broker.has(SHRUNK, 5, epoch=2)
    assert (await broker.produce(5, GROWN)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == 0
    assert (await broker.produce(1, SHRUNK)).error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_hole_20_a_late_order_does_not_touch_the_newborn(broker: Broker) -> None:
    """Partition 5 was removed and created again: what was said of the first one comes late."""
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    assert (await broker.produce(5, GROWN)).base_offset == 0
    assert await broker.lead(broker.state(5, 9, (6, 3), incarnation=400)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.stop(5, leader_epoch=9, incarnation=400) == 0
    assert (await broker.produce(5, GROWN)).base_offset == 1


async def test_a_topic_id_that_cannot_be_written_keeps_no_partition_from_its_role(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal gives every partition a new id; one full disk kept all the rest of the request from being applied."""

    def refuse(log: PartitionLog, topic_id: uuid.UUID) -> None:
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "the disk is full")

    monkeypatch.setattr(PartitionLog, "set_topic_id", refuse)
    states = [broker.state(0, 0, FIRST), broker.state(1, 0, FIRST), broker.state(2, 1, GROWN)]
    response = await broker.harness.leader_and_isr("t", uuid.UUID(int=8), states)
    assert response.error_code == ErrorCode.NONE
    assert [error.error_code for error in response.topics[0].partition_errors] == [ErrorCode.NONE] * 3
    assert (await broker.produce(2, GROWN)).error_code == ErrorCode.NONE


async def test_a_late_order_takes_no_layout_back(broker: Broker) -> None:
    """Of an earlier leader epoch: records that the old layout puts here would be behind what has moved on."""
    await broker.has(GROWN, 1, epoch=1)
    assert await broker.lead(broker.state(1, 0, FIRST)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == ErrorCode.NONE


async def test_a_late_order_does_not_revive_a_removed_partition(broker: Broker) -> None:
    """What a producer with metadata of long ago wrote there would be acknowledged, and lost."""
    await broker.has(GROWN, 5, epoch=1)
    await broker.has(SHRUNK, 5, epoch=2)
    assert await broker.stop(5, leader_epoch=2, incarnation=105) == 0
    assert await broker.lead(broker.state(5, 1, GROWN)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.lead(broker.state(5, 2, SHRUNK)) == {ErrorCode.STALE_CONTROLLER_EPOCH}, "its last epoch too"
    assert (await broker.produce(5, GROWN)).error_code != ErrorCode.NONE
    assert await broker.lead(broker.state(5, 3, SHRUNK)) == {ErrorCode.NONE}, "a replica may be assigned here again"


async def test_hole_20_a_new_incarnation_gets_a_new_log(broker: Broker) -> None:
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    await broker.produce(5, GROWN)
    assert await broker.lead(broker.state(5, 8, (6, 3), incarnation=600)) == {0}
    assert (await broker.produce(5, (6, 3))).base_offset == 0


async def test_hole_20_what_deletes_the_newborn_deletes_what_was_before_it(broker: Broker) -> None:
    """The broker never heard of the second incarnation: its removal is the first one's as well, whatever its epoch."""
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    assert await broker.stop(5, leader_epoch=3, incarnation=600) == 0
    assert broker.node.logs.get(TopicPartition("t", 5)) is None


# ---------------------------------------------------------------- Produce


async def test_hole_17_a_repeated_batch_is_answered_before_the_layout_is_looked_at(broker: Broker) -> None:
    """The answer was lost, then the layout changed: placed again, the records would be there twice."""
    assert (await broker.produce(1, FIRST, of_producer(0))).base_offset == 0
    assert (await broker.produce(1, FIRST, of_producer(1))).base_offset == 1
    await broker.has(GROWN, 1, epoch=1)
    again = await broker.produce(1, FIRST, of_producer(0))
    assert (again.error_code, again.base_offset) == (0, 0)
    new = await broker.produce(1, FIRST, of_producer(2))
    assert (new.error_code, new.base_offset) == (ErrorCode.INVALID_PARTITION_METADATA, -1)
    assert broker.end_offset(1) == 2


async def test_hole_17_also_where_the_partition_is_sealed_or_the_producer_names_no_layout(broker: Broker) -> None:
    misrouted = keyed(key_of(5, 6), producer_id=9, producer_epoch=0, base_sequence=0)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    await broker.has(GROWN, 5, epoch=1)
    assert (await broker.produce(5, GROWN, of_producer(0))).error_code == 0
    await broker.has(SHRUNK, 5, epoch=2)
    assert (await broker.produce(5, GROWN, of_producer(0))).error_code == 0
    assert (await broker.produce(5, GROWN, of_producer(1))).error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_what_follows_a_refused_batch_is_refused_for_the_same_reason(broker: Broker) -> None:
    """A gap in the sequence is no news then: with 45 the producer would give up what it can still place."""
    await broker.produce(1, FIRST, of_producer(0))
    await broker.has(GROWN, 1, epoch=1)
    for sequence in (1, 2):
        refused = await broker.produce(1, FIRST, of_producer(sequence))
        assert refused.error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN, of_producer(1))).error_code == 0


async def test_hole_25_a_transaction_marker_lands_on_a_sealed_partition(broker: Broker) -> None:
    await broker.has(SHRUNK, 5, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 5))
    marker = build_control_batch(CONTROL_COMMIT, 9, 0, 0, 1_000)
    assert partition.append(marker, all_in_sync=True, origin=AppendOrigin.COORDINATOR).base_offset == 0


async def test_hole_27_acks_0_with_another_layout_closes_the_connection(broker: Broker) -> None:
    harness = broker.harness
    await broker.has(GROWN, 1, epoch=1)
    async with Channel.open(harness.env.network, harness.host, harness.port, client_id="acks-0") as channel:
        with pytest.raises(ConnectionError), trio.fail_after(DEADLINE_S):
            await channel.request(produce_request(1, FIRST, acks=0), timeout_s=DEADLINE_S)
    assert broker.end_offset(1) == 0


async def test_hole_29_stock_producers_are_verified_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = FakeZk()
    misrouted, right = keyed(key_of(5, 6)), keyed(key_of(1, 6), None)
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
        await broker.has(GROWN, 1, epoch=1)
        refused = await broker.produce(1, UNTAGGED, misrouted)
        assert refused.error_code == ErrorCode.POLICY_VIOLATION
        assert "belongs to partition 5, not 1" in str(refused.error_message)
        assert (await broker.produce(1, UNTAGGED, right)).error_code == 0
        await broker.produce(1, FIRST)
        await broker.codes(FIRST, 1)
        await broker.configure(zk, ordered_delivery_legacy_producers="accept")
        assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
        metrics = broker.node.metrics.render().decode()
    assert 'anabranch_legacy_produce_refusals_total{topic="t"} 1.0' in metrics
    assert 'anabranch_layout_refusals_total{api="Produce",topic="t"} 1.0' in metrics
    assert 'anabranch_layout_refusals_total{api="Fetch",topic="t"} 1.0' in metrics


async def test_hole_29_a_stock_producer_does_not_wait_for_a_partition_that_was_merged_away(broker: Broker) -> None:
    """An error that it retries would have it wait until its delivery timeout; aiokafka's idempotent one, for ever."""
    await broker.harness.update_metadata("t", TOPIC_ID, 4, layout=(4, 4, 0), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 6, 1), incarnation=100)
    await broker.harness.update_metadata("t", uuid.uuid4(), 4, layout=(4, 4, 2), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await broker.produce(5, GROWN)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_hole_29_a_marked_partition_that_another_broker_leads_is_asked_there(broker: Broker) -> None:
    """It may have the batch: a retry whose answer was lost is told success, not that it was refused."""
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 4, 2), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_hole_29_the_brokers_default_holds_for_a_topic_that_does_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"ordered.delivery.legacy.producers": "reject"}
    async with broker_of(tmp_path, monkeypatch, settings=settings) as broker:
        await broker.has(GROWN, 1, epoch=1)
        assert (await broker.produce(1, UNTAGGED, keyed(None))).error_code == ErrorCode.POLICY_VIOLATION
        assert (await broker.produce(2, UNTAGGED, keyed(None))).error_code == 0


async def test_without_ordered_delivery_nothing_is_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.configure(zk, enable_ordered_delivery="false")
        await broker.has(GROWN, 1, epoch=1)
        for layout in (FIRST, UNTAGGED):
            assert (await broker.produce(1, layout, keyed(key_of(5, 6)))).error_code == 0
            assert await broker.codes(layout, 1) == {1: ErrorCode.NONE}


@pytest.mark.parametrize("settled", [True, False])
async def test_what_the_first_resize_settled_is_not_edited_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    """Neither before the layout comes, nor after; a client is told what its broker does."""
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:

        async def checks() -> bool:
            codes = await broker.codes(FIRST, 1)
            return {(await broker.produce(1, FIRST)).error_code, *codes.values()} != {ErrorCode.NONE}

        async def told() -> bool:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
            return bool((await broker.harness.request(request)).topics[0].ordered_delivery)

        grown = broker.state(1, 1, GROWN)
        grown.ordered_delivery = int(settled)
        layout = (4, *GROWN)
        await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=layout, ordered_delivery=int(settled))
        assert await broker.lead(grown) == {0}
        assert (await checks(), await told()) == (settled, settled)
        await broker.configure(zk, enable_ordered_delivery=str(not settled).lower())
        assert (await checks(), await told()) == (settled, settled)
        grown.leader_epoch += 1
        assert await broker.lead(grown) == {0}
        assert (await checks(), await told()) == (settled, settled)
        assert broker.node.logs.cleaner.keeps_tombstones(TopicPartition("t", 5)) is settled


async def test_a_layout_is_checked_by_the_configuration_there_is_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ordered delivery is on again, and the topic grows before the broker has heard of the first."""
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.configure(zk, enable_ordered_delivery="false")
        session = zk.session()
        await session.set(ConfigZnode.topic_path("t"), ConfigZnode({"enable.ordered.delivery": "true"}).encode())
        await broker.has(GROWN, 1, epoch=1)
        assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA


# ---------------------------------------------------------------- Fetch


async def test_a_consumer_of_another_layout_is_refused_and_a_follower_is_not(broker: Broker) -> None:
    await broker.has(GROWN, 1, epoch=1)
    assert await broker.codes(FIRST, 0, 1) == {0: ErrorCode.NONE, 1: ErrorCode.INVALID_PARTITION_METADATA}
    assert await broker.codes(GROWN, 0, 1) == {0: ErrorCode.INVALID_PARTITION_METADATA, 1: ErrorCode.NONE}
    assert await broker.codes(UNTAGGED, 0, 1) == {0: ErrorCode.NONE, 1: ErrorCode.NONE}
    assert await broker.codes(FIRST, 1, replica_id=BROKER_ID) == {1: ErrorCode.NONE}


async def test_a_sealed_partition_serves_every_layout(broker: Broker) -> None:
    await broker.has(GROWN, 5, epoch=0)
    await broker.produce(5, GROWN)
    await broker.has(SHRUNK, 5, epoch=1)
    for layout in (FIRST, GROWN, SHRUNK, UNTAGGED):
        response = await broker.fetch(layout, 5)
        found = response.responses[0].partitions[0]
        assert (found.error_code, found.high_watermark, len(found.records) > 0) == (0, 1, True)


async def test_hole_16_a_parked_fetch_is_refused_when_the_layout_changes(broker: Broker) -> None:
    answers: list[dict[int, ErrorCode]] = []
    other = broker.harness

    async def wait_for_records() -> None:
        async with Channel.open(other.env.network, other.host, other.port, client_id="parked") as channel:
            response = await channel.request(
                fetch_request(FIRST, 1, 2, max_wait_ms=NEVER_ANSWERED_MS), timeout_s=DEADLINE_S
            )
            answers.append({found.partition_index: found.error_code for found in response.responses[0].partitions})

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for_records)
            while broker.node.purgatory.size == 0:
                await trio.sleep(0.005)  # polls: the fetch is parked
            await broker.has(GROWN, 1, epoch=1)
    assert answers == [{1: ErrorCode.INVALID_PARTITION_METADATA, 2: ErrorCode.NONE}]


async def test_hole_28_a_session_carries_the_layout_of_its_full_fetch(broker: Broker) -> None:
    first = await broker.fetch(FIRST, 1, session_epoch=0)
    await broker.has(GROWN, 1, epoch=1)
    quiet = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=1)
    found = (await broker.harness.request(quiet)).responses[0].partitions[0]
    assert found.error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert await broker.codes(GROWN, 1, session_id=first.session_id, session_epoch=0) == {1: ErrorCode.NONE}


# ---------------------------------------------------------------- the end of a sealed partition


async def test_the_controller_learns_the_end_of_a_sealed_partition(broker: Broker) -> None:
    """Hole 7: an id of a broker or controller gets the log end, whatever the watermark; an old epoch is fenced."""
    await broker.has(GROWN, 5, epoch=0)
    await broker.produce(5, GROWN)
    await broker.has(SHRUNK, 5, epoch=1)
    log = broker.node.logs.get(TopicPartition("t", 5))
    assert log is not None
    log.high_watermark = 0  # the followers have not fetched it yet

    async def offset(replica_id: int, timestamp: int, epoch: int = 1) -> tuple[int, int]:
        asked = ListOffsetsPartition(partition_index=5, timestamp=timestamp, current_leader_epoch=epoch)
        topics = [ListOffsetsTopic(name="t", partitions=[asked])]
        response = await broker.harness.request(ListOffsetsRequest(replica_id=replica_id, topics=topics))
        found = response.topics[0].partitions[0]
        return found.error_code, found.offset

    assert await offset(1000, -1) == (0, 1)
    assert await offset(1000, -2) == (0, 0)
    assert await offset(1000, -1, epoch=0) == (ErrorCode.FENCED_LEADER_EPOCH, -1)
    assert await offset(1000, -1, epoch=2) == (ErrorCode.UNKNOWN_LEADER_EPOCH, -1)
    assert await offset(-1, -1) == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    log.high_watermark = 1
    assert await offset(-1, -1) == (0, 1)


async def test_a_sealed_partition_ends_where_no_replica_in_sync_has_more(broker: Broker) -> None:
    """One that led before it was cut off, and has not followed since, would bring back what it alone took."""
    await broker.has(GROWN, 5, epoch=0)
    await broker.produce(5, GROWN)
    await broker.has(SHRUNK, 5, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 5), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}

    async def end() -> tuple[int, int]:
        topics = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=5, timestamp=-1)])]
        response = await broker.harness.request(ListOffsetsRequest(replica_id=-1, topics=topics))
        found = response.topics[0].partitions[0]
        return found.error_code, found.offset

    assert await end() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    partition.follower_fetched(2, 0, 0, 0)
    assert await end() == (ErrorCode.OFFSET_NOT_AVAILABLE, -1)
    partition.follower_fetched(2, 0, 1, 0)
    assert await end() == (ErrorCode.NONE, 1)


@pytest.mark.parametrize(
    ("number", "layout", "old", "sequence", "code"),
    [
        (5, SHRUNK, GROWN, None, ErrorCode.INVALID_PARTITION_METADATA),
        (1, GROWN, FIRST, None, ErrorCode.INVALID_PARTITION_METADATA),
        (1, FIRST, FIRST, 7, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    ],
    ids=["sealed", "of another layout", "behind a gap"],
)
@pytest.mark.parametrize("follows", [True, False], ids=["it follows", "it leaves the ISR"])
async def test_a_refusal_waits_until_no_replica_in_sync_can_have_the_batch(
    broker: Broker,
    number: int,
    layout: tuple[int, int],
    old: tuple[int, int],
    sequence: int | None,
    code: ErrorCode,
    follows: bool,
) -> None:
    """One that led before it was cut off, and has not followed since, would bring back what was written otherwise."""
    await broker.has(layout, number, epoch=1)
    if sequence is not None:
        await broker.produce(number, layout, of_producer(0))
    partition = broker.node.replicas.leader(TopicPartition("t", number), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    answers = []

    async def send() -> None:
        batch = None if sequence is None else of_producer(sequence)
        response = await broker.harness.request(produce_request(number, old, batch, timeout_ms=NEVER_ANSWERED_MS))
        answers.append(response.responses[0].partition_responses[0].error_code)

    with trio.fail_after(DEADLINE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            while not partition.watchers:
                await trio.sleep(0.005)  # polls: the request came in
            assert answers == []
            if follows:
                partition.follower_fetched(2, 0, 0, 0)
            else:
                partition.isr_committed((1,), partition.partition_epoch + 1)
    assert answers == [code]
    assert not partition.watchers


async def test_who_does_not_wait_for_replicas_is_refused_at_once(broker: Broker) -> None:
    await broker.has(GROWN, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    with trio.fail_after(DEADLINE_S):
        response = await broker.harness.request(produce_request(1, FIRST, acks=1, timeout_ms=NEVER_ANSWERED_MS))
    assert response.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_an_epoch_ends_where_no_replica_in_sync_has_more_of_it(broker: Broker) -> None:
    """What one that led before alone took in it would come behind records that were let through (KIP-253)."""
    await broker.has(GROWN, 1, epoch=2)
    await broker.has(GROWN, 1, epoch=3)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 3)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}

    async def code(epoch: int, replica_id: int = -1) -> int:
        asked = OffsetForLeaderPartition(partition=1, leader_epoch=epoch)
        topics = [OffsetForLeaderTopic(topic="t", partitions=[asked])]
        response = await broker.harness.request(OffsetForLeaderEpochRequest(replica_id=replica_id, topics=topics))
        return int(response.topics[0].partitions[0].error_code)

    assert await code(0) == ErrorCode.OFFSET_NOT_AVAILABLE
    assert await code(0, replica_id=2) == 0, "a follower has to know where to truncate before it can follow"
    assert await code(2) == 0, "no other partition waits for an epoch of this layout"
    partition.follower_fetched(2, 0, 0, 0)
    assert await code(0) == 0


async def test_a_plain_topic_tells_its_epochs_at_once(broker: Broker) -> None:
    await broker.has(FIRST, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    asked = OffsetForLeaderPartition(partition=1, leader_epoch=0)
    topics = [OffsetForLeaderTopic(topic="t", partitions=[asked])]
    response = await broker.harness.request(OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
    assert response.topics[0].partitions[0].error_code == 0


async def test_a_refusal_that_cannot_be_final_in_time_is_none(broker: Broker) -> None:
    await broker.has(GROWN, 1, epoch=1)
    partition = broker.node.replicas.leader(TopicPartition("t", 1), 1)
    partition.isr, partition.progress = (1, 2), {2: ReplicaProgress()}
    response = await broker.harness.request(produce_request(1, FIRST, timeout_ms=1))
    found = response.responses[0].partition_responses[0]
    assert (found.error_code, found.error_message) == (ErrorCode.REQUEST_TIMED_OUT, None)
    assert broker.end_offset(1) == 0


async def test_hole_23_a_sealed_partition_of_a_compacted_topic_is_drained_on_demand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.configure(zk, cleanup_policy="compact")
        await broker.has(GROWN, 1, 5, epoch=1)
        await broker.produce(1, GROWN, keyed(b"k"))
        await broker.produce(5, GROWN, keyed(b"k"))

        async def code(partition: int) -> int:
            asked = DeleteRecordsPartition(partition_index=partition, offset=1)
            topics = [DeleteRecordsTopic(name="t", partitions=[asked])]
            response = await broker.harness.request(DeleteRecordsRequest(topics=topics, timeout_ms=5_000))
            return int(response.topics[0].partitions[0].error_code)

        await broker.has(SHRUNK, 5, epoch=2)
        assert await code(5) == ErrorCode.POLICY_VIOLATION
        await zk.session().delete(ConfigZnode.topic_path("t"))
        await broker.configure(zk, cleanup_policy="compact", delete_records_when_drained="true")
        assert await code(1) == ErrorCode.POLICY_VIOLATION
        assert await code(5) == 0


async def test_hole_24_the_cleaner_asks_what_the_broker_was_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        keeps = broker.node.logs.cleaner.keeps_tombstones
        root, child = TopicPartition("t", 1), TopicPartition("t", 5)
        assert keeps(root), "not told of the topic yet"
        await broker.harness.update_metadata("t", TOPIC_ID, 4, layout=(4, 4, 0))
        assert not keeps(root)
        await broker.has(GROWN, 1, 5, epoch=1)
        assert keeps(root) and keeps(child)
        await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 6, 1))
        assert not keeps(root) and keeps(child)
        await broker.configure(zk, enable_ordered_delivery="false")
        assert not keeps(child)


# ---------------------------------------------------------------- Metadata


async def test_metadata_tells_the_layout_of_every_topic_and_lists_marked_partitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:

        async def told(version: int = 11) -> MetadataResponseTopic:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
            response = await broker.harness.request(request, version)
            found: MetadataResponseTopic = response.topics[0]
            return found

        await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 4, 2), incarnation=100)
        topic = await told()
        assert (topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version) == (4, 4, 2)
        assert topic.ordered_delivery == 1
        assert [(found.partition_index, found.incarnation) for found in topic.partitions] == [
            (index, 100 + index) for index in range(6)
        ]
        await broker.configure(zk, enable_ordered_delivery="false")
        assert (await told()).ordered_delivery == 0
        for version in (8, 9):  # librdkafka 2.1 asks for 9 and cannot skip a tag
            plain = await told(version)
            layout = plain.initial_partition_count, plain.undeleted_partition_count, plain.layout_version
            assert (*layout, plain.ordered_delivery) == (-1, -1, -1, 0)
            assert {found.incarnation for found in plain.partitions} == {-1}
