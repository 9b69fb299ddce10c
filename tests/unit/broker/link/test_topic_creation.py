"""Topics that a broker creates by itself: one request at a time. A failure is logged; another request may follow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.deferred import Deferred
from anabranch.broker.handlers.metadata import handle
from anabranch.broker.link.topic_creation import MAX_WAIT_S, TopicCreator
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.net import large_requests
from anabranch.broker.net.joined_answer import Sink
from anabranch.broker.request.context import RequestContext
from anabranch.broker.stock.client_session import ClientSession
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_topics import CreatableTopicResult, CreateTopicsRequest, CreateTopicsResponse
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.runtime.background import Background
from anabranch.zk_schemas.broker_keys import BrokerKeys
from sim.clock import SimClock

pytestmark = pytest.mark.trio


class Controller:
    """Answers with ``codes`` in order, once ``go`` is set. An error in ``codes`` is raised instead."""

    def __init__(self, *codes: ErrorCode | KafkaError) -> None:
        self.codes = list(codes)
        self.asked: list[CreateTopicsRequest] = []
        self.go = trio.Event()

    async def request(self, request: CreateTopicsRequest, *_: Any) -> CreateTopicsResponse:
        self.asked.append(request)
        await self.go.wait()
        code = self.codes.pop(0)
        if isinstance(code, KafkaError):
            raise code
        result = CreatableTopicResult(name=request.topics[0].name, error_code=code, error_message=code.message)
        return CreateTopicsResponse(topics=[result])


class NeverUpdated(MetadataCache):
    """No metadata arrives."""

    async def wait_for(self, *_: object) -> bool:
        return False


def creator(controller: Controller, nursery: trio.Nursery) -> TopicCreator:
    values = BrokerKeys(broker_id=1, zookeeper_connect="z", request_timeout_ms=1000)
    fake: Any = controller
    return TopicCreator(values, fake, NeverUpdated(), Background(), nursery)


async def test_the_offsets_topic_is_requested_again_after_a_failure_for_too_few_brokers(nursery: Any) -> None:
    """Each FindCoordinator gets COORDINATOR_NOT_AVAILABLE and tries to create the topic again, as in Kafka."""
    controller = Controller(ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.NONE)
    found = creator(controller, nursery)
    assert found.start([OFFSETS_TOPIC])
    assert not found.start([OFFSETS_TOPIC])
    controller.go.set()
    await trio.testing.wait_all_tasks_blocked()
    assert found.start([OFFSETS_TOPIC])
    await trio.testing.wait_all_tasks_blocked()
    assert len(controller.asked) == 2
    (topic,) = controller.asked[0].topics
    assert (topic.name, topic.num_partitions, topic.replication_factor) == (OFFSETS_TOPIC, 50, 3)
    assert {config.name: config.value for config in topic.configs}["cleanup.policy"] == "compact"


@pytest.mark.parametrize(
    ("refusal", "reason"),
    [
        (KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answered"), "no controller answered"),
        (ErrorCode.INVALID_REPLICATION_FACTOR, ErrorCode.INVALID_REPLICATION_FACTOR.message),
    ],
)
async def test_the_reason_why_a_topic_was_not_created_is_logged(
    refusal: ErrorCode | KafkaError, reason: str, nursery: Any, caplog: pytest.LogCaptureFixture
) -> None:
    controller = Controller(refusal)
    controller.go.set()
    assert creator(controller, nursery).start(["t"])
    await trio.testing.wait_all_tasks_blocked()
    assert any("event=topic.not_created topic=t" in line and reason in line for line in caplog.messages)


async def test_a_metadata_request_waits_once_for_all_topics_that_it_creates(
    nursery: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """The request is served in slices, one after the other. The client's next requests wait for the response."""
    silent = Controller()
    clock = SimClock()
    metadata = SimpleNamespace(
        brokers={1},
        topics={},
        endpoints=lambda listener: [],
        controller_id=lambda: 1,
        partition_count=lambda name: None,
    )
    node: Any = SimpleNamespace(
        metadata=metadata,
        config=SimpleNamespace(values=SimpleNamespace(auto_create_topics_enable=True)),
        env=SimpleNamespace(clock=clock),
        link=SimpleNamespace(cluster_id="c", topic_creator=creator(silent, nursery)),
        later=lambda work, _failed, may_stop: later(nursery, work),
    )
    names = [f"orders-{number}" for number in range(1_000)]
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    ctx: Any = RequestContext(node, "PLAINTEXT", "host", "client", request.API_KEY, 9, 1, ClientSession(1))
    ctx.begun = clock.monotonic()
    sink = Sink(1 << 20, lambda delta: None, lambda part: None)
    answer: Any = await large_requests.serve(handle, ctx, request, sink, lambda: False, lambda scope: None)
    assert (await answer.value()).error is None
    assert len(silent.asked) == len(names)
    assert clock.monotonic() - ctx.begun <= MAX_WAIT_S


def later(nursery: Any, work: Any) -> Deferred[Any]:
    answer: Deferred[Any] = Deferred()

    async def run() -> None:
        answer.fill(await work())

    nursery.start_soon(run)
    return answer
