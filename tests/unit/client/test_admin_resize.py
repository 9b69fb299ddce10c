"""The admin client's requests about a resize (KIP-253), to a lagging broker and to a coordinator."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import anyio
import pytest

from anabranch import Admin
from anabranch.client.admin.admin import Admin as CoreAdmin
from anabranch.client.admin.codec import code_error
from anabranch.client.admin.types import GroupPosition, NewTopic, PartitionLineage
from anabranch.client.errors import KafkaTimeoutError
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.framing import Request
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsResponse
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionResponse,
    ConsumerGroupPositionResponsePartition,
    ConsumerGroupPositionResponseTopic,
)
from anabranch.protocol.generated.create_partitions import CreatePartitionsResponse, CreatePartitionsTopicResult
from anabranch.protocol.generated.find_coordinator import FindCoordinatorResponse
from anabranch.protocol.generated.list_offsets import ListOffsetsResponse
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponseBroker
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
    PartitionLeaderEpochsForPartitionsResponseEntry,
    PartitionLeaderEpochsForPartitionsResponseLoser,
    PartitionLeaderEpochsForPartitionsResponsePartition,
    PartitionLeaderEpochsForPartitionsResponseTopic,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.unit.client.fake_broker import SERVED, FakeBroker
from tests.unit.client.virtual_time import in_virtual_time

FOUR, FIVE = TopicPartition("t", 4), TopicPartition("t", 5)
EPOCHS = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS
POSITION = ApiKey.CONSUMER_GROUP_POSITION
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1}


class ResizingBroker(FakeBroker):
    """Also answers the APIs in ``answers``."""

    def __init__(self, answers: dict[ApiKey, Callable[[Any], Any]]) -> None:
        super().__init__({"t": 6})
        self.answers = {ApiKey.FIND_COORDINATOR: self._coordinator, **answers}

    def _coordinator(self, body: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=self.port)

    async def _answer(self, request: Request) -> Any:
        key = ApiKey(request.header.api_key)
        if key is ApiKey.API_VERSIONS:
            keys = [
                ApiVersion(api_key=k, min_version=API[k].min_version, max_version=API[k].max_version)
                for k in (*SERVED, *self.answers)
            ]
            return ApiVersionsResponse(api_keys=keys)
        if key in self.answers:
            return self.answers[key](request.body)
        return await super()._answer(request)


def epochs_response(*partitions: PartitionLeaderEpochsForPartitionsResponsePartition) -> Any:
    topic = PartitionLeaderEpochsForPartitionsResponseTopic(name="t", partitions=list(partitions))
    return PartitionLeaderEpochsForPartitionsResponse(topics=[topic])


def known(partition: int, **fields: Any) -> PartitionLeaderEpochsForPartitionsResponsePartition:
    return PartitionLeaderEpochsForPartitionsResponsePartition(partition_index=partition, **fields)


def refused(partition: int, code: ErrorCode) -> PartitionLeaderEpochsForPartitionsResponsePartition:
    return PartitionLeaderEpochsForPartitionsResponsePartition(partition_index=partition, error_code=code)


async def test_only_lineages_that_a_broker_did_not_know_are_requested_again() -> None:
    first = epochs_response(known(4, as_of=3, floor=2), refused(5, ErrorCode.LEADER_NOT_AVAILABLE))
    losers = [PartitionLeaderEpochsForPartitionsResponseLoser(partition_index=1, leader_epoch=7)]
    entry = PartitionLeaderEpochsForPartitionsResponseEntry(epoch=0, losers=losers)
    second = epochs_response(known(5, as_of=1, over=0, lineage=[entry]))
    answers = iter([first, second])
    broker = ResizingBroker({EPOCHS: lambda body: next(answers)})

    async with broker.client(Admin, **FAST) as admin:
        found = await admin.lineages([FOUR, FIVE])
    assert found == {
        FOUR: PartitionLineage(Lineage(3, 2)),
        FIVE: PartitionLineage(Lineage(1, -1, (LineageEntry(0, {1: 7}),)), over=0),
    }
    asked = [[p.partition_index for p in body.topics[0].partitions] for body in broker.seen(EPOCHS)]
    assert asked == [[4, 5], [5]]


def test_a_lineage_that_no_broker_knows_in_time_is_missing() -> None:
    answer = epochs_response(known(4, over=6), refused(5, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    broker = ResizingBroker({EPOCHS: lambda body: answer})

    async def ask(env: Env) -> Any:
        async with broker.running(env), CoreAdmin(env=env, bootstrap_servers=broker.address, **FAST) as admin:
            return await admin.lineages([FOUR, FIVE], timeout_ms=20)

    assert in_virtual_time(ask) == {FOUR: PartitionLineage(None, 6)}


async def test_a_broker_without_the_lineage_api_raises_unsupported_version() -> None:
    broker = FakeBroker({"t": 6})
    broker.max_versions[EPOCHS] = 0

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError) as raised:
            await admin.lineages([FIVE])
        assert raised.value.code is ErrorCode.UNSUPPORTED_VERSION


class SealedBroker(FakeBroker):
    """Does not know the end of partition 5 yet."""

    def _list_offsets(self, body: Any) -> ListOffsetsResponse:
        response = super()._list_offsets(body)
        for partition in response.topics[0].partitions:
            if partition.partition_index == 5:
                partition.error_code, partition.offset = ErrorCode.OFFSET_NOT_AVAILABLE, -1
        return response


def test_an_offset_that_no_broker_knows_in_time_is_minus_1() -> None:
    """The leader of a partition that was just sealed may not know the end yet. Other offsets are returned."""
    broker = SealedBroker({"t": 6})

    async def ask(env: Env) -> Any:
        async with broker.running(env), CoreAdmin(env=env, bootstrap_servers=broker.address, **FAST) as admin:
            found = await admin.list_offsets({FOUR: "latest", FIVE: "latest"}, within_ms=20)
            return {tp: answer.offset for tp, answer in found.items()}

    assert in_virtual_time(ask) == {FOUR: 0, FIVE: -1}


class SilentBroker(FakeBroker):
    """Never answers ListOffsets."""

    async def _answer(self, request: Request) -> Any:
        if request.header.api_key == ApiKey.LIST_OFFSETS:
            await anyio.sleep_forever()
        return await super()._answer(request)


def test_offsets_of_other_brokers_are_returned_when_one_does_not_answer() -> None:
    """Both brokers get their requests at once, and neither gets a second request."""
    broker, silent = FakeBroker({"t": 6}), SilentBroker({})

    def of_two(response: MetadataResponse) -> None:
        response.brokers.append(MetadataResponseBroker(node_id=2, host="127.0.0.1", port=silent.port))
        for partition in response.topics[0].partitions if response.topics else ():
            partition.leader_id = 2 if partition.partition_index == 4 else 1

    broker.metadata_hook = of_two

    async def ask(env: Env) -> Any:
        async with (
            broker.running(env),
            silent.running(env),
            CoreAdmin(env=env, bootstrap_servers=broker.address, **FAST) as admin,
        ):
            found = await admin.list_offsets({FOUR: "latest", FIVE: "latest"}, within_ms=100)
            return {tp: answer.offset for tp, answer in found.items()}

    assert in_virtual_time(ask) == {FOUR: -1, FIVE: 0}


async def test_listing_offsets_of_a_partition_that_does_not_exist_is_an_error() -> None:
    broker = FakeBroker({"t": 6})
    config = {**FAST, "default_api_timeout_ms": 1_000}

    async with broker.client(Admin, **config) as admin:
        with pytest.raises(KafkaTimeoutError, match="t has no partition 6"):
            await admin.list_offsets({TopicPartition("t", 6): "latest"})


async def test_an_error_that_is_not_retriable_is_raised() -> None:
    answer = epochs_response(refused(5, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
    broker = ResizingBroker({EPOCHS: lambda body: answer})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError) as raised:
            await admin.lineages([FIVE])
        assert raised.value.code is ErrorCode.TOPIC_AUTHORIZATION_FAILED


async def test_the_positions_of_a_group_are_requested_without_a_membership() -> None:
    partitions = [
        ConsumerGroupPositionResponsePartition(partition_index=4, position=17, need_position=True),
        ConsumerGroupPositionResponsePartition(partition_index=5, position=-1),
    ]
    topic = ConsumerGroupPositionResponseTopic(name="t", partitions=partitions)
    answers = iter(
        [
            ConsumerGroupPositionResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
            ConsumerGroupPositionResponse(topics=[topic]),
        ]
    )
    broker = ResizingBroker({POSITION: lambda body: next(answers)})

    async with broker.client(Admin, **FAST) as admin:
        found = await admin.group_positions("g", [FOUR, FIVE])
    assert found == {FOUR: GroupPosition(17, True), FIVE: GroupPosition(-1, False)}
    body = broker.seen(POSITION)[-1]
    assert (body.group_id, body.generation_id, body.member_id, body.group_instance_id) == ("g", -1, "", None)
    assert [(p.partition_index, p.need_position, p.position) for p in body.topics[0].partitions] == [
        (4, False, -1),
        (5, False, -1),
    ]


async def test_a_lower_count_and_validate_only_are_sent_unchanged() -> None:
    refusal = CreatePartitionsTopicResult(name="t", error_code=ErrorCode.POLICY_VIOLATION, error_message="not now")
    broker = ResizingBroker({ApiKey.CREATE_PARTITIONS: lambda body: CreatePartitionsResponse(results=[refusal])})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError, match="not now") as raised:
            await admin.create_partitions({"t": 4}, validate_only=True)
        assert raised.value.code is ErrorCode.POLICY_VIOLATION
    (body,) = broker.seen(ApiKey.CREATE_PARTITIONS)
    assert (body.topics[0].count, body.validate_only) == (4, True)


@pytest.mark.parametrize(
    ("first", "count", "is_refused"),
    [
        (ErrorCode.REQUEST_TIMED_OUT, 6, False),
        (ErrorCode.REQUEST_TIMED_OUT, 5, True),
        (ErrorCode.INVALID_PARTITIONS, 6, True),
    ],
    ids=["carried out", "not carried out", "asked once"],
)
async def test_a_repeated_create_partitions_succeeds_only_if_the_first_was_carried_out(
    first: ErrorCode, count: int, is_refused: bool
) -> None:
    """The second response is INVALID_PARTITIONS, because the topic already has 6 partitions."""
    codes = iter([first, ErrorCode.INVALID_PARTITIONS])

    def answer(body: Any) -> CreatePartitionsResponse:
        return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name="t", error_code=next(codes))])

    broker = ResizingBroker({ApiKey.CREATE_PARTITIONS: answer})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS") if is_refused else nullcontext():
            await admin.create_partitions({"t": count})


async def test_the_outcome_of_one_topic_does_not_count_for_another() -> None:
    """Both topics are requested again.

    One topic has its 6 partitions by then. The outcome of the other topic is known only at the third request.
    """
    done, pending, refused = ErrorCode.INVALID_PARTITIONS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.POLICY_VIOLATION
    answers = iter([(pending, pending), (done, pending), (done, refused)])

    def answer(body: Any) -> CreatePartitionsResponse:
        codes = zip(("t", "u"), next(answers), strict=True)
        results = [CreatePartitionsTopicResult(name=name, error_code=code) for name, code in codes]
        return CreatePartitionsResponse(results=results)

    broker = ResizingBroker({ApiKey.CREATE_PARTITIONS: answer})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError) as raised:
            await admin.create_partitions({"t": 6, "u": 6})
    assert raised.value.code is refused
    assert raised.value.message.startswith("u:")


@pytest.mark.parametrize(
    ("message", "shown"),
    [("t cannot grow", "t cannot grow"), ("topics cannot grow", "t: topics cannot grow"), (None, "t: the request")],
)
def test_an_error_names_the_topic_once(message: str | None, shown: str) -> None:
    error = code_error(ErrorCode.POLICY_VIOLATION, "t", message)
    assert error is not None and error.message.startswith(shown)


@pytest.mark.parametrize("count", [10**12, 2**31, -(10**12)])
async def test_a_count_that_does_not_fit_into_a_request_is_refused(count: int) -> None:
    """The client itself refuses the count, because the count does not fit into the field of a request."""
    broker = ResizingBroker({})

    async with broker.client(Admin, **FAST) as admin:
        for call in (admin.create_partitions({"t": count}), admin.create_topics([NewTopic("t", count)])):
            with pytest.raises(KafkaError) as counted:
                await call
            assert counted.value.code is ErrorCode.INVALID_PARTITIONS
            assert counted.value.message == (
                f"t: partition count {count} is out of range; the largest possible is 2147483647"
            )
        with pytest.raises(KafkaError, match=f"t: replication factor {count} is out of range.*32767") as copied:
            await admin.create_topics([NewTopic("t", 1, count)])
        assert copied.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


async def test_other_requests_are_answered_while_a_resize_is_carried_out() -> None:
    """A broker answers the requests of one connection in order, and CreatePartitions only after the resize."""
    asked, finished = anyio.Event(), anyio.Event()

    async def carry_out(_: Any) -> CreatePartitionsResponse:
        asked.set()
        await finished.wait()
        return CreatePartitionsResponse(results=[CreatePartitionsTopicResult(name="t")])

    broker = FakeBroker({"t": 6})
    broker.answers = {ApiKey.CREATE_PARTITIONS: carry_out}
    async with (
        broker.running(),
        Admin(bootstrap_servers=broker.address) as admin,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(admin.create_partitions, {"t": 9})
        await asked.wait()
        with anyio.fail_after(5):
            assert set(await admin.describe_topics(["t"])) == {"t"}
        finished.set()
