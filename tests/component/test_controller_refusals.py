"""A request that a broker refuses is sent again: only NONE counts as an acknowledgement."""

from __future__ import annotations

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


@pytest.mark.parametrize(
    ("code", "again"),
    [
        (ErrorCode.UNKNOWN_SERVER_ERROR, True),
        (ErrorCode.REPLICA_NOT_AVAILABLE, True),
        (ErrorCode.STALE_CONTROLLER_EPOCH, False),
    ],
)
async def test_a_refused_request_is_sent_again_unless_the_controller_epoch_is_stale(
    nursery: trio.Nursery, code: ErrorCode, again: bool
) -> None:
    cluster = ControllerCluster(nursery)
    await cluster.start_controller()
    broker = await cluster.start_broker(1)
    broker.errors["t", 0] = code
    await cluster.until(lambda: broker.requests)
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=100))

    def orders() -> int:
        return sum(bool(request.topic_states) for request in broker.sent(LeaderAndIsrRequest))

    await cluster.until(lambda: orders() == 1)
    await trio.sleep(30)  # virtual time: many pauses
    assert (orders() > 1) is again
    broker.errors.clear()
    await trio.sleep(5)  # virtual time: the next request is accepted
    settled = orders()
    await trio.sleep(30)  # virtual time: many pauses
    assert orders() == settled
