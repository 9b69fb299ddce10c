"""A broker's requests and responses while the partition count of a topic changes (KIP-253)."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest
import trio
import trio.testing

from anabranch.broker.log.checkpoint_files import LogIdentity
from anabranch.broker.log.identity_file import IdentityFile
from anabranch.broker.log.partition_log import AppendOrigin
from anabranch.broker.log.slices import TimeSlice
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH, EVERY_EPOCH
from anabranch.protocol.batch_layout import CONTROL_COMMIT
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import FetchRequest
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
)
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponseTopic as LineageTopic,
)
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.channel import Channel
from anabranch.runtime.os_files import OsStorage
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.partition_state import LineageEntry, PartitionState
from anabranch.zk_schemas.partition_state import PartitionLayout as StoredLayout
from anabranch.zk_schemas.topic import TopicZnode
from sim.zk import FakeSession, FakeZk
from tests.support.broker import requests
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S
from tests.support.broker.requests import only
from tests.support.log.batches import build_control_batch
from tests.support.resize.resized_broker import (
    FIRST,
    GROWN,
    SHRUNK,
    TOPIC_ID,
    UNTAGGED,
    Broker,
    broker_of,
    key_of,
    keyed,
    of_producer,
    produce_request,
)

pytestmark = pytest.mark.trio


# ---------------------------------------------------------------- LeaderAndIsr


async def test_the_layout_never_changes_without_the_leader_epoch(broker: Broker) -> None:
    assert (await broker.produce(1, FIRST)).error_code == 0
    same_epoch = broker.state(1, 0, GROWN)
    assert await broker.lead(same_epoch) == {ErrorCode.INVALID_REQUEST}
    same_epoch.leader = 2
    assert await broker.lead(same_epoch) == {ErrorCode.INVALID_REQUEST}
    assert (await broker.produce(1, FIRST)).error_code == 0
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == 0


@pytest.mark.parametrize("damage", [None, b"", b"version: 0\ntopic_id: ?\n"], ids=["missing", "empty", "malformed"])
async def test_a_log_that_lost_its_metadata_file_is_kept_when_the_topic_gets_another_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: bytes | None
) -> None:
    """Each removal gives the topic another id. A log whose incarnation is lost would count as another topic's log."""
    zk, file = FakeZk(), tmp_path / "t-1" / "partition.metadata"
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert (await broker.produce(1, FIRST)).error_code == ErrorCode.NONE
        whole = file.read_bytes()
    file.unlink() if damage is None else file.write_bytes(damage)
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert file.read_bytes() == whole
        state = broker.state(1, 1, FIRST)
        await broker.harness.leader_and_isr("t", uuid.UUID(int=8), [state])
        assert broker.end_offset(1) == 1


@pytest.mark.parametrize("kept", [0, 2], ids=["nothing", "the-lines-of-kafka"])
async def test_a_full_disk_does_not_make_a_broker_forget_the_incarnation_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    zk, file = FakeZk(), tmp_path / "t-1" / "partition.metadata"
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        assert (await broker.produce(1, FIRST)).error_code == ErrorCode.NONE
        whole = file.read_bytes()
    file.write_bytes(b"".join(whole.splitlines(keepends=True)[:kept]))
    write_atomic = OsStorage.write_atomic

    def refuse(storage: OsStorage, path: str, data: bytes) -> None:
        if path == str(file):
            raise OSError(errno.ENOSPC, "No space left on device")
        write_atomic(storage, path, data)

    monkeypatch.setattr(OsStorage, "write_atomic", refuse)
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.has(GROWN, 1, epoch=3)
        assert await broker.lead(broker.state(1, 2, FIRST)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
        await broker.harness.leader_and_isr("t", uuid.UUID(int=8), [broker.state(1, 4, GROWN)])
        assert broker.end_offset(1) == 1
        monkeypatch.setattr(OsStorage, "write_atomic", write_atomic)
        await broker.harness.leader_and_isr("t", uuid.UUID(int=8), [broker.state(1, 4, GROWN)])
        assert b"incarnation: 101" in file.read_bytes()


async def test_a_large_leader_and_isr_lets_other_tasks_run_and_ends_at_a_newer_controller(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resize sends a new epoch for every partition in one request. A newer controller makes the rest of it stale."""
    asked = 0

    def due(_slice: TimeSlice) -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            broker.node.replicas.controller_elected(broker.harness.controller_epoch + 1)
        return True

    monkeypatch.setattr(TimeSlice, "due", due)
    states = [broker.state(partition, 1, GROWN) for partition in range(4)]
    response = await broker.harness.leader_and_isr("t", TOPIC_ID, states)
    codes = [error.error_code for error in response.topics[0].partition_errors]
    assert codes == [0, 0, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH]
    assert [len(broker.history(partition)) for partition in range(4)] == [2, 2, 1, 1]


async def test_hole_4_a_marked_partition_and_its_survivor_have_different_layouts(broker: Broker) -> None:
    """During a shrink the survivor keeps the old layout. With one count for the topic it would gain keys too early."""
    await broker.has(GROWN, 1, 5, epoch=1)
    await broker.has(SHRUNK, 5, epoch=2)
    assert (await broker.produce(5, GROWN)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == 0
    assert (await broker.produce(1, SHRUNK)).error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_hole_20_a_late_request_does_not_touch_the_recreated_partition(broker: Broker) -> None:
    """KIP-570: a late request is for partition 5 as it was before the partition was removed and created again."""
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    assert (await broker.produce(5, GROWN)).base_offset == 0
    assert await broker.lead(broker.state(5, 9, (6, 3), incarnation=400)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.stop(5, leader_epoch=9, incarnation=400) == 0
    assert (await broker.produce(5, GROWN)).base_offset == 1


async def test_a_topic_id_that_cannot_be_written_stops_no_partition_from_being_led(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A removal gives every partition a new topic id. A full disk must not stop the rest of the request."""

    def refuse(identity: IdentityFile, metadata: LogIdentity) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(IdentityFile, "replace", refuse)
    states = [broker.state(0, 0, FIRST), broker.state(1, 0, FIRST), broker.state(2, 1, GROWN)]
    response = await broker.harness.leader_and_isr("t", uuid.UUID(int=8), states)
    assert response.error_code == ErrorCode.NONE
    assert [error.error_code for error in response.topics[0].partition_errors] == [ErrorCode.NONE] * 3
    assert (await broker.produce(2, GROWN)).error_code == ErrorCode.NONE


async def test_a_late_request_does_not_restore_an_earlier_layout(broker: Broker) -> None:
    """The late request has an earlier leader epoch. By the request's layout the leader would accept moved keys."""
    await broker.has(GROWN, 1, epoch=1)
    assert await broker.lead(broker.state(1, 0, FIRST)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN)).error_code == ErrorCode.NONE


async def test_a_late_request_does_not_revive_a_removed_partition(broker: Broker) -> None:
    """If the late request revived the partition, records from producers with old metadata would be lost."""
    await broker.has(GROWN, 5, epoch=1)
    await broker.has(SHRUNK, 5, epoch=2)
    assert await broker.stop(5, leader_epoch=2, incarnation=105) == 0
    assert await broker.lead(broker.state(5, 1, GROWN)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.lead(broker.state(5, 2, SHRUNK)) == {ErrorCode.STALE_CONTROLLER_EPOCH}, (
        "the removal ended this leader epoch, too"
    )
    assert (await broker.produce(5, GROWN)).error_code != ErrorCode.NONE
    assert await broker.lead(broker.state(5, 3, SHRUNK)) == {ErrorCode.NONE}, "a replica may be assigned here again"


async def test_hole_20_a_new_incarnation_gets_a_new_log(broker: Broker) -> None:
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    await broker.produce(5, GROWN)
    assert await broker.lead(broker.state(5, 8, (6, 3), incarnation=600)) == {0}
    assert (await broker.produce(5, (6, 3))).base_offset == 0


async def test_hole_20_a_deletion_of_a_later_incarnation_deletes_the_earlier_one(broker: Broker) -> None:
    """KIP-570: the broker does not know the later incarnation yet. The deletion's leader epoch does not matter."""
    assert await broker.lead(broker.state(5, 7, GROWN, incarnation=500)) == {0}
    assert await broker.stop(5, leader_epoch=3, incarnation=600) == 0
    assert broker.node.logs.get(TopicPartition("t", 5)) is None


# ---------------------------------------------------------------- Produce


async def test_hole_17_a_repeated_batch_is_answered_before_its_layout_is_checked(broker: Broker) -> None:
    """The response was lost, then the layout changed. If the retry were refused, the records would be written twice."""
    assert (await broker.produce(1, FIRST, of_producer(0))).base_offset == 0
    assert (await broker.produce(1, FIRST, of_producer(1))).base_offset == 1
    await broker.has(GROWN, 1, epoch=1)
    again = await broker.produce(1, FIRST, of_producer(0))
    assert (again.error_code, again.base_offset) == (0, 0)
    new = await broker.produce(1, FIRST, of_producer(2))
    assert (new.error_code, new.base_offset) == (ErrorCode.INVALID_PARTITION_METADATA, -1)
    assert broker.end_offset(1) == 2


async def test_hole_17_a_repeated_batch_is_answered_on_a_closed_partition_and_without_a_layout(broker: Broker) -> None:
    misrouted = keyed(key_of(5, 6), producer_id=9, producer_epoch=0, base_sequence=0)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    await broker.has(GROWN, 5, epoch=1)
    assert (await broker.produce(5, GROWN, of_producer(0))).error_code == 0
    await broker.has(SHRUNK, 5, epoch=2)
    assert (await broker.produce(5, GROWN, of_producer(0))).error_code == 0
    assert (await broker.produce(5, GROWN, of_producer(1))).error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_a_batch_after_a_refused_one_is_refused_with_the_same_error(broker: Broker) -> None:
    """The refused batch leaves a gap in the sequence. On error 45 a producer would fail batches that it can resend."""
    await broker.produce(1, FIRST, of_producer(0))
    await broker.has(GROWN, 1, epoch=1)
    for sequence in (1, 2):
        refused = await broker.produce(1, FIRST, of_producer(sequence))
        assert refused.error_code == ErrorCode.INVALID_PARTITION_METADATA
    assert (await broker.produce(1, GROWN, of_producer(1))).error_code == 0


async def test_hole_25_a_transaction_marker_is_appended_to_a_closed_partition(broker: Broker) -> None:
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


async def test_hole_29_misplaced_records_of_stock_producers_are_refused_and_counted(broker: Broker) -> None:
    misrouted, right = keyed(key_of(5, 6)), keyed(key_of(1, 6), None)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    refused = await broker.produce(1, UNTAGGED, misrouted)
    assert refused.error_code == ErrorCode.POLICY_VIOLATION
    assert "belongs to partition 5, not 1" in str(refused.error_message)
    assert [record.batch_index for record in refused.record_errors] == [0]
    assert (await broker.produce(1, UNTAGGED, right)).error_code == 0
    await broker.produce(1, FIRST)
    await broker.configure(ordered_delivery_stock_producers="accept")
    assert (await broker.produce(1, UNTAGGED, misrouted)).error_code == 0
    metrics = broker.node.metrics.render().decode()
    assert 'anabranch_stock_produce_refusals_total{topic="t"} 1.0' in metrics
    assert 'anabranch_layout_refusals_total{topic="t"} 1.0' in metrics


async def test_hole_29_a_stock_producer_does_not_wait_for_a_merged_and_removed_partition(broker: Broker) -> None:
    """After a retriable error a producer retries until its delivery timeout. An idempotent aiokafka never stops."""
    await broker.harness.update_metadata("t", TOPIC_ID, 4, layout=(4, 4, 0), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 6, 1), incarnation=100)
    await broker.harness.update_metadata("t", uuid.uuid4(), 4, layout=(4, 4, 2), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.POLICY_VIOLATION
    assert (await broker.produce(5, GROWN)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_hole_29_a_broker_that_does_not_lead_a_marked_partition_answers_not_leader(broker: Broker) -> None:
    """The batch may be a retry after a lost response. Only the leader knows whether it has the batch."""
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 4, 2), incarnation=100)
    assert (await broker.produce(5, UNTAGGED)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_hole_29_the_brokers_default_applies_to_a_topic_without_the_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"ordered.delivery.stock.producers": "reject"}
    async with broker_of(tmp_path, monkeypatch, settings=settings) as broker:
        await broker.has(GROWN, 1, epoch=1)
        assert (await broker.produce(1, UNTAGGED, keyed(None))).error_code == ErrorCode.POLICY_VIOLATION
        assert (await broker.produce(2, UNTAGGED, keyed(None))).error_code == 0


@pytest.mark.parametrize("settled", [True, False])
async def test_ordered_delivery_fixed_by_the_first_resize_is_not_changed_by_an_edit(
    broker: Broker, settled: bool
) -> None:
    """The edit has no effect, even after the next LeaderAndIsr. Metadata shows the value in force."""

    async def checks() -> bool:
        return (await broker.produce(1, FIRST)).error_code != ErrorCode.NONE

    async def described() -> bool:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        return bool((await broker.harness.request(request)).topics[0].ordered_delivery)

    grown = broker.state(1, 1, GROWN)
    grown.ordered_delivery = int(settled)
    layout = (4, *GROWN)
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=layout, ordered_delivery=int(settled))
    assert await broker.lead(grown) == {0}
    assert (await checks(), await described()) == (settled, settled)
    await broker.configure(enable_ordered_delivery=str(not settled).lower())
    assert (await checks(), await described()) == (settled, settled)
    grown.leader_epoch += 1
    assert await broker.lead(grown) == {0}
    assert (await checks(), await described()) == (settled, settled)
    kept_from = BELOW_EVERY_EPOCH if settled else EVERY_EPOCH  # there is no znode with lineages
    assert await broker.node.logs.cleaner.first_kept_epoch(TopicPartition("t", 5)) == kept_from


async def test_a_new_layout_uses_the_topic_config_that_is_stored_when_it_arrives(broker: Broker) -> None:
    """The topic grows after ordered delivery is turned on again, but before the broker has read that config."""
    await broker.configure(enable_ordered_delivery="false")
    session = broker.harness.zk.session()
    await session.set(ConfigZnode.topic_path("t"), ConfigZnode({"enable.ordered.delivery": "true"}).encode())
    await broker.has(GROWN, 1, epoch=1)
    assert (await broker.produce(1, FIRST)).error_code == ErrorCode.INVALID_PARTITION_METADATA


async def test_a_leader_and_isr_with_a_known_layout_does_not_wait_for_zookeeper(broker: Broker) -> None:
    """Notifications bring later config changes. So an election does not wait for a read from ZooKeeper."""
    await broker.has(GROWN, 1, epoch=1)
    session = broker.node.env.zk
    assert isinstance(session, FakeSession)
    session.disconnect()
    with trio.fail_after(DEADLINE_S):
        await broker.has(GROWN, 1, 5, epoch=2)
    session.reconnect()


async def test_a_broker_that_registers_again_uses_configs_altered_while_it_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first LeaderAndIsr comes before the broker has read all configs again."""
    zk = FakeZk(lambda: 0.002)
    admin = zk.session()
    for number in range(100):
        other = ConfigZnode({"retention.ms": "1000"}).encode()
        await admin.create(ConfigZnode.topic_path(f"a{number}"), other, make_parents=True)
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.has(GROWN, 1, epoch=1)
        session, epoch = broker.node.env.zk, broker.node.link.broker_epoch
        assert isinstance(session, FakeSession)
        session.disconnect()
        zk.end_session(session.session_id)
        await admin.create(ConfigZnode.topic_path("t"), ConfigZnode({"min.insync.replicas": "2"}).encode())
        change = ConfigChange("topics/t").encode()
        await admin.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)
        session.reconnect()
        with trio.fail_after(DEADLINE_S):
            while broker.node.link.broker_epoch == epoch:
                await trio.sleep(0.001)  # polls: the registration
        await broker.has(GROWN, 1, epoch=2)
        assert (await broker.produce(1, GROWN)).error_code == ErrorCode.NOT_ENOUGH_REPLICAS


# ---------------------------------------------------------------- Fetch


async def test_a_fetch_names_no_layout_and_its_session_continues_through_a_resize(broker: Broker) -> None:
    """A consumer holds back records that it may not deliver yet by the leader epoch of their batch."""
    first = await broker.fetch(1, session_epoch=0)
    await broker.has(GROWN, 1, 5, epoch=1)
    for partition in (1, 5):
        await broker.produce(partition, GROWN)
    next_fetch = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=1)
    found = (await broker.harness.request(next_fetch)).responses[0].partitions[0]
    assert (found.error_code, RecordBatch(bytes(found.records)).partition_leader_epoch) == (ErrorCode.NONE, 1)
    await broker.has(SHRUNK, 5, epoch=2)
    response = await broker.fetch(5)
    found = response.responses[0].partitions[0]
    assert (found.error_code, found.high_watermark, len(found.records) > 0) == (0, 1, True), (
        "a closed partition can still be read"
    )


async def test_hole_23_a_closed_compacted_partition_is_drained_only_if_the_loss_is_accepted(broker: Broker) -> None:
    await broker.configure(cleanup_policy="compact")
    await broker.has(GROWN, 1, 5, epoch=1)
    await broker.produce(1, GROWN, keyed(b"k"))
    await broker.produce(5, GROWN, keyed(b"k"))

    async def code(partition: int, leader_epoch: int = -1) -> int:
        asked = requests.delete_records(partition, 1, leader_epoch=leader_epoch)
        return int(only(await broker.harness.request(asked)).error_code)

    await broker.has(SHRUNK, 5, epoch=2)
    assert await code(5) == ErrorCode.POLICY_VIOLATION
    for policy in ("compact", "compact,delete"):
        await broker.harness.zk.session().delete(ConfigZnode.topic_path("t"))
        await broker.configure(cleanup_policy=policy, delete_records_when_drained="true")
        why = "a drain that was decided before the topic was compacted"
        assert await code(5, leader_epoch=2) == ErrorCode.POLICY_VIOLATION, why
    await broker.harness.zk.session().delete(ConfigZnode.topic_path("t"))
    await broker.configure(cleanup_policy="compact", delete_latest_values_when_drained="true")
    assert await code(1) == ErrorCode.POLICY_VIOLATION
    assert await code(5, leader_epoch=2) == 0


async def test_hole_24_the_cleaner_uses_the_lineage_of_each_partition(broker: Broker) -> None:
    first_kept_epoch = broker.node.logs.cleaner.first_kept_epoch
    root, child = TopicPartition("t", 1), TopicPartition("t", 5)
    assert await first_kept_epoch(root) == BELOW_EVERY_EPOCH, "the topic is not in the metadata yet"
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 6, 1))
    assert await first_kept_epoch(root) == BELOW_EVERY_EPOCH, "no znode is there"
    topic = TopicZnode.new(TOPIC_ID, {p: [BROKER_ID] for p in range(6)})
    controller = broker.harness.zk.session()
    await controller.create(TopicZnode.path("t"), topic.encode(), make_parents=True)
    for tp, epoch, entries in ((root, 3, ()), (child, 2, (LineageEntry(1, {1: 2}),))):
        state = PartitionState(1, BROKER_ID, epoch, [BROKER_ID], StoredLayout(*GROWN), initial_partition_count=4)
        found = state.replace(lineage=entries).encode()
        await controller.create(PartitionState.path(*tp), found, make_parents=True)
    assert (await first_kept_epoch(root), await first_kept_epoch(child)) == (4, 1)
    await broker.configure(enable_ordered_delivery="false")
    assert await first_kept_epoch(child) == EVERY_EPOCH


# ---------------------------------------------------------------- Metadata


async def test_metadata_has_the_layout_of_a_topic_and_its_marked_partitions(broker: Broker) -> None:

    async def answered(version: int = 11) -> MetadataResponseTopic:
        request = MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False)
        response = await broker.harness.request(request, version)
        found: MetadataResponseTopic = response.topics[0]
        return found

    described = {"layout": (4, 4, 2), "incarnation": 100, "topic_incarnation": 90}
    await broker.harness.update_metadata("t", TOPIC_ID, 6, **described)
    topic = await answered()
    assert (topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version) == (4, 4, 2)
    assert (topic.ordered_delivery, topic.topic_incarnation) == (1, 90)
    assert [(found.partition_index, found.incarnation) for found in topic.partitions] == [
        (index, 100 + index) for index in range(6)
    ]
    await broker.configure(enable_ordered_delivery="false")
    assert (await answered()).ordered_delivery == 0
    for version in (8, 9):  # librdkafka 2.1 requests version 9 and cannot skip a tag
        plain = await answered(version)
        layout = plain.initial_partition_count, plain.undeleted_partition_count, plain.layout_version
        assert (*layout, plain.ordered_delivery, plain.topic_incarnation) == (-1, -1, -1, 0, -1)
        assert {found.incarnation for found in plain.partitions} == {-1}


# ---------------------------------------------------------------- PartitionLeaderEpochsForPartitions


async def test_a_broker_answers_the_lineage_of_what_it_has_read(broker: Broker) -> None:
    controller = broker.harness.zk.session()
    topic = TopicZnode.new(TOPIC_ID, {p: [BROKER_ID] for p in range(6)}).replace(last_leader_epochs={6: 4})
    state = PartitionState(1, BROKER_ID, 2, [BROKER_ID], lineage=(LineageEntry(1, {1: 0, 3: 2}),), floor=0)
    await controller.create(TopicZnode.path("t"), topic.encode(), make_parents=True)
    await controller.create(PartitionState.path("t", 5), state.encode(), make_parents=True)
    incarnation = (await controller.get(TopicZnode.path("t"))).czxid
    await broker.harness.update_metadata("t", TOPIC_ID, 6, layout=(4, 6, 1), incarnation=100)

    async def described(*partitions: int, of_topic: int = -1) -> LineageTopic:
        asked = [PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=p) for p in partitions]
        named = PartitionLeaderEpochsForPartitionsRequestTopic(name="t", topic_incarnation=of_topic, partitions=asked)
        request = PartitionLeaderEpochsForPartitionsRequest(topics=[named])
        found: LineageTopic = (await broker.harness.request(request)).topics[0]
        return found

    answer = await described(5, 6, 7, of_topic=incarnation)
    assert answer.topic_incarnation == incarnation
    lineages = [(p.error_code, p.as_of, p.over, p.floor, len(p.lineage)) for p in answer.partitions]
    assert lineages == [(0, 2, -1, 0, 1), (0, -1, 4, -1, 0), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1, -1, -1, 0)]
    (entry,) = answer.partitions[0].lineage
    assert (entry.epoch, {q.partition_index: q.leader_epoch for q in entry.losers}) == (1, {1: 0, 3: 2})
    for late in (await described(5, of_topic=incarnation + 1), await described(4)):
        assert late.partitions[0].error_code == ErrorCode.LEADER_NOT_AVAILABLE
