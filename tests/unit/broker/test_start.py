"""Before it starts, a broker reads from ZooKeeper over an unreliable connection, and waits for a limited time."""

from __future__ import annotations

import random
from functools import partial

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from anabranch.broker.config import BrokerConfig
from anabranch.broker.process import read_cluster, run
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env, ZkConnectionError
from sim.clock import SimClock
from sim.network import SimFabric
from sim.storage import SimDisk
from sim.zk import FakeSession, FakeZk

CONFIG = BrokerConfig.from_given(
    {"broker.id": "1", "zookeeper.connect": "simulated", "listeners": "PLAINTEXT://b:1", "log.dirs": "/logs"}
)
LIMIT_S = CONFIG.values.zookeeper_session_timeout_ms / 1000


def connected() -> tuple[Env, FakeSession]:
    clock, rng, session = SimClock(), random.Random(1), FakeZk().session()
    return Env(clock, SimFabric(rng, delay_s=lambda: 0.0).node("b"), rng, zk=session), session


@pytest.mark.trio
@pytest.mark.parametrize("lose", [FakeSession.lose_next_request, FakeSession.lose_next_answer, FakeSession.disconnect])
async def test_a_start_continues_when_the_connection_is_back(lose: object, autojump_clock: MockClock) -> None:
    env, session = connected()
    first, _ = await read_cluster(CONFIG, env, session)
    assert callable(lose)
    lose(session)
    async with trio.open_nursery() as nursery:

        async def mend() -> None:
            await trio.sleep(LIMIT_S / 2)  # virtual time: half of the allowed time
            session.reconnect()

        nursery.start_soon(mend)
        assert (await read_cluster(CONFIG, env, session))[0] == first


@pytest.mark.trio
async def test_a_start_fails_when_the_connection_is_not_back_in_time(autojump_clock: MockClock) -> None:
    env, session = connected()
    session.disconnect()
    begun = trio.current_time()
    with pytest.raises(ZkConnectionError):
        await read_cluster(CONFIG, env, session)
    assert LIMIT_S <= trio.current_time() - begun <= LIMIT_S + 2


@pytest.mark.trio
async def test_no_client_reaches_a_broker_before_it_is_registered(autojump_clock: MockClock) -> None:
    """No client reaches a broker before it is registered.

    Before its registration the broker knows no topic. A client that treats the broker as a leader would get an
    unknown-topic error.
    """
    zk, rng = FakeZk(), random.Random(1)
    fabric = SimFabric(rng, delay_s=lambda: 0.0)
    old, client, ready = zk.session(), fabric.node("client"), trio.Event()
    await old.create("/brokers/ids/1", b"{}", ephemeral=True, make_parents=True)
    env = Env(SimClock(), fabric.node("b"), rng, storage=SimDisk(rng).mount(), zk=zk.session())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(run, CONFIG, env, on_ready=lambda _: ready.set()))
        await wait_all_tasks_blocked()
        with pytest.raises(ConnectionRefusedError):
            await client.connect("b", 1)
        old.expire()
        await ready.wait()
        asked = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)])
        async with Channel.open(client, "b", 1, "client") as channel:
            answer = await channel.request(ListOffsetsRequest(replica_id=-1, topics=[asked]), version=5)
        assert answer.topics[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER, (
            "the broker has received no metadata yet"
        )
        nursery.cancel_scope.cancel()
