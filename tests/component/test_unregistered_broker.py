"""A broker is reachable before it is registered. Requests that arrive before are for the earlier process."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from typing import Any

import pytest
import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.process import run
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env, ZkOp
from anabranch.zk_schemas import paths
from sim.clock import SimClock
from sim.network import SimFabric
from sim.storage import SimDisk
from sim.zk import FakeZk

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


@pytest.mark.parametrize("kind", ["LeaderAndIsr", "StopReplica", "UpdateMetadata"])
async def test_requests_for_the_earlier_process_get_stale_broker_epoch(
    nursery: trio.Nursery, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """KAFKA-7235, 9839: a broker lost its last records and stayed leader, so its followers truncated their logs."""
    zk, fabric, clock = FakeZk(), SimFabric(random.Random(1)), SimClock()
    before = zk.session()
    await before.create(paths.broker_id(1), b"{}", ephemeral=True, make_parents=True)
    old_epoch = (await before.exists(paths.broker_id(1))).czxid
    before.close()
    config = BrokerConfig.from_given(
        {
            "broker.id": "1",
            "zookeeper.connect": "simulated",
            "listeners": "PLAINTEXT://broker1:9092",
            "log.dirs": "/logs",
            "controlled.shutdown.enable": "false",
        }
    )
    storage = SimDisk(random.Random(2), clock=clock).mount()
    session, may_register, ready = zk.session(), trio.Event(), trio.Event()
    multi = session.multi

    async def register_later(ops: Sequence[ZkOp]) -> list[int]:
        if any(op.path == paths.broker_id(1) for op in ops):
            await may_register.wait()
        return await multi(ops)

    monkeypatch.setattr(session, "multi", register_later)
    env = Env(clock, fabric.node("broker1"), random.Random(3), storage, session)

    async def broker() -> None:
        await run(config, env, on_ready=lambda _advertised: ready.set())

    nursery.start_soon(broker)
    with trio.fail_after(60):
        while not fabric.node("broker1").listeners:
            await trio.sleep(0.01)  # polls: virtual time
    state = LeaderAndIsrPartitionState(leader=1, isr=[1, 2], replicas=[1, 2])
    topic = LeaderAndIsrTopicState(topic_name="t", topic_id=uuid.UUID(int=7), partition_states=[state])
    requests: dict[str, Any] = {
        "LeaderAndIsr": LeaderAndIsrRequest(controller_id=1000, topic_states=[topic]),
        "StopReplica": StopReplicaRequest(controller_id=1000),
        "UpdateMetadata": UpdateMetadataRequest(controller_id=1000),
    }
    request = requests[kind]
    request.controller_epoch, request.broker_epoch = 1, old_epoch
    async with Channel.open(fabric.node("controller"), "broker1", 9092, "controller") as channel:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await channel.request(request, timeout_s=600))

        nursery.start_soon(ask)
        await trio.sleep(5)  # virtual time: long enough for a response
        assert answers == [] and not ready.is_set()
        may_register.set()
        with trio.fail_after(60):
            await ready.wait()
            while not answers:
                await trio.sleep(0.01)  # polls: virtual time
        assert answers[0].error_code == ErrorCode.STALE_BROKER_EPOCH
    nursery.cancel_scope.cancel()
