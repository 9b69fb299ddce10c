"""A broker requests ISR changes in batches, one request at a time. A request is repeated until accepted or refused."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.broker.replication.isr_changes import IsrChanges
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
)
from tests.support.broker.replica_cluster import KEY, LAG_S, ReplicaCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


class Controller:
    """Answers from a script; the last entry repeats without end."""

    def __init__(self, *script: Any) -> None:
        self.script = list(script)
        self.asked: list[AlterPartitionRequest] = []

    async def __call__(self, request: AlterPartitionRequest) -> AlterPartitionResponse:
        self.asked.append(request)
        step = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(step, KafkaError):
            raise step
        if isinstance(step, AlterPartitionResponse):
            return step
        partition = request.topics[0].partitions[0]
        answer = AlterPartitionResponsePartitionData(partition_index=KEY.partition, error_code=step)
        if step is ErrorCode.NONE:
            answer.leader_id, answer.leader_epoch = 1, partition.leader_epoch
            answer.isr, answer.current_isr_version = list(partition.new_isr), partition.current_isr_version + 1
        return AlterPartitionResponse(topics=[AlterPartitionResponseTopicData(name=KEY.topic, partitions=[answer])])


class Broker:
    """Broker 1, which leads with all three replicas in the ISR, and finds that replica 3 lags."""

    def __init__(self, controller: Controller, nursery: trio.Nursery) -> None:
        self.cluster = ReplicaCluster()
        self.cluster.elect(1, 0, [1, 2, 3])
        self.cluster.append(1, b"a")
        self.cluster.fetch(2, 1, times=2)
        self.cluster.clock.seconds += LAG_S + 1
        self.cluster.fetch(2, 1)
        self.partition = self.cluster[1].partition
        self.partition.review_isr()
        self.changes = IsrChanges(1, lambda: 17, controller)
        self.changes.propose(self.partition)
        nursery.start_soon(self.changes.run)


async def until(condition: Any) -> None:
    with trio.fail_after(60):
        while not condition():
            await trio.sleep(0.01)  # polls: virtual time


async def test_an_isr_change_is_requested_and_applied(nursery: trio.Nursery) -> None:
    controller = Controller(ErrorCode.NONE)
    broker = Broker(controller, nursery)
    await until(lambda: broker.partition.pending_isr is None)
    request = controller.asked[0]
    assert (request.broker_id, request.broker_epoch) == (1, 17)
    asked = request.topics[0].partitions[0]
    assert (asked.leader_epoch, list(asked.new_isr), asked.current_isr_version) == (0, [1, 2], 1)
    assert broker.partition.isr == (1, 2) and broker.partition.partition_epoch == 2
    assert broker.partition.log.high_watermark == 1
    assert len(controller.asked) == 1


@pytest.mark.parametrize(
    "failure",
    [
        KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller"),
        AlterPartitionResponse(error_code=ErrorCode.STALE_BROKER_EPOCH),
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.FENCED_LEADER_EPOCH,
    ],
    ids=lambda failure: (
        (failure if isinstance(failure, ErrorCode) else getattr(failure, "code", ErrorCode.STALE_BROKER_EPOCH)).name
    ),
)
async def test_an_unsettled_request_is_repeated_unchanged(nursery: trio.Nursery, failure: Any) -> None:
    controller = Controller(failure, failure, ErrorCode.NONE)
    broker = Broker(controller, nursery)
    pending = broker.partition.pending_isr
    await until(lambda: len(controller.asked) == 2)
    assert broker.partition.pending_isr is pending, "the watermark still waits for the replicas of the requested ISR"
    await until(lambda: broker.partition.pending_isr is None)
    assert len({repr(request) for request in controller.asked}) == 1


async def test_after_a_refused_isr_change_the_leader_proposes_it_again(nursery: trio.Nursery) -> None:
    controller = Controller(ErrorCode.INELIGIBLE_REPLICA, ErrorCode.NONE)
    broker = Broker(controller, nursery)
    await until(lambda: len(controller.asked) == 1 and broker.partition.pending_isr is None)
    assert broker.partition.isr == (1, 2, 3)
    await until(lambda: broker.partition.isr == (1, 2))


async def test_a_new_role_ends_the_retries_of_an_isr_change(nursery: trio.Nursery) -> None:
    controller = Controller(KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller"))
    broker = Broker(controller, nursery)
    await until(lambda: len(controller.asked) == 2)
    broker.cluster.elect(2, 1, [1, 2, 3])
    asked = len(controller.asked)
    await trio.sleep(30)  # virtual time: several retries
    assert len(controller.asked) <= asked + 1


async def test_a_change_is_not_repeated_once_the_leaders_disk_is_broken(nursery: trio.Nursery) -> None:
    controller = Controller(ErrorCode.FENCED_LEADER_EPOCH)
    broker = Broker(controller, nursery)
    await until(lambda: len(controller.asked) == 3)
    broker.partition.fail()
    await trio.sleep(60)  # virtual time: many retries
    assert len(controller.asked) == 3
