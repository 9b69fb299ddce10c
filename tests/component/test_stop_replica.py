"""A broker's handling of StopReplica (KIP-570), over a real socket; the test sends a controller's requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from anabranch.broker.log.slices import TimeSlice
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaPartitionV0,
    StopReplicaRequest,
    StopReplicaTopicState,
    StopReplicaTopicV1,
)
from anabranch.protocol.types import TopicPartition
from sim.zk import FakeZk
from tests.support.broker.broker_harness import OneBroker, one_broker
from tests.support.resize.resized_broker import FIRST, TOPIC_ID, Broker, broker_of, produce_request

pytestmark = pytest.mark.trio
FENCED = ErrorCode.FENCED_LEADER_EPOCH
NONE = ErrorCode.NONE
INCREMENTAL, FULL = 1, 2
"""The types of a LeaderAndIsr request."""


async def stop(broker: OneBroker, asked: Sequence[tuple[int, int, bool]]) -> list[int]:
    """Send each ``(partition, leader epoch, delete)`` of topic ``t`` in one request. Returns their errors."""
    states = [
        StopReplicaPartitionState(partition_index=index, leader_epoch=epoch, delete_partition=delete)
        for index, epoch, delete in asked
    ]
    return await stop_states(broker, states)


async def stop_states(broker: OneBroker, states: list[StopReplicaPartitionState]) -> list[int]:
    """Send these states of topic ``t``. Returns the error of each partition."""
    response = await broker.request(
        StopReplicaRequest(
            controller_id=1000,
            controller_epoch=broker.controller_epoch,
            topic_states=[StopReplicaTopicState(topic_name="t", partition_states=states)],
        )
    )
    assert response.error_code == NONE
    assert [error.partition_index for error in response.partition_errors] == [s.partition_index for s in states]
    return [error.error_code for error in response.partition_errors]


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize(
    ("leader_epoch", "expected"),
    [(1, FENCED), (2, NONE), (3, NONE), (-1, NONE), (-2, NONE), (-3, FENCED)],
    ids=["older", "equal (KAFKA-13972)", "newer", "absent", "topic deletion", "no sentinel"],
)
async def test_stop_replica_obeys_the_leader_epoch(
    tmp_path: Path, leader_epoch: int, expected: int, delete: bool
) -> None:
    """KIP-570: an epoch below the known one gets FENCED_LEADER_EPOCH. -2 overrides any epoch, -1 means no epoch."""
    zk = FakeZk()
    async with one_broker(tmp_path, zk=zk) as broker:
        await broker.create_topic("t", leader_epoch=2)
        assert await stop(broker, [(0, leader_epoch, delete)]) == [expected]
        assert (tmp_path / "t-0").exists() == (expected == FENCED or not delete)
    async with one_broker(tmp_path, zk=zk):
        assert (tmp_path / "t-0").exists() == (expected == FENCED or not delete), (
            "a restart does not change whether the log exists"
        )


async def test_one_stop_replica_stops_deletes_and_refuses_each_partition_separately(
    broker: Broker, tmp_path: Path
) -> None:
    """KIP-570: from version 3 on one request both stops and deletes, with an error for each partition."""
    await broker.has(FIRST, 0, 1, 2, 3, epoch=2)
    asked = [(0, 2, False), (1, 2, True), (2, 1, True), (3, 1, False), (9, 0, True)]
    assert await stop(broker.harness, asked) == [NONE, NONE, FENCED, FENCED, NONE]
    assert [(tmp_path / f"t-{index}").exists() for index in range(4)] == [True, False, True, True]
    codes = [(await broker.produce(index, FIRST)).error_code for index in range(4)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER] * 2 + [NONE] * 2


async def test_a_partition_whose_log_cannot_be_deleted_has_an_error_of_its_own(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-570: an error for each partition."""
    rename = broker.node.env.storage.rename

    def refuse(path: str, target: str) -> None:
        if path.endswith("t-1"):
            raise OSError(5, "Input/output error")
        rename(path, target)

    monkeypatch.setattr(broker.node.env.storage, "rename", refuse, raising=False)
    asked = [(0, 0, True), (1, 0, True), (2, 0, True)]
    assert await stop(broker.harness, asked) == [NONE, ErrorCode.KAFKA_STORAGE_ERROR, NONE]


async def test_after_a_late_deletion_of_an_older_epoch_no_older_request_revives_the_replica(broker: Broker) -> None:
    """KIP-570: requests may be reordered. A late deletion must not count as the last deletion."""
    await broker.has(FIRST, 0, epoch=6)
    assert await broker.stop(0, leader_epoch=7, incarnation=100) == NONE
    assert await broker.stop(0, leader_epoch=3, incarnation=100) == NONE
    assert await broker.lead(broker.state(0, 6, FIRST)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert await broker.lead(broker.state(0, 8, FIRST)) == {NONE}


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize(("named", "last"), [(7, 7), (-1, 6), (-2, 2**31 - 1)])
async def test_no_request_from_before_a_stop_replica_revives_the_replica(
    broker: Broker, named: int, last: int, delete: bool
) -> None:
    """KIP-570: requests may be reordered. A LeaderAndIsr with a leader epoch up to ``last`` is older."""
    await broker.has(FIRST, 0, epoch=6)
    assert await broker.stop(0, leader_epoch=named, incarnation=100, delete=delete) == NONE
    for epoch in (6, last):
        assert await broker.lead(broker.state(0, epoch, FIRST)) == {ErrorCode.STALE_CONTROLLER_EPOCH}
    assert broker.node.replicas.hosted(TopicPartition("t", 0)) is None
    if last < 2**31 - 1:
        await broker.has(FIRST, 0, epoch=last + 1)
    assert await broker.lead(broker.state(0, 9, FIRST, incarnation=200)) == {NONE}, "the topic is created again"


def older(version: int, epoch: int, delete: bool) -> StopReplicaRequest:
    """A StopReplica of an older version for the partitions 0 and 2 of topic ``t``."""
    request = StopReplicaRequest(controller_id=1000, controller_epoch=epoch, delete_partitions=delete)
    if version == 0:
        request.ungrouped_partitions = [StopReplicaPartitionV0(topic_name="t", partition_index=i) for i in (0, 2)]
    else:
        request.topics = [StopReplicaTopicV1(name="t", partition_indexes=[0, 2])]
    return request


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("version", [0, 1, 2])
async def test_versions_without_leader_epochs_override_any_epoch(
    broker: Broker, tmp_path: Path, version: int, delete: bool
) -> None:
    """KIP-570: an older version counts as leader epoch -1, and its one ``delete`` flag applies to every partition."""
    await broker.has(FIRST, 0, 1, 2, 3, epoch=7)
    request = older(version, broker.harness.controller_epoch, delete)
    response = await broker.harness.request(request, version)
    assert [(e.topic_name, e.partition_index, e.error_code) for e in response.partition_errors] == [
        ("t", 0, NONE),
        ("t", 2, NONE),
    ]
    assert [(tmp_path / f"t-{index}").exists() for index in range(4)] == [not delete, True, not delete, True]
    codes = [(await broker.produce(index, FIRST)).error_code for index in range(4)]
    assert codes == [ErrorCode.NOT_LEADER_OR_FOLLOWER, NONE, ErrorCode.NOT_LEADER_OR_FOLLOWER, NONE]


@pytest.mark.parametrize(
    ("controller", "registration", "expected"),
    [
        (-1, 0, ErrorCode.STALE_CONTROLLER_EPOCH),
        (0, -1, ErrorCode.STALE_BROKER_EPOCH),
        (1, 0, ErrorCode.STALE_CONTROLLER_EPOCH),
        (0, 1, ErrorCode.STALE_BROKER_EPOCH),
        (0, 0, NONE),
    ],
    ids=["earlier controller", "earlier registration", "made-up controller", "made-up registration", "present ones"],
)
async def test_a_request_of_an_earlier_controller_or_registration_stops_nothing(
    broker: Broker, tmp_path: Path, controller: int, registration: int, expected: int
) -> None:
    """KIP-570: a late request is refused as a whole, even one that deletes a topic."""
    state = StopReplicaPartitionState(partition_index=0, leader_epoch=-2, delete_partition=True)
    response = await broker.harness.request(
        StopReplicaRequest(
            controller_id=1000,
            controller_epoch=broker.harness.controller_epoch + controller,
            broker_epoch=broker.node.link.broker_epoch + registration,
            topic_states=[StopReplicaTopicState(topic_name="t", partition_states=[state])],
        )
    )
    assert (response.error_code, len(response.partition_errors)) == (expected, int(expected == NONE))
    assert (tmp_path / "t-0").exists() == (expected != NONE)


async def test_a_log_that_cannot_be_read_is_deleted_unless_a_later_incarnation_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KIP-570: NONE means that the broker has no log of the named incarnation. Later incarnations are not deleted."""
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk) as broker:
        await broker.produce(0, FIRST)
    (segment,) = (tmp_path / "t-0").glob("*.log")
    segment.unlink()
    segment.mkdir()
    async with one_broker(tmp_path, zk=zk) as harness:
        for incarnation, stays in ((99, True), (100, False)):
            state = StopReplicaPartitionState(leader_epoch=-2, delete_partition=True, incarnation=incarnation)
            assert (await stop_states(harness, [state])) == [NONE]
            assert (tmp_path / "t-0").exists() == stays


@pytest.fixture
def overtaken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Broker]:
    """Return an empty list. A broker in the list gets a newer controller epoch once it has stopped two partitions.

    Other tasks of the broker have slices, too, so the calls of ``due`` do not tell how many it has stopped.
    """
    brokers: list[Broker] = []
    epochs: list[int] = []

    def due(_slice: TimeSlice) -> bool:
        if brokers and not epochs and sum((tmp_path / f"t-{index}").exists() for index in range(4)) == 2:
            (broker,) = brokers
            epochs.append(broker.harness.controller_epoch + 1)
            broker.node.replicas.controller_elected(epochs[0])
        return True

    monkeypatch.setattr(TimeSlice, "due", due)
    return brokers


async def test_a_large_request_lets_other_tasks_run_and_ends_at_a_newer_controller(
    broker: Broker, tmp_path: Path, overtaken: list[Broker]
) -> None:
    """KIP-570: the rest of a request has no effect once a newer controller is known."""
    overtaken.append(broker)
    codes = await stop(broker.harness, [(index, 0, True) for index in range(4)])
    assert codes == [NONE, NONE, ErrorCode.STALE_CONTROLLER_EPOCH, ErrorCode.STALE_CONTROLLER_EPOCH]
    assert [(tmp_path / f"t-{index}").exists() for index in range(4)] == [False, False, True, True]


async def test_a_broker_that_stops_deletes_nothing_more(broker: Broker, tmp_path: Path) -> None:
    """The broker's logs are being closed. The controller sends the request again when the broker is back."""
    broker.node.replicas.close()
    assert await stop(broker.harness, [(0, -2, True)]) == [ErrorCode.REPLICA_NOT_AVAILABLE]
    assert (tmp_path / "t-0").exists()


# ---------------------------------------------------------------- strays


async def name_all(broker: OneBroker, **changes: Any) -> None:
    """Send a controller's first LeaderAndIsr, which names no replica."""
    fields = {"controller_id": 1000, "controller_epoch": broker.controller_epoch, "type": FULL, **changes}
    response = await broker.request(LeaderAndIsrRequest(**fields))
    assert response.error_code == NONE


async def test_a_replica_whose_stop_replica_was_lost_leads_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """KIP-570: a stray replica is not led (KAFKA-10548, 14616). Its log stays: the state's znode may be malformed."""
    async with broker_of(tmp_path, monkeypatch) as broker:
        broker.harness.controller_epoch += 1
        await name_all(broker.harness)
        assert broker.node.replicas.all() == []
        assert (await broker.produce(0, FIRST)).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert "replica.stray" in capsys.readouterr().out and (tmp_path / "t-0").is_dir()


@pytest.mark.parametrize("delete", [True, False])
async def test_the_log_of_a_stray_is_deleted_when_its_stop_replica_comes(
    broker: Broker, tmp_path: Path, delete: bool
) -> None:
    """KIP-570: a log without a role has no known leader epoch."""
    broker.harness.controller_epoch += 1
    await name_all(broker.harness)
    assert await stop(broker.harness, [(0, 0, delete)]) == [NONE]
    assert (tmp_path / "t-0").exists() != delete


async def test_a_log_from_before_a_restart_has_no_role(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-570: a replica moved while its broker was stopped. The broker finds the log on disk and does not lead it."""
    zk = FakeZk()
    async with broker_of(tmp_path, monkeypatch, zk):
        pass
    async with one_broker(tmp_path, zk=zk) as harness:
        await name_all(harness)
        response = await harness.request(produce_request(0, FIRST))
        assert response.responses[0].partition_responses[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
        assert (tmp_path / "t-0").exists()


async def test_a_repeated_full_request_does_not_make_a_newer_replica_a_stray(broker: Broker) -> None:
    """KIP-570: a request that is late or repeated takes nothing from a newer replica."""
    broker.harness.controller_epoch += 1
    await name_all(broker.harness)
    await broker.has(FIRST, 0, epoch=1)
    await name_all(broker.harness)
    assert [str(partition.key) for partition in broker.node.replicas.all()] == ["t-0"]
    assert (await broker.produce(0, FIRST)).error_code == NONE


async def test_a_replica_is_a_stray_if_its_controller_dropped_the_stop_replica_at_a_new_read(broker: Broker) -> None:
    """KIP-570: earlier requests of the same controller cannot revive the stray replica."""
    await name_all(broker.harness, image_number=1)
    assert broker.node.replicas.all() == []
    for partition, kind in ((0, INCREMENTAL), (1, FULL)):
        late = await broker.harness.leader_and_isr("t", TOPIC_ID, [broker.state(partition, 0, FIRST)], type=kind)
        assert (late.error_code, late.topics) == (ErrorCode.STALE_CONTROLLER_EPOCH, [])
    assert broker.node.replicas.all() == []
    broker.harness.image_number = 1
    await broker.has(FIRST, 0, epoch=1)
    await name_all(broker.harness, image_number=1)
    assert [str(partition.key) for partition in broker.node.replicas.all()] == ["t-0"]


async def test_a_replica_that_is_not_sent_to_the_next_registration_is_a_stray(broker: Broker) -> None:
    """KIP-570: a StopReplica is lost with the broker registration that it was sent to."""
    registration = broker.node.link.registration
    assert registration is not None
    present = registration.epoch
    registration.epoch = present - 1  # the broker does not know its new registration yet
    await name_all(broker.harness, broker_epoch=present)
    assert broker.node.replicas.all() == []
