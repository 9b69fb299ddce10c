"""The admin client's requests about a resize (KIP-253), to a lagging broker and to a coordinator."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, nullcontext
from typing import Any

import anyio
import pytest

from anabranch import Admin
from anabranch.client.admin.admin import Admin as CoreAdmin
from anabranch.client.admin.codec import code_error
from anabranch.client.admin.types import GroupPosition, NewTopic, PartitionLineage
from anabranch.client.errors import KafkaTimeoutError
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionResponse,
)
from anabranch.protocol.generated.create_partitions import CreatePartitionsResponse
from anabranch.protocol.generated.find_coordinator import FindCoordinatorResponse
from anabranch.protocol.generated.list_offsets import ListOffsetsResponse
from anabranch.protocol.generated.metadata import MetadataResponse, MetadataResponseBroker
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.protocol.messages import answered, by_partition, message
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.virtual_time import in_virtual_time

FOUR, FIVE = TopicPartition("t", 4), TopicPartition("t", 5)
EPOCHS = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS
POSITION = ApiKey.CONSUMER_GROUP_POSITION
CREATE = ApiKey.CREATE_PARTITIONS
FAST = {"retry_backoff_ms": 1, "retry_backoff_max_ms": 1}
Answer = Callable[[Any], Any]


def broker_with(answers: dict[ApiKey, Answer]) -> FakeBroker:
    """A broker of a topic with 6 partitions that coordinates every group, and answers these APIs."""
    broker = FakeBroker({"t": 6})

    def here(_body: Any) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(node_id=1, host="127.0.0.1", port=broker.port)

    broker.answers = {ApiKey.FIND_COORDINATOR: here, **answers}
    return broker


def results(codes: dict[str, ErrorCode]) -> CreatePartitionsResponse:
    return message(CreatePartitionsResponse, results=[{"name": t, "error_code": code} for t, code in codes.items()])


def asked(broker: FakeBroker, call: Callable[[CoreAdmin], Awaitable[Any]], *others: FakeBroker) -> Any:
    """Ask in virtual time, where time limits do not depend on the machine."""

    async def ask(env: Env) -> Any:
        async with AsyncExitStack() as stack:
            for each in (broker, *others):
                await stack.enter_async_context(each.running(env))
            admin = CoreAdmin(env=env, bootstrap_servers=broker.address, **FAST)
            return await call(await stack.enter_async_context(admin))

    return in_virtual_time(ask)


async def ends(admin: CoreAdmin, within_ms: int) -> dict[TopicPartition, int]:
    found = await admin.list_offsets({FOUR: "latest", FIVE: "latest"}, within_ms=within_ms)
    return {tp: answer.offset for tp, answer in found.items()}


def lineages(partitions: dict[int, dict[str, Any]]) -> PartitionLeaderEpochsForPartitionsResponse:
    return by_partition(PartitionLeaderEpochsForPartitionsResponse, {"t": partitions})


async def test_only_lineages_that_a_broker_did_not_know_are_requested_again() -> None:
    first = lineages({4: {"as_of": 3, "floor": 2}, 5: {"error_code": ErrorCode.LEADER_NOT_AVAILABLE}})
    entry = {"epoch": 0, "losers": [{"partition_index": 1, "leader_epoch": 7}]}
    answers = iter([first, lineages({5: {"as_of": 1, "over": 0, "lineage": [entry]}})])
    broker = broker_with({EPOCHS: lambda body: next(answers)})

    async with broker.client(Admin, **FAST) as admin:
        found = await admin.lineages([FOUR, FIVE])
    assert found == {
        FOUR: PartitionLineage(Lineage(3, 2)),
        FIVE: PartitionLineage(Lineage(1, -1, (LineageEntry(0, {1: 7}),)), over=0),
    }
    asked = [[p.partition_index for p in body.topics[0].partitions] for body in broker.seen(EPOCHS)]
    assert asked == [[4, 5], [5]]


def test_a_lineage_that_no_broker_knows_in_time_is_missing() -> None:
    answer = lineages({4: {"over": 6}, 5: {"error_code": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}})
    found = asked(broker_with({EPOCHS: lambda body: answer}), lambda admin: admin.lineages([FOUR, FIVE], timeout_ms=20))
    assert found == {FOUR: PartitionLineage(None, 6)}


def test_an_offset_that_no_broker_knows_in_time_is_minus_1() -> None:
    """The leader of a partition that was just sealed may not know the end yet. Other offsets are returned."""
    broker = FakeBroker({"t": 6})
    unknown = {"error_code": ErrorCode.OFFSET_NOT_AVAILABLE, "offset": -1}
    broker.answers[ApiKey.LIST_OFFSETS] = lambda body: answered(
        ListOffsetsResponse, body, lambda _, p, asked: unknown if p == 5 else {"offset": 0}
    )
    assert asked(broker, lambda admin: ends(admin, 20)) == {FOUR: 0, FIVE: -1}


def test_offsets_of_other_brokers_are_returned_when_one_does_not_answer() -> None:
    """Both brokers get their requests at once, and neither gets a second request."""
    broker, silent = FakeBroker({"t": 6}), FakeBroker({})
    silent.answers[ApiKey.LIST_OFFSETS] = lambda body: anyio.sleep_forever()

    def of_two(response: MetadataResponse) -> None:
        response.brokers.append(MetadataResponseBroker(node_id=2, host="127.0.0.1", port=silent.port))
        for partition in response.topics[0].partitions if response.topics else ():
            partition.leader_id = 2 if partition.partition_index == 4 else 1

    broker.metadata_hook = of_two
    assert asked(broker, lambda admin: ends(admin, 100), silent) == {FOUR: -1, FIVE: 0}


async def test_listing_offsets_of_a_partition_that_does_not_exist_is_an_error() -> None:
    broker = FakeBroker({"t": 6})
    config = {**FAST, "default_api_timeout_ms": 1_000}

    async with broker.client(Admin, **config) as admin:
        with pytest.raises(KafkaTimeoutError, match="t has no partition 6"):
            await admin.list_offsets({TopicPartition("t", 6): "latest"})


@pytest.mark.parametrize("code", [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNSUPPORTED_VERSION])
async def test_an_error_that_is_not_retriable_is_raised(code: ErrorCode) -> None:
    broker = broker_with({EPOCHS: lambda body: lineages({5: {"error_code": code}})})
    if code is ErrorCode.UNSUPPORTED_VERSION:
        broker.max_versions[EPOCHS] = 0

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError) as raised:
            await admin.lineages([FIVE])
        assert raised.value.code is code


async def test_the_positions_of_a_group_are_requested_without_a_membership() -> None:
    loading = ConsumerGroupPositionResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    partitions = {4: {"position": 17, "need_position": True}, 5: {"position": -1}}
    answers = iter([loading, by_partition(ConsumerGroupPositionResponse, {"t": partitions})])
    broker = broker_with({POSITION: lambda body: next(answers)})

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
    refusal = {"name": "t", "error_code": ErrorCode.POLICY_VIOLATION, "error_message": "not now"}
    broker = broker_with({CREATE: lambda body: message(CreatePartitionsResponse, results=[refusal])})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError, match="not now") as raised:
            await admin.create_partitions({"t": 4}, validate_only=True)
        assert raised.value.code is ErrorCode.POLICY_VIOLATION
    (body,) = broker.seen(CREATE)
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
    answers = iter([{"t": first}, {"t": ErrorCode.INVALID_PARTITIONS}])
    broker = broker_with({CREATE: lambda body: results(next(answers))})

    async with broker.client(Admin, **FAST) as admin:
        with pytest.raises(KafkaError, match="INVALID_PARTITIONS") if is_refused else nullcontext():
            await admin.create_partitions({"t": count})


async def test_the_outcome_of_one_topic_does_not_count_for_another() -> None:
    """Both topics are requested again.

    One topic has its 6 partitions by then. The outcome of the other topic is known only at the third request.
    """
    done, pending, refused = ErrorCode.INVALID_PARTITIONS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.POLICY_VIOLATION
    answers = iter([{"t": pending, "u": pending}, {"t": done, "u": pending}, {"t": done, "u": refused}])
    broker = broker_with({CREATE: lambda body: results(next(answers))})

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
    async with FakeBroker({}).client(Admin, **FAST) as admin:
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
        return results({"t": ErrorCode.NONE})

    async with broker_with({CREATE: carry_out}).client(Admin) as admin, anyio.create_task_group() as tasks:
        tasks.start_soon(admin.create_partitions, {"t": 9})
        await asked.wait()
        with anyio.fail_after(5):
            assert set(await admin.describe_topics(["t"])) == {"t"}
        finished.set()
