"""What a broker reads from ZooKeeper before it starts, over a connection that comes and goes."""

from __future__ import annotations

import random

import pytest
import trio
from trio.testing import MockClock

from broker.config import BrokerConfig
from broker.process import read_cluster
from runtime.env import Env, ZkConnectionError
from runtime.sim_clock import SimClock
from runtime.sim_network import SimFabric
from runtime.sim_zk import FakeSession, FakeZk

CONFIG = BrokerConfig.from_given(
    {"broker.id": "1", "zookeeper.connect": "simulated", "listeners": "PLAINTEXT://b:1", "log.dirs": "/logs"}
)
LIMIT_S = CONFIG.values["zookeeper.session.timeout.ms"] / 1000


def connected() -> tuple[Env, FakeSession]:
    clock, rng, session = SimClock(), random.Random(1), FakeZk().session()
    return Env(clock, SimFabric(rng, delay_s=lambda: 0.0).node("b"), rng, zk=session), session


@pytest.mark.trio
@pytest.mark.parametrize("lose", [FakeSession.lose_next_request, FakeSession.lose_next_answer, FakeSession.disconnect])
async def test_a_start_goes_on_when_the_connection_is_back(lose: object, autojump_clock: MockClock) -> None:
    env, session = connected()
    first, _ = await read_cluster(CONFIG, env, session)
    assert callable(lose)
    lose(session)
    async with trio.open_nursery() as nursery:

        async def mend() -> None:
            await trio.sleep(LIMIT_S / 2)  # virtual time: half of what it may take
            session.reconnect()

        nursery.start_soon(mend)
        assert (await read_cluster(CONFIG, env, session))[0] == first


@pytest.mark.trio
async def test_a_start_waits_no_longer_than_for_the_first_connection(autojump_clock: MockClock) -> None:
    env, session = connected()
    session.disconnect()
    begun = trio.current_time()
    with pytest.raises(ZkConnectionError):
        await read_cluster(CONFIG, env, session)
    assert LIMIT_S <= trio.current_time() - begun <= LIMIT_S + 2
