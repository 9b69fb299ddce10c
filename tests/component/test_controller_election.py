"""Two controllers, one active and one standby, and a deposed controller that has not noticed its replacement yet."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from anabranch.controller.controller_election import Office, ensure_paths, stand
from anabranch.controller.store import ControllerMovedError, GuardedStore
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.env import CreateOp, NoNodeError
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode, decode_controller_epoch
from sim.zk import FakeZk
from tests.support.controller.controller_cluster import ControllerCluster

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


def creation(name: str) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=[CreatableTopic(name=name, num_partitions=2, replication_factor=1)])


@pytest.fixture
async def cluster(nursery: trio.Nursery, autojump_clock: object) -> ControllerCluster:
    cluster = ControllerCluster(nursery)
    await cluster.start_controller(1000)
    await cluster.until(cluster.active)
    await cluster.start_controller(1001)
    await cluster.start_broker(1)
    await cluster.until(lambda: cluster.brokers[1].sent(UpdateMetadataRequest))
    return cluster


async def epoch(cluster: ControllerCluster) -> int:
    return decode_controller_epoch(paths.CONTROLLER_EPOCH, (await cluster.store.get(paths.CONTROLLER_EPOCH)).data)


async def test_a_standby_controller_answers_not_controller(cluster: ControllerCluster) -> None:
    response = await cluster.request(creation("t"), controller_id=1001)
    assert response.topics[0].error_code == ErrorCode.NOT_CONTROLLER
    assert await cluster.store.children(paths.TOPICS) == []


async def test_a_response_that_its_version_cannot_carry_closes_the_connection(cluster: ControllerCluster) -> None:
    """Version 0 of ElectLeaders, which no broker sends to a controller, has no error for the whole request."""
    stream = await cluster.fabric.node("client").connect("controller1001", 9090)
    with capture_logs() as logged, trio.fail_after(60):
        await stream.send(encode_request(RequestHeader(ApiKey.ELECT_LEADERS, 0, 1, "client"), ElectLeadersRequest()))
        assert await stream.receive_into(memoryview(bytearray(1_024))) == 0
    await trio.testing.wait_all_tasks_blocked()
    stream.close()
    (found,) = [line for line in logged if line["event"] in ("connection.response_not_sent", "background.failed")]
    assert (found["event"], found["log_level"]) == ("connection.response_not_sent", "warning")
    assert found["reason"] == "ElectLeadersResponse v0: error_code is set, but this version has no such field"


async def test_the_standby_takes_over_and_sends_everything_under_a_higher_epoch(cluster: ControllerCluster) -> None:
    assert (await cluster.request(creation("t"))).topics[0].error_code == ErrorCode.NONE
    assert await epoch(cluster) == 1
    cluster.brokers[1].requests.clear()
    cluster.kill_controller(1000)
    await cluster.until(lambda: cluster.brokers[1].sent(LeaderAndIsrRequest))
    active = await cluster.active()
    assert active is not None and active.controller_id == 1001
    sent = cluster.brokers[1].sent(LeaderAndIsrRequest)[0]
    assert (sent.controller_id, sent.controller_epoch) == (1001, 2)
    assert cluster.brokers[1].led() == {("t", 0): (1, 0), ("t", 1): (1, 0)}
    await cluster.until(lambda: cluster.brokers[1].metadata() == {("t", 0): 1, ("t", 1): 1})
    assert (await cluster.request(creation("u"))).topics[0].error_code == ErrorCode.NONE


async def test_a_controller_whose_session_expired_resigns_and_can_be_elected_again(cluster: ControllerCluster) -> None:
    cluster.sessions[1000].expire()
    await cluster.until(lambda: any(r.controller_epoch == 2 for r in cluster.brokers[1].sent(UpdateMetadataRequest)))
    active = await cluster.active()
    assert active is not None
    loser = 1000 if active.controller_id == 1001 else 1001
    response = await cluster.request(creation("t"), controller_id=loser)
    assert response.topics[0].error_code == ErrorCode.NOT_CONTROLLER
    cluster.sessions[active.controller_id].expire()

    async def epoch_is_3() -> bool:
        return await epoch(cluster) == 3

    await cluster.until(epoch_is_3)
    await cluster.until(cluster.active)
    assert (await cluster.request(creation("t"))).topics[0].error_code == ErrorCode.NONE


async def test_a_broker_that_registers_during_a_lost_connection_is_seen_afterwards(cluster: ControllerCluster) -> None:
    cluster.sessions[1000].disconnect()
    await cluster.start_broker(2)
    cluster.sessions[1000].reconnect()
    await cluster.until(lambda: cluster.brokers[2].sent(UpdateMetadataRequest))
    assert await epoch(cluster) == 1


@pytest.mark.parametrize("lose", ["lose_next_request", "lose_next_answer"])
async def test_a_write_whose_outcome_is_unknown_is_settled(cluster: ControllerCluster, lose: str) -> None:
    session = cluster.sessions[1000]
    getattr(session, lose)()

    async def reconnect() -> None:
        await cluster.until(lambda: session.state.value == "suspended")
        session.reconnect()

    cluster.nursery.start_soon(reconnect)
    assert (await cluster.request(creation("t"))).topics[0].error_code == ErrorCode.NONE
    assert len((await cluster.topic("t")).partitions) == 2


async def test_kafka_6082_a_deposed_controller_cannot_write() -> None:
    zk = FakeZk()
    old, new = zk.session(), zk.session()
    await ensure_paths(old)
    first = await stand(old, ControllerZnode(1000, "a", 1))
    assert isinstance(first, Office)
    assert await stand(new, ControllerZnode(1001, "b", 1)) is None
    old.expire()
    second = await stand(new, ControllerZnode(1001, "b", 1))
    assert second is not None and second.controller_epoch == first.controller_epoch + 1
    with trio.fail_after(10):
        while old.state.value != "connected":
            await trio.sleep(0.01)  # polls: virtual time
    with pytest.raises(ControllerMovedError):
        await GuardedStore(old, first.epoch_version).write([CreateOp(paths.topic("t"), b"{}")])
    with pytest.raises(NoNodeError):
        await new.get(paths.topic("t"))
    await GuardedStore(new, second.epoch_version).write([CreateOp(paths.topic("t"), b"{}")])


async def test_kafka_13407_a_controller_znode_of_an_earlier_session_does_not_make_it_active() -> None:
    zk = FakeZk()
    before, after = zk.session(), zk.session()
    await ensure_paths(before)
    assert await stand(before, ControllerZnode(1000, "a", 1)) is not None
    assert await stand(after, ControllerZnode(1000, "a", 1)) is None


async def test_an_election_whose_answer_was_lost_is_read_back(nursery: trio.Nursery) -> None:
    session = FakeZk().session()
    await ensure_paths(session)
    await session.create(paths.CONTROLLER_EPOCH, b"4")
    session.lose_next_answer()
    session.on_state(lambda state: nursery.start_soon(_reconnect, session) if state.value == "suspended" else None)
    assert await stand(session, ControllerZnode(1000, "a", 1)) == Office(5, 1)


async def _reconnect(session: object) -> None:
    session.reconnect()  # type: ignore[attr-defined]
