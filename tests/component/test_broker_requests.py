"""A broker's responses over a real socket; the test acts as the controller."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.handlers import fetch as fetch_handler
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.replication.partition import Partition
from anabranch.broker.stock.client_session import OUR_SOFTWARE
from anabranch.protocol.acl_operations import NOT_ASKED
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import BatchBuilder, build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.framing import ClientConnection, RequestHeader, decode_response, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.describe_cluster import DescribeClusterController, DescribeClusterRequest
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.describe_producers import DescribeProducersRequest
from anabranch.protocol.generated.describe_producers import TopicRequest as DescribeTopicRequest
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.records import iter_batches
from anabranch.runtime.channel import Channel
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.controller import ControllerZnode
from tests.support.broker import requests
from tests.support.broker.broker_harness import BROKER_ID, DEADLINE_S, OneBroker, one_broker
from tests.support.broker.requests import only

pytestmark = pytest.mark.trio


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[OneBroker]:
    async with one_broker(tmp_path) as found:
        yield found


def batch(*values: bytes, timestamp: int = 1_000, producer: tuple[int, int, int] = (-1, -1, -1)) -> bytes:
    builder = BatchBuilder(CompressionType.NONE, 1 << 20)
    for value in values or (b"value",):
        builder.append(b"key", value, (), timestamp)
    producer_id, epoch, sequence = producer
    return bytes(builder.build(producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence))


async def produce(broker: OneBroker, records: bytes, partition: int = 0) -> Any:
    return only(await broker.request(requests.produce(records, partition=partition)))


def fetch(offset: int = 0, partition: int = 0, **fields: Any) -> FetchRequest:
    return requests.fetch(partition, offset=offset, **fields)


async def end_offset(broker: OneBroker, timestamp: int = -1) -> int:
    return int(only(await broker.request(requests.list_offsets(0, timestamp=timestamp))).offset)


async def test_produced_records_are_fetched(broker: OneBroker) -> None:
    await broker.create_topic("t")
    assert (await produce(broker, batch(b"a", b"b"))).base_offset == 0
    assert (await produce(broker, batch(b"c"))).base_offset == 2
    found = (await broker.request(fetch())).responses[0].partitions[0]
    values = [record.value for part in iter_batches(found.records) for record in part]
    assert values == [b"a", b"b", b"c"]
    assert found.high_watermark == 3


async def test_a_fetch_waits_for_records(broker: OneBroker) -> None:
    await broker.create_topic("t")
    answers: list[Any] = []

    async with trio.open_nursery() as nursery:

        async def wait_for_records() -> None:
            answers.append(await broker.request(fetch(max_wait_ms=20_000)))

        nursery.start_soon(wait_for_records)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not answers
        started = trio.current_time()
        async with Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other:
            await other.request(requests.produce(batch()))
    assert answers[0].responses[0].partitions[0].high_watermark == 1
    assert trio.current_time() - started < 10


async def test_an_incremental_fetch_returns_only_partitions_with_new_records(broker: OneBroker) -> None:
    await broker.create_topic("t", 3)
    full = fetch(session_epoch=0)
    full.topics[0].partitions += [
        FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1 << 20) for index in (1, 2)
    ]
    first = await broker.request(full)
    assert first.session_id != 0
    assert [found.partition_index for found in first.responses[0].partitions] == [0, 1, 2]
    quiet = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=1)
    assert (await broker.request(quiet)).responses == []
    await produce(broker, batch(), 1)
    quiet.session_epoch = 2
    news = await broker.request(quiet)
    assert [found.partition_index for found in news.responses[0].partitions] == [1]
    assert (await broker.request(quiet)).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    quiet.session_id += 1
    assert (await broker.request(quiet)).error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_of_many_partitions_ends_when_most_of_them_have_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session would keep partitions that do not exist. With session id 0 a client begins again with a full fetch."""
    monkeypatch.setattr(fetch_handler, "READ_AT_ONCE", 4)

    def reading(session_id: int, epoch: int, **partitions: int) -> FetchRequest:
        topics = [
            FetchTopic(topic=topic, partitions=[FetchPartition(partition=index) for index in range(count)])
            for topic, count in partitions.items()
        ]
        return FetchRequest(max_bytes=1 << 20, session_id=session_id, session_epoch=epoch, topics=topics)

    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t", 3)
        few = await broker.request(reading(0, 0, absent=4))
        assert few.session_id != 0
        first = await broker.request(reading(0, 0, t=3, absent=3))
        assert first.session_id != 0, "not more than half"
        ended = await broker.request(reading(first.session_id, 1, absent=7))
        assert (ended.error_code, ended.session_id) == (0, 0)
        assert [(topic.topic, len(topic.partitions)) for topic in ended.responses] == [("absent", 7)]
        gone = await broker.request(reading(first.session_id, 2))
        assert gone.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        full = await broker.request(reading(0, 0, t=3, absent=7))
        assert (full.session_id, sum(len(topic.partitions) for topic in full.responses)) == (0, 10)
        assert (await broker.request(reading(0, 0, t=3))).session_id != 0


async def test_a_fetch_session_ends_with_its_connection(broker: OneBroker) -> None:
    await broker.create_topic("t")
    async with Channel.open(broker.env.network, broker.host, broker.port, client_id="other") as other:
        first = await other.request(fetch(session_epoch=0), timeout_s=DEADLINE_S)
        again = FetchRequest(max_wait_ms=0, min_bytes=1, session_id=first.session_id, session_epoch=1)
        assert (await other.request(again, timeout_s=DEADLINE_S)).error_code == 0
    again.session_epoch = 77
    seen = ErrorCode.INVALID_FETCH_SESSION_EPOCH  # until the broker sees the end of the other connection
    with trio.fail_after(DEADLINE_S):
        while seen == ErrorCode.INVALID_FETCH_SESSION_EPOCH:
            seen = (await broker.request(again)).error_code
    assert seen == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


@pytest.mark.parametrize("begins", [False, True])
async def test_a_held_fetch_is_answered_when_its_session_asks_for_more(tmp_path: Path, begins: bool) -> None:
    """The responses of a connection are in order, so a held fetch would delay the next one until its deadline.

    The second request can be answered at once. It continues the session, or begins another session.
    """
    async with one_broker(tmp_path) as broker, trio.open_nursery() as nursery:
        await broker.create_topic("t", 2)
        await produce(broker, batch(), 1)
        answers: dict[int, Any] = {}
        first = await broker.request(fetch(session_epoch=0))
        held = FetchRequest(max_wait_ms=3_600_000, min_bytes=1, session_id=first.session_id, session_epoch=1)
        epoch = 0 if begins else 2
        more = fetch(partition=1, max_wait_ms=3_600_000, session_id=first.session_id, session_epoch=epoch)

        async def ask(number: int, request: FetchRequest) -> None:
            answers[number] = await broker.request(request)

        nursery.start_soon(ask, 1, held)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert not answers
        with trio.fail_after(30):
            await ask(2, more)
    assert not answers[1].responses and answers[1].error_code == 0
    assert [len(found.records) > 0 for found in answers[2].responses[0].partitions] == [True]


async def test_a_fetch_gets_kafkas_error_for_a_wrong_offset_epoch_or_partition(broker: OneBroker) -> None:
    await broker.create_topic("t", leader_epoch=3)

    async def code(request: FetchRequest) -> int:
        return int((await broker.request(request)).responses[0].partitions[0].error_code)

    assert await code(fetch(7)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await code(fetch(leader_epoch=2)) == ErrorCode.FENCED_LEADER_EPOCH
    assert await code(fetch(leader_epoch=4)) == ErrorCode.UNKNOWN_LEADER_EPOCH
    assert await code(fetch(partition=9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_a_fetch_returns_its_first_batch_whole_even_above_the_limits(broker: OneBroker) -> None:
    await broker.create_topic("t")
    await produce(broker, batch(b"x" * 5_000))
    await produce(broker, batch(b"y"))
    found = (await broker.request(fetch(max_bytes=10))).responses[0].partitions[0]
    assert [part.base_offset for part in iter_batches(found.records, allow_partial_tail=True)] == [0]


async def test_a_repeated_sequence_is_a_duplicate_and_a_gap_is_out_of_order(broker: OneBroker) -> None:
    await broker.create_topic("t")
    first = await broker.request(InitProducerIdRequest(transactional_id=None))
    second = await broker.request(InitProducerIdRequest(transactional_id=None))
    assert second.producer_id == first.producer_id + 1
    producer_id = first.producer_id
    assert (await produce(broker, batch(producer=(producer_id, 0, 0)))).base_offset == 0
    repeated = await produce(broker, batch(producer=(producer_id, 0, 0)))
    assert (repeated.error_code, repeated.base_offset) == (0, 0)
    gap = await produce(broker, batch(producer=(producer_id, 0, 5)))
    assert gap.error_code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert await end_offset(broker) == 1


async def test_transactions_are_refused(broker: OneBroker) -> None:
    response = await broker.request(InitProducerIdRequest(transactional_id="tx"))
    assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


async def test_a_transactional_batch_without_a_transactional_id_is_refused(broker: OneBroker) -> None:
    """The transaction would never end, so the last stable offset would not advance. Other partitions are accepted."""
    transactional = build_batch([(b"k", b"v", (), 1_000)], producer_id=7, base_sequence=0, is_transactional=True)
    await broker.create_topic("t", 2)
    request = requests.produce(transactional, batch(b"plain"))
    refused, taken = (await broker.request(request)).responses[0].partition_responses
    await produce(broker, batch(b"after"))
    committed = (await broker.request(fetch(isolation_level=1))).responses[0].partitions[0]
    assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert "transactional batch" in refused.error_message
    assert (taken.error_code, taken.base_offset) == (0, 0)
    assert (committed.last_stable_offset, committed.high_watermark) == (1, 1)


async def test_list_offsets_finds_the_earliest_the_latest_and_offsets_by_timestamp(broker: OneBroker) -> None:
    await broker.create_topic("t")
    for timestamp in (1_000, 3_000, 2_000):
        await produce(broker, batch(timestamp=timestamp))
    found = {asked: await end_offset(broker, asked) for asked in (-1, -2, -3, 1_500, 9_000)}
    assert found == {-1: 3, -2: 0, -3: 1, 1_500: 1, 9_000: -1}


async def test_an_older_controller_is_refused(broker: OneBroker) -> None:
    """KAFKA-6082: a replaced controller must not change anything."""
    topic_id = await broker.create_topic("t")
    broker.controller_epoch -= 1
    state = LeaderAndIsrPartitionState(leader=BROKER_ID, leader_epoch=9, isr=[BROKER_ID], replicas=[BROKER_ID])
    stale = ErrorCode.STALE_CONTROLLER_EPOCH
    assert (await broker.leader_and_isr("t", topic_id, [state])).error_code == stale
    assert (await broker.update_metadata("t", topic_id, 1, leader=-2)).error_code == stale
    assert (await broker.stop_replica("t", 0, leader_epoch=-2, delete=True)).error_code == stale
    assert (await produce(broker, batch())).error_code == 0


async def test_another_incarnation_gets_a_log_of_its_own(broker: OneBroker) -> None:
    """KAFKA-12257, 14616: a new topic has no records of a deleted topic of the same name."""
    await broker.create_topic("t")
    await produce(broker, batch())
    state = LeaderAndIsrPartitionState(
        leader=BROKER_ID, leader_epoch=0, isr=[BROKER_ID], replicas=[BROKER_ID], incarnation=77
    )
    response = await broker.leader_and_isr("t", uuid.uuid4(), [state])
    assert response.topics[0].partition_errors[0].error_code == 0
    assert await end_offset(broker) == 0


async def test_a_broker_answers_metadata_without_a_controller(tmp_path: Path) -> None:
    async with one_broker(tmp_path, {"request.timeout.ms": "300"}) as broker:
        topic_id = await broker.create_topic("b", 2)
        await broker.create_topic("a")
        everything = await broker.request(MetadataRequest(topics=None))
        assert [topic.name for topic in everything.topics] == ["a", "b"]
        assert everything.controller_id == BROKER_ID
        by_id = await broker.request(MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)]))
        assert by_id.topics[0].name == "b"
        names = [MetadataRequestTopic(name=name) for name in ("no", "not/legal")]
        missing = await broker.request(MetadataRequest(topics=names))
        assert [topic.error_code for topic in missing.topics] == [
            ErrorCode.LEADER_NOT_AVAILABLE,
            ErrorCode.INVALID_TOPIC_EXCEPTION,
        ]
        quiet = await broker.request(MetadataRequest(topics=names[:1], allow_auto_topic_creation=False))
        assert quiet.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = await broker.request(FindCoordinatorRequest(key="g"), 3)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE


@pytest.mark.parametrize("version", [8, 10, 11])
async def test_without_an_authorizer_every_operation_is_authorized(broker: OneBroker, version: int) -> None:
    """KIP-430: every operation is authorized, except operations on a topic that does not exist."""
    await broker.create_topic("t")
    asked = MetadataRequest(
        topics=[MetadataRequestTopic(name="t"), MetadataRequestTopic(name="no")],
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=True,
        include_cluster_authorized_operations=version <= 10,
    )
    found = await broker.request(asked, version)
    assert [topic.topic_authorized_operations for topic in found.topics] == [3576, NOT_ASKED]
    assert found.cluster_authorized_operations == (8096 if version <= 10 else NOT_ASKED)
    silent = await broker.request(MetadataRequest(topics=[MetadataRequestTopic(name="t")]), version)
    assert silent.topics[0].topic_authorized_operations == silent.cluster_authorized_operations == NOT_ASKED


@pytest.mark.parametrize(("asked", "found"), [(True, 8096), (False, NOT_ASKED)])
async def test_describe_cluster_names_the_authorized_operations(broker: OneBroker, asked: bool, found: int) -> None:
    await broker.create_topic("t")
    described = await broker.request(DescribeClusterRequest(include_cluster_authorized_operations=asked))
    assert described.cluster_authorized_operations == found


async def test_describe_cluster_names_the_active_controller_and_its_release(broker: OneBroker) -> None:
    found = (await broker.request(DescribeClusterRequest())).active_controller
    assert (found.controller_id, found.release) == (-1, ""), "no controller is active"
    controller = ControllerZnode(1001, "h", 9090, 0, release="0.1.0").encode()
    await broker.zk.session().create(ControllerZnode.PATH, controller, ephemeral=True)
    with trio.fail_after(DEADLINE_S):
        while found.controller_id < 0:
            found = (await broker.request(DescribeClusterRequest())).active_controller
            await trio.sleep(0.01)  # polls: the broker notices the election
    assert (found.controller_id, found.host, found.port, found.release) == (1001, "h", 9090, "0.1.0")


async def test_describe_cluster_names_the_running_controllers(broker: OneBroker) -> None:
    session = broker.zk.session()
    for controller, port in ((1002, 9092), (1001, 9091)):
        znode = ControllerZnode(controller, "h", port, release="0.1.0").encode()
        await session.create(paths.controller_id(controller), znode, ephemeral=True, make_parents=True)
    found: list[DescribeClusterController] = []
    with trio.fail_after(DEADLINE_S):
        while len(found) < 2:
            found = (await broker.request(DescribeClusterRequest())).running_controllers or []
            await trio.sleep(0.01)  # polls: the broker notices the registrations
    assert [(one.controller_id, one.host, one.port, one.release) for one in found] == [
        (1001, "h", 9091, "0.1.0"),
        (1002, "h", 9092, "0.1.0"),
    ]


async def test_a_metadata_request_waits_for_the_first_update_metadata(broker: OneBroker) -> None:
    """librdkafka 2.10 drops every broker that a response does not name. An empty response would leave it no broker."""
    answers: list[Any] = []

    async def ask(request: MetadataRequest) -> None:
        answers.append(await broker.request(request))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask, MetadataRequest(topics=None))
        nursery.start_soon(ask, MetadataRequest(topics=[MetadataRequestTopic(name="t")]))
        await broker.create_topic("t")
    assert [[found.node_id for found in answer.brokers] for answer in answers] == [[BROKER_ID]] * 2
    assert [[topic.name for topic in answer.topics] for answer in answers] == [["t"]] * 2


async def test_a_changed_topic_config_takes_effect_at_once(broker: OneBroker) -> None:
    await broker.create_topic("t")
    assert (await produce(broker, batch(b"x" * 2_000))).error_code == 0
    admin = broker.zk.session()
    await admin.create(ConfigZnode.topic_path("t"), ConfigZnode({"max.message.bytes": "1000"}).encode())
    await admin.create(ConfigChange.PREFIX, ConfigChange("topics/t").encode(), sequence=True)
    with trio.fail_after(DEADLINE_S):
        while (await produce(broker, batch(b"x" * 2_000))).error_code == 0:
            await trio.lowlevel.checkpoint()
    assert (await produce(broker, batch(b"x" * 2_000))).error_code == ErrorCode.MESSAGE_TOO_LARGE
    resource = DescribeConfigsResource(
        resource_type=2, resource_name="t", configuration_keys=["max.message.bytes", "segment.ms"]
    )
    response = await broker.request(DescribeConfigsRequest(resources=[resource]))
    shown = {config.name: (config.value, config.config_source) for config in response.results[0].configs}
    assert shown == {"max.message.bytes": ("1000", 1), "segment.ms": ("604800000", 5)}


async def test_a_changed_broker_config_reaches_every_topic_that_inherits_it(broker: OneBroker) -> None:
    await broker.create_topic("t")
    admin = broker.zk.session()
    await admin.create(ConfigZnode.broker_path(None), ConfigZnode({"message.max.bytes": "1000"}).encode())
    await admin.create(ConfigChange.PREFIX, ConfigChange("brokers/<default>").encode(), sequence=True)
    with trio.fail_after(DEADLINE_S):
        while (await produce(broker, batch(b"x" * 2_000))).error_code == 0:
            await trio.lowlevel.checkpoint()
    resources = [
        DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=["message.max.bytes"]),
        DescribeConfigsResource(resource_type=4, resource_name="2", configuration_keys=None),
    ]
    response = await broker.request(DescribeConfigsRequest(resources=resources))
    shown = response.results[0].configs[0]
    assert (shown.value, shown.config_source, shown.read_only) == ("1000", 3, False)
    assert response.results[1].error_code == ErrorCode.INVALID_REQUEST


async def test_a_read_only_key_in_a_broker_config_edited_by_hand_is_ignored(broker: OneBroker) -> None:
    await broker.create_topic("t")
    admin = broker.zk.session()
    edited = ConfigZnode({"fetch.max.bytes": "2000", "message.max.bytes": "1000"})
    await admin.create(ConfigZnode.broker_path(BROKER_ID), edited.encode())
    await admin.create(ConfigChange.PREFIX, ConfigChange(f"brokers/{BROKER_ID}").encode(), sequence=True)
    with trio.fail_after(DEADLINE_S):
        while (await produce(broker, batch(b"x" * 2_000))).error_code == 0:
            await trio.lowlevel.checkpoint()
    resource = DescribeConfigsResource(
        resource_type=4, resource_name="1", configuration_keys=["fetch.max.bytes", "message.max.bytes"]
    )
    response = await broker.request(DescribeConfigsRequest(resources=[resource]))
    shown = {config.name: (config.value, config.config_source) for config in response.results[0].configs}
    assert shown == {"message.max.bytes": ("1000", 2), "fetch.max.bytes": (str(55 << 20), 5)}


async def test_the_cluster_wide_default_does_not_include_the_config_of_the_broker_that_answers(
    broker: OneBroker,
) -> None:
    admin = broker.zk.session()
    default = ConfigZnode({"log.retention.ms": "800000"})
    own = ConfigZnode({"log.retention.ms": "700000", "message.max.bytes": "1000"})
    await admin.create(ConfigZnode.broker_path(None), default.encode())
    await admin.create(ConfigZnode.broker_path(BROKER_ID), own.encode())
    resource = DescribeConfigsResource(resource_type=4, resource_name="", configuration_keys=None)
    response = await broker.request(DescribeConfigsRequest(resources=[resource], include_synonyms=True))
    shown = [
        (config.name, config.value, config.config_source, [(s.value, s.source) for s in config.synonyms])
        for config in response.results[0].configs
    ]
    assert shown == [("log.retention.ms", "800000", 3, [("800000", 3)])]


@pytest.mark.parametrize(
    "failure",
    [KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk"), ValueError("closed")],
    ids=["KAFKA_STORAGE_ERROR", "ValueError"],
)
async def test_log_flush_ack_acknowledges_nothing_that_was_not_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    async def flush(log: PartitionLog) -> None:
        log.is_broken = isinstance(failure, KafkaError)
        raise failure

    async with one_broker(tmp_path, {"log.flush": "ack"}) as broker:
        await broker.create_topic("t")
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "flush", flush)
            result = await produce(broker, batch())
        assert (result.error_code, result.base_offset) == (ErrorCode.KAFKA_STORAGE_ERROR, -1)
        assert (await produce(broker, batch())).error_code == ErrorCode.KAFKA_STORAGE_ERROR, (
            "a later sync does not prove that the earlier write is on disk"
        )
        session = broker.zk.session()
        with trio.fail_after(DEADLINE_S):
            while not await session.children(paths.LOG_DIR_EVENTS):
                await trio.sleep(0.01)  # polls: the notification for the controller
        state = LeaderAndIsrPartitionState(leader=BROKER_ID, leader_epoch=1, isr=[BROKER_ID], replicas=[BROKER_ID])
        answer = await broker.leader_and_isr("t", uuid.UUID(int=0), [state])
        assert answer.topics[0].partition_errors[0].error_code == ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_config_change_without_notification_is_read_when_a_controller_is_elected(broker: OneBroker) -> None:
    await broker.create_topic("t")
    admin = broker.zk.session()
    changed = ConfigZnode({"max.message.bytes": "50"}).encode()
    await admin.create(ConfigZnode.topic_path("t"), changed, make_parents=True)
    controller = ControllerZnode(1001, "127.0.0.1", 1, 0).encode()
    await admin.create(ControllerZnode.PATH, controller, ephemeral=True)
    with trio.fail_after(DEADLINE_S):
        while (await produce(broker, batch())).error_code != ErrorCode.MESSAGE_TOO_LARGE:
            await trio.sleep(0.01)  # polls: the broker reads its configs again


@pytest.mark.parametrize("asks", [False, True])
async def test_own_tags_go_only_to_clients_that_ask_for_them(broker: OneBroker, asks: bool) -> None:
    """The name of the client does not count: this one is named as our own are."""
    topic_id = await broker.create_topic("t")
    await broker.update_metadata("t", topic_id, 1, layout=(1, 1, 0), incarnation=7, topic_incarnation=6)
    header = RequestHeader(MetadataRequest.API_KEY, 11, 1, "some client", asks_for_own_tags=asks)
    stream = await broker.raw()
    named = ApiVersionsRequest(client_software_name=OUR_SOFTWARE, client_software_version="1")
    with stream.socket:
        frames = ClientConnection()
        for request in (
            encode_request(RequestHeader(ApiKey.API_VERSIONS, 3, 0, None), named),
            encode_request(header, MetadataRequest(topics=None)),
        ):
            await stream.send_all(b"".join(bytes(part) for part in request))
            while (frame := frames.next_frame()) is None:
                frames.received(await stream.socket.recv_into(frames.buffer()))
    (topic,) = decode_response(MetadataRequest.API_KEY, 11, frame)[1].topics
    own = (topic.topic_incarnation >= 0, topic.layout_version >= 0, topic.partitions[0].incarnation >= 0)
    assert own == (asks, asks, asks)


@pytest.mark.parametrize(
    ("timestamp", "first_version", "offset"),
    [(-1, 1, 3), (-2, 1, 1), (-3, 7, 1), (-4, 8, 1), (-5, 9, -1), (-6, 99, -1)],
)
async def test_each_special_timestamp_has_its_first_version(
    broker: OneBroker, timestamp: int, first_version: int, offset: int
) -> None:
    """KIP-734, KIP-405, KIP-1005: an earlier version gets UNSUPPORTED_VERSION, as in Kafka."""
    await broker.create_topic("t")
    for time in (1_000, 3_000, 2_000):
        await produce(broker, batch(timestamp=time))
    await broker.request(requests.delete_records(0, 1))
    for version in range(1, 10):
        found = only(await broker.request(requests.list_offsets(0, timestamp=timestamp), version))
        known = version >= first_version
        code = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_VERSION
        assert (found.error_code, found.offset) == (code, offset if known else -1), version


@pytest.mark.parametrize(("version", "name"), [(10, ""), (11, ""), (12, None)])
async def test_an_unknown_topic_id_has_no_name(broker: OneBroker, version: int, name: str | None) -> None:
    await broker.create_topic("t")
    asked = [MetadataRequestTopic(topic_id=uuid.UUID(int=9), name=None)]
    (topic,) = (await broker.request(MetadataRequest(topics=asked), version)).topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.UNKNOWN_TOPIC_ID, name, uuid.UUID(int=9))


async def test_any_replica_describes_its_producers_and_only_the_leader_its_producers_without_records(
    broker: OneBroker,
) -> None:
    """``kafka-transactions find-hanging --broker-id`` asks followers too."""
    topic_id = await broker.create_topic("t")
    await produce(broker, batch(producer=(7, 0, 0)))
    follow = LeaderAndIsrPartitionState(
        controller_epoch=broker.controller_epoch, leader=99, leader_epoch=1, isr=[99, BROKER_ID], replicas=[99, 1]
    )
    await broker.leader_and_isr("t", topic_id, [follow])
    topics = [DescribeTopicRequest(name=name, partition_indexes=[0]) for name in ("t", "no")]
    answers = (await broker.request(DescribeProducersRequest(topics=topics))).topics
    found, missing = (topic.partitions[0] for topic in answers)
    assert [producer.producer_id for producer in found.active_producers] == [7]
    assert (found.error_code, missing.error_code) == (0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    request = DescribeProducersRequest(topics=topics[:1], without_records=True)
    (refused,) = (await broker.request(request)).topics[0].partitions
    assert refused.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_only_a_follower_that_says_so_counts_as_without_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[int] = []
    monkeypatch.setattr(Partition, "follower_has_no_room", lambda _self, replica_id: noted.append(replica_id))
    async with one_broker(tmp_path) as broker:
        await broker.create_topic("t")
        topics = [ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(timestamp=-2)])]
        for has_no_room in (False, True):
            asked = ListOffsetsRequest(replica_id=2, topics=topics, has_no_room=has_no_room)
            assert (await broker.request(asked)).topics[0].partitions[0].offset == 0
    assert noted == [2]


async def test_batches_without_acknowledgement_are_written_although_their_client_is_gone(broker: OneBroker) -> None:
    await broker.create_topic("t")
    request = requests.produce(batch(b"v" * 1_000), acks=0, timeout_ms=0)
    header = RequestHeader(ApiKey.PRODUCE, 9, 1, "gone")
    frame = b"".join(bytes(part) for part in encode_request(header, request))  # type: ignore[arg-type]
    stream = await broker.raw()
    await stream.send_all(frame * 200)
    await stream.aclose()
    with trio.fail_after(DEADLINE_S):
        while await end_offset(broker) < 200:
            await trio.lowlevel.checkpoint()
