"""A LeaderAndIsr that comes while the broker cannot reach ZooKeeper is applied, not refused.

If brokers refused it, a restart of ZooKeeper during a controlled shutdown would be enough to lose the request. The
controller would not send it again, and would fence all later ISR changes of the leaders.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrPartitionState
from sim.zk import FakeSession
from tests.support.broker.broker_harness import BROKER_ID, one_broker

pytestmark = pytest.mark.trio

ANSWERED_LIMIT_S = 10.0
UNANSWERED_S = 0.3


def leads(leader_epoch: int) -> LeaderAndIsrPartitionState:
    """The state of a partition in the topic's second layout, whose configuration the broker has not read yet."""
    return LeaderAndIsrPartitionState(
        controller_epoch=5,
        leader=BROKER_ID,
        leader_epoch=leader_epoch,
        isr=[BROKER_ID],
        replicas=[BROKER_ID],
        initial_partition_count=1,
        undeleted_partition_count=2,
        layout_version=1,
    )


async def test_a_leader_and_isr_request_is_answered_once_zookeeper_is_back(tmp_path: Path) -> None:
    async with one_broker(tmp_path) as broker:
        topic_id = await broker.create_topic("t")
        session = broker.env.zk
        assert isinstance(session, FakeSession)
        session.disconnect(server_down=True)
        answers = []

        async def order() -> None:
            answers.append(await broker.leader_and_isr("t", topic_id, [leads(leader_epoch=1)]))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(order)
            await trio.sleep(UNANSWERED_S)  # pause: long enough for an answer that must not come
            assert answers == []
            session.reconnect()
            nursery.cancel_scope.deadline = trio.current_time() + ANSWERED_LIMIT_S
        assert [error.error_code for topic in answers[0].topics for error in topic.partition_errors] == [0]
        assert answers[0].error_code == 0
