"""Writes that are too large for ZooKeeper, and requests that come during long work: controllers in virtual time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NoReturn

import pytest
import trio

from anabranch.controller.admin.dispatch import HANDLERS
from anabranch.controller.events import AdminCall, Event, EventQueue
from anabranch.controller.store import MAX_ATTEMPTS, MAX_OPERATIONS
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_configs import AlterConfigsRequest
from anabranch.protocol.generated.alter_configs import AlterConfigsResource as WholeConfigs
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
)
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from anabranch.protocol.generated.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest
from anabranch.protocol.generated.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsRequest
from anabranch.protocol.generated.update_features import UpdateFeaturesRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import CreateOp, SessionState, SetOp, ZkConnectionError, ZkOp, ZkRequestTooLargeError
from anabranch.runtime.zk_requests import DEFAULT_MAX_REQUEST_BYTES, request_bytes
from anabranch.zk_schemas import paths
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = pytest.mark.trio
TOPIC = 2
DONE = (ErrorCode.NONE, "")
LIST_KEY = "leader.replication.throttled.replicas"


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    """Two brokers and the topic ``t`` with one partition on each of them."""
    cluster = ControllerCluster(nursery)
    await cluster.start_controller()
    for broker_id in (1, 2):
        await cluster.start_broker(broker_id)
    await cluster.until(lambda: all(broker.sent(UpdateMetadataRequest) for broker in cluster.brokers.values()))
    assert await create(cluster, "t", 2) == DONE
    return cluster


async def create(
    cluster: ControllerCluster, name: str, partitions: int, replicas: int = 1, **keys: Any
) -> tuple[int, str]:
    validate_only = keys.pop("validate_only", False)
    configs = [CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in keys.items()]
    topic = CreatableTopic(name=name, num_partitions=partitions, replication_factor=replicas, configs=configs)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000, validate_only=validate_only)
    result = (await cluster.request(request)).topics[0]
    return result.error_code, result.error_message or ""


async def alter(cluster: ControllerCluster, name: str, value: str, *, validate_only: bool = False) -> tuple[int, str]:
    configs = [AlterableConfig(name=LIST_KEY, config_operation=0, value=value)]
    resource = AlterConfigsResource(resource_type=TOPIC, resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    result = (await cluster.request(request)).responses[0]
    return result.error_code, result.error_message or ""


async def reached(condition: Callable[[], Awaitable[object]]) -> None:
    """Wait for the condition while the controller works: virtual time stops until all tasks wait."""
    for _ in range(1_000_000):
        if await condition():
            return
        await trio.lowlevel.checkpoint()
    raise AssertionError("not reached")


async def is_served(cluster: ControllerCluster) -> bool:
    return bool((await cluster.request(ListPartitionReassignmentsRequest())).error_code == ErrorCode.NONE)


def throttled(length: int) -> str:
    return ",".join(["1:1"] * (length // 4))


async def test_a_topic_znode_that_cannot_be_rewritten_is_left_alone(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Another writer created the topic. With the controller's additional fields the znode would be too large."""
    path, data = paths.topic("u"), b'{"version":1,"partitions":{"0":[1]},"padding":"PADDING"}'
    free = DEFAULT_MAX_REQUEST_BYTES - request_bytes([CreateOp(path, data)])
    await cluster.store.create(path, data.replace(b"PADDING", b"x" * free))
    await cluster.until(
        lambda: any("event=step.given_up step=loading topic u" in message for message in caplog.messages)
    )
    assert await create(cluster, "v", 1) == DONE
    assert await is_served(cluster)


async def test_a_write_that_always_breaks_the_connection_is_given_up(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """A ZooKeeper server does this when its own limit is below the limit that the controller assumes."""
    session, broken = cluster.sessions[1000], 0

    def again(state: SessionState) -> None:
        nonlocal broken
        if state is SessionState.SUSPENDED:
            broken += 1
            cluster.nursery.start_soon(reconnect)

    async def reconnect() -> None:
        if broken < MAX_ATTEMPTS:
            session.lose_next_request()
        session.reconnect()

    session.on_state(again)
    session.lose_next_request()
    code, message = await alter(cluster, "t", "1:1")
    assert code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert f"not written in {MAX_ATTEMPTS} attempts" in message
    assert broken == MAX_ATTEMPTS
    assert await alter(cluster, "t", "1:1") == DONE
    again_read = "event=cluster.read_again reason=a step was given up"
    await cluster.until(lambda: any(again_read in record.getMessage() for record in caplog.records))


REQUESTS: tuple[Any, ...] = (
    ControlledShutdownRequest(broker_id=1),
    CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in "ab"]),
    DeleteTopicsRequest(topics=[DeleteTopicState(name=name) for name in "tu"]),
    AlterConfigsRequest(resources=[WholeConfigs(resource_type=TOPIC, resource_name=name) for name in "tu"]),
    CreatePartitionsRequest(topics=[CreatePartitionsTopic(name=name, count=3) for name in "tu"]),
    IncrementalAlterConfigsRequest(
        resources=[AlterConfigsResource(resource_type=TOPIC, resource_name=name) for name in "tu"]
    ),
    AlterPartitionRequest(broker_id=1, topics=[TopicData(name="t", partitions=[PartitionData(partition_index=0)])]),
    ElectLeadersRequest(),
    AlterPartitionReassignmentsRequest(),
    ListPartitionReassignmentsRequest(),
    UpdateFeaturesRequest(),
)
"""One request of each API. A request about topics names two."""
BY_NAME = {
    CreateTopicsRequest,
    DeleteTopicsRequest,
    AlterConfigsRequest,
    CreatePartitionsRequest,
    IncrementalAlterConfigsRequest,
}
"""The requests whose response has a result for each topic or resource."""


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZkRequestTooLargeError("/topics/t", 1_048_577, 1_048_576), ErrorCode.INVALID_REQUEST),
        (ZkConnectionError("not written in 5 attempts"), ErrorCode.UNKNOWN_SERVER_ERROR),
        (ZeroDivisionError("a bug"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ],
    ids=["too large", "not written", "a bug"],
)
async def test_a_request_that_fails_unexpectedly_is_answered_with_an_error(
    cluster: ControllerCluster, error: Exception, code: ErrorCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The message of an unexpected error goes only to the controller's log."""
    assert {request.API_KEY for request in REQUESTS} == HANDLERS.keys()

    def fail(*_: Any) -> NoReturn:
        raise error

    message = None if isinstance(error, ZeroDivisionError) else str(error)
    for request in REQUESTS:
        with monkeypatch.context() as patches:
            patches.setitem(HANDLERS, request.API_KEY, fail)
            answers = answers_of(await cluster.request(request))
        expected = [(code, message)] * (2 if type(request) in BY_NAME else 1)
        assert [(answer.error_code, getattr(answer, "error_message", message)) for answer in answers] == expected
    assert await is_served(cluster), "the controller is still active and handles requests"


def answers_of(response: Any) -> list[Any]:
    """The parts of a response that each have an error code."""
    for name in ("topics", "responses", "results"):
        found: list[Any] = getattr(response, name, [])
        if found:
            return found
    return [response]


# ---------------------------------------------------------------- long work


async def test_a_broker_failure_and_other_requests_do_not_wait_for_a_large_topic(cluster: ControllerCluster) -> None:
    partitions, order = 2_000, []

    async def creation() -> None:
        assert await create(cluster, "large", partitions) == DONE
        order.append("created")

    async def begun() -> int:
        return len(await cluster.store.children(paths.partitions("large"))) if await exists(cluster, "large") else 0

    async with trio.open_nursery() as nursery:
        cluster.brokers[1].answering = trio.Event()  # the creation ends only when the test lets it end
        nursery.start_soon(creation)
        await reached(begun)
        cluster.brokers[2].leave()
        await reached(lambda: elected(cluster))
        led = await begun()
        order.append("elected")
        assert await is_served(cluster)
        order.append("answered")
        await cluster.brokers[2].register()
        cluster.brokers[1].answering.set()
    assert led < partitions
    assert order == ["elected", "answered", "created"]


async def exists(cluster: ControllerCluster, topic: str) -> bool:
    return await cluster.store.exists(paths.partitions(topic)) is not None


async def elected(cluster: ControllerCluster) -> bool:
    """Whether broker 2 leads no partition of ``t`` any more."""
    return 2 not in [(await cluster.state("t", index)).leader for index in (0, 1)]


async def test_other_requests_are_answered_between_the_topics_of_a_large_create_topics(
    cluster: ControllerCluster,
) -> None:
    order: list[str] = []
    topics = [CreatableTopic(name=f"u{number}", num_partitions=1, replication_factor=1) for number in range(200)]

    async def creation() -> None:
        response = await cluster.request(CreateTopicsRequest(topics=[*topics, topics[7]], timeout_ms=60_000))
        errors = {topic.name: topic.error_code for topic in response.topics}
        assert errors == {topic.name: ErrorCode.NONE for topic in topics} | {"u7": ErrorCode.INVALID_REQUEST}
        assert [topic.name for topic in response.topics] == [topic.name for topic in topics]
        order.append("created")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(creation)
        await reached(lambda: exists_topic(cluster, "u0"))
        assert await is_served(cluster)
        order.append("answered")
        assert not await exists_topic(cluster, "u199")
    assert order == ["answered", "created"]


async def exists_topic(cluster: ControllerCluster, topic: str) -> bool:
    return await cluster.store.exists(paths.topic(topic)) is not None


async def test_a_large_topic_is_deleted_while_others_are_served(cluster: ControllerCluster) -> None:
    assert await create(cluster, "large", 1_000) == DONE
    order: list[str] = []

    async def deletion() -> None:
        response = await cluster.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name="large")], timeout_ms=60_000)
        )
        assert response.responses[0].error_code == ErrorCode.NONE
        order.append("deleted")

    async def left() -> int:
        return len(await cluster.store.children(paths.partitions("large")))

    async def begun() -> bool:
        return await left() < 1_000

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deletion)
        await reached(begun)
        assert await is_served(cluster)
        order.append("answered")
        assert await left() > 0
    assert order == ["answered", "deleted"]
    assert await cluster.store.children(paths.TOPICS) == ["t"]


class Writes:
    """Counts the partition states that each event writes, and submits another request during the first event."""

    def __init__(self, cluster: ControllerCluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of_events: list[int] = [0]
        self.before_other = -1
        """The number of states written before the other request is decided."""
        waited_s, session = EventQueue.waited_s, cluster.sessions[1000]
        multi = session.multi
        queues: list[EventQueue] = []
        others: list[AdminCall] = []

        async def write(ops: Sequence[ZkOp]) -> list[int]:
            states = [op for op in ops if isinstance(op, CreateOp | SetOp) and op.path.endswith("/state")]
            self.of_events[-1] += len(states)
            if states and not others:
                others.append(AdminCall(ApiKey.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsRequest(), 0))
                queues[-1].put(others[0])
            return await multi(ops)

        def begun(queue: EventQueue, event: Event) -> float:
            if event in others:
                self.before_other = sum(self.of_events)
            self.of_events.append(0)
            queues.append(queue)
            return waited_s(queue, event)

        monkeypatch.setattr(session, "multi", write)
        monkeypatch.setattr(EventQueue, "waited_s", begun)

    def check(self, states: int) -> None:
        """Check that all states are written, some after the other request. Each event writes at most one multi."""
        assert sum(self.of_events) == states
        assert max(self.of_events) <= MAX_OPERATIONS
        assert 0 < self.before_other < states


LARGE = 2 * MAX_OPERATIONS + 3


async def create_on(cluster: ControllerCluster, *brokers: int) -> None:
    """Create a large topic with these replicas."""
    given = [CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers)) for index in range(LARGE)]
    topic = CreatableTopic(name="large", num_partitions=-1, replication_factor=-1, assignments=given)
    response = await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=60_000))
    assert response.topics[0].error_code == ErrorCode.NONE


async def join(cluster: ControllerCluster, leader: int, isr: list[int]) -> None:
    """Request this ISR as the leader of all partitions of the large topic, in its second epoch."""
    joining = [
        PartitionData(partition_index=index, leader_epoch=1, new_isr=isr, current_isr_version=1)
        for index in range(LARGE)
    ]
    epoch = (await cluster.store.get(paths.broker_id(leader))).czxid
    topics = [TopicData(name="large", partitions=joining)]
    request = AlterPartitionRequest(broker_id=leader, broker_epoch=epoch, topics=topics)
    answered = (await cluster.request(request)).topics[0].partitions
    assert [(found.partition_index, found.error_code) for found in answered] == [(i, 0) for i in range(LARGE)]


async def led_by_second(cluster: ControllerCluster) -> None:
    """Create a topic whose partitions broker 2 leads, while their first replica, broker 1, is in sync."""
    await create_on(cluster, 1, 2)
    cluster.brokers[1].leave()
    await cluster.until(lambda: cluster.brokers[2].led()["large", LARGE - 1] == (2, 1))
    await cluster.brokers[1].register()
    await cluster.until(lambda: cluster.brokers[1].led()["large", LARGE - 1] == (2, 1))
    await join(cluster, 2, [2, 1])


async def test_other_requests_are_decided_while_all_partitions_elect_leaders(
    cluster: ControllerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await led_by_second(cluster)
    writes = Writes(cluster, monkeypatch)
    response = await cluster.request(ElectLeadersRequest(topic_partitions=None, timeout_ms=60_000))
    results = {topic.topic: topic.partition_result for topic in response.replica_election_results}
    assert results.keys() == {"large"}, "t already has its preferred leaders"
    assert [(found.partition_id, found.error_code) for found in results["large"]] == [(i, 0) for i in range(LARGE)]
    writes.check(LARGE)
    assert (await cluster.state("large", LARGE - 1)).leader == 1


async def test_other_requests_are_decided_while_preferred_leaders_are_elected_again(
    cluster: ControllerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await led_by_second(cluster)
    writes = Writes(cluster, monkeypatch)
    await cluster.until(lambda: cluster.brokers[2].led()["large", LARGE - 1][0] == 1, within_s=600)
    writes.check(LARGE)


async def test_other_requests_are_decided_while_a_large_topic_is_resized(
    cluster: ControllerCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await create(cluster, "large", LARGE, segment_bytes="1048576") == DONE
    writes = Writes(cluster, monkeypatch)
    assert await grow(cluster, 2 * LARGE, name="large") == DONE
    writes.check(2 * LARGE)  # the bumps, then the new partitions
    monkeypatch.undo()
    writes = Writes(cluster, monkeypatch)
    assert await grow(cluster, LARGE, name="large") == DONE
    await cluster.until(lambda: sum(writes.of_events) >= 3 * LARGE)
    writes.check(3 * LARGE)  # the bumps, then the partitions whose removal begins


# ---------------------------------------------------------------- a resize request


async def grow(
    cluster: ControllerCluster, count: int, *, name: str = "t", validate_only: bool = False
) -> tuple[int, str]:
    topics = [CreatePartitionsTopic(name=name, count=count, assignments=None)]
    request = CreatePartitionsRequest(topics=topics, timeout_ms=60_000, validate_only=validate_only)
    result = (await cluster.request(request)).results[0]
    return result.error_code, result.error_message or ""
