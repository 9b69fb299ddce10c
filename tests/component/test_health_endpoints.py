"""``/health/live`` and ``/health/ready`` of a broker and of a controller: they name each problem by its kind."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.observed.group_lag import GroupLag
from anabranch.health import UnhealthyError, check_ready
from anabranch.local.ports import held_port
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.runtime.env import SessionState
from anabranch.zk_schemas.controller import ControllerZnode
from tests.support.broker import requests
from tests.support.broker.broker_harness import DEADLINE_S, OneBroker, one_broker
from tests.support.broker.requests import only
from tests.support.resize.resize_rules import started

pytestmark = pytest.mark.trio

HOST = "127.0.0.1"
PATIENT = {"health.loop.lag.ms": "600000"}
NO_CONTROLLER = "no controller is active: no leader or ISR can change"
"""The problem that these brokers have unless a test registers a controller. It does not make a broker unready."""


class Asked:
    """A broker and the address of its health endpoints."""

    def __init__(self, broker: OneBroker, port: int) -> None:
        self.broker = broker
        self.port = port

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        def ask() -> tuple[int, dict[str, Any]]:
            connection = http.client.HTTPConnection(HOST, self.port, timeout=DEADLINE_S)
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())
            finally:
                connection.close()

        return await trio.to_thread.run_sync(ask)

    async def until_ready_is(self, status: int, kind: str | None) -> dict[str, Any]:
        """Return the first response of ``/health/ready`` with this status and a problem of the kind.

        None: with no problem but the missing controller.
        """
        with trio.fail_after(DEADLINE_S):
            while True:
                got, content = await self.get("/health/ready")
                kinds = [problem["kind"] for problem in content["problems"]]
                if got == status and (kinds == ["controller"] if kind is None else kind in kinds):
                    return content
                await trio.sleep(0.01)  # polls: the health of the broker

    async def check(self) -> list[str]:
        """The problems that a container's health check finds."""
        return await trio.to_thread.run_sync(check_ready, HOST, self.port)


@asynccontextmanager
async def asked(directory: Path, **settings: str) -> AsyncIterator[Asked]:
    with held_port(HOST) as port:
        given = {"metrics.listener": f"{HOST}:{port}", **PATIENT, **settings}
        async with one_broker(directory, given) as broker:
            yield Asked(broker, port)


@asynccontextmanager
async def ready(directory: Path, **settings: str) -> AsyncIterator[Asked]:
    """A broker that has the controller's metadata of itself and of ``t``."""
    async with asked(directory, **settings) as broker:
        await broker.broker.create_topic("t")
        yield broker


async def produce(broker: OneBroker) -> int:
    records = bytes(build_batch([(b"k", b"v", (), 1_000)]))
    return int(only(await broker.request(requests.produce(records))).error_code)


async def test_a_broker_is_ready_once_the_controller_has_confirmed_its_registration(tmp_path: Path) -> None:
    async with asked(tmp_path) as broker:
        status, content = await broker.get("/health/ready")
        assert (status, content["status"]) == (503, "unready")
        assert [problem["kind"] for problem in content["problems"]] == ["registration", "controller"]
        with pytest.raises(UnhealthyError, match=r"broker 1 is registered, but the controller"):
            await broker.check()
        await broker.broker.create_topic("t")
        assert (await broker.get("/health/ready"))[0] == 200
        status, content = await broker.get("/health/live")
        assert (status, content["status"], content["process"], content["id"]) == (200, "live", "broker", 1)
        assert await broker.check() == [NO_CONTROLLER]
        assert (await broker.get("/health/ready?strict"))[0] == 503


async def test_a_broker_names_a_controller_that_does_not_answer(tmp_path: Path) -> None:
    """Each request for readiness may begin a check, so a silent controller is noticed without other requests to it."""
    async with ready(tmp_path, **{"controller.silence.ms": "20"}) as broker:
        listener = await broker.broker.env.network.listen(HOST, 0)
        znode = ControllerZnode(controller_id=1000, host=HOST, port=listener.port)
        assert broker.broker.env.zk is not None
        await broker.broker.env.zk.create(ControllerZnode.PATH, znode.encode())
        with trio.fail_after(DEADLINE_S):
            while "has not answered for" not in " ".join(await broker.check()):
                await trio.sleep(0.01)  # polls: the checks of the connection
        listener.close()


async def test_a_broker_answers_within_the_limits_of_its_configuration(tmp_path: Path) -> None:
    """A head of 2 KiB is too long. A new connection replaces an idle one, and gets one response to two requests."""
    limits = {"max.head.bytes": "1024", "max.requests": "1", "max.connections": "1"}
    settings = {f"metrics.http.{key}": value for key, value in limits.items()}
    async with asked(tmp_path, **settings) as broker, await trio.open_tcp_stream(HOST, broker.port):
        for header, status in ((b"x" * 2048, b"431"), (b"x", b"200")):
            request = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\na: %s\r\n\r\n" % header
            async with await trio.open_tcp_stream(HOST, broker.port) as stream:
                await stream.send_all(request * 2)
                with trio.fail_after(DEADLINE_S):
                    response = b"".join([part async for part in stream])
            assert response.startswith(b"HTTP/1.1 " + status) and response.count(b"HTTP/1.1 ") == 1


async def test_a_controller_answers_within_the_limits_of_its_configuration(
    nursery: trio.Nursery, autojump_clock: object
) -> None:
    cluster = await started(nursery, metrics_listener="controller1000:9100", metrics_http_max_head_bytes=1024)
    stream = await cluster.fabric.node("probe").connect("controller1000", 9100)
    await stream.send([b"GET /health/live HTTP/1.0\r\na: %s\r\n\r\n" % (b"x" * 1024)])
    buffer = memoryview(bytearray(64))
    assert bytes(buffer[: await stream.receive_into(buffer)]).startswith(b"HTTP/1.1 431 ")


async def test_a_broker_without_zookeeper_is_live_but_not_ready(tmp_path: Path) -> None:
    async with ready(tmp_path) as broker:
        session: Any = broker.broker.env.zk
        session.disconnect(server_down=True)
        content = await broker.until_ready_is(503, "zookeeper")
        assert content["problems"][0]["what"] == f"the ZooKeeper session is {SessionState.SUSPENDED.value}"
        assert (await broker.get("/health/live"))[0] == 200
        with pytest.raises(UnhealthyError, match="ZooKeeper"):
            await broker.check()
        session.reconnect()
        await broker.until_ready_is(200, None)


async def test_a_broken_replica_is_named_and_the_broker_stays_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def flush(log: PartitionLog) -> None:
        log.is_broken = True
        raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no disk")

    async with ready(tmp_path, **{"log.flush": "ack"}) as broker:
        with monkeypatch.context() as patched:
            patched.setattr(PartitionLog, "flush", flush)
            assert await produce(broker.broker) == ErrorCode.KAFKA_STORAGE_ERROR
        content = await broker.until_ready_is(200, "log")
        assert content["status"] == "degraded"
        (what,) = (problem["what"] for problem in content["problems"] if problem["kind"] == "log")
        assert what.startswith("log t-0: broken until the next start")
        assert (await broker.get("/health/ready?strict"))[0] == 503
        assert what in await broker.check()


async def test_a_broker_with_a_failed_background_task_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(_self: GroupLag) -> None:
        raise ValueError("the task cannot continue")

    monkeypatch.setattr(GroupLag, "run", dies)
    async with ready(tmp_path) as broker:
        content = await broker.until_ready_is(503, "task")
        (problem,) = (found for found in content["problems"] if found["kind"] != "controller")
        assert problem["what"].startswith("group-lag: failed ") and "the task cannot continue" in problem["what"]
        assert problem["fatal"] is True


async def test_a_broker_whose_event_loop_was_held_up_is_not_ready(tmp_path: Path) -> None:
    async with ready(tmp_path, **{"health.loop.lag.ms": "150"}) as broker:
        time.sleep(0.2)  # pause: the loop is held up
        content = await broker.until_ready_is(503, "loop-lag")
        assert any("health.loop.lag.ms allows 150 ms" in problem["what"] for problem in content["problems"])


async def test_a_controller_without_zookeeper_is_not_ready(nursery: trio.Nursery, autojump_clock: object) -> None:
    cluster = await started(nursery, metrics_listener="controller1000:9100")

    async def status() -> tuple[str, list[str]]:
        stream = await cluster.fabric.node("probe").connect("controller1000", 9100)
        await stream.send([b"GET /health/ready HTTP/1.0\r\n\r\n"])
        received, buffer = b"", memoryview(bytearray(65536))
        while count := await stream.receive_into(buffer):
            received += bytes(buffer[:count])
        head, _, body = received.decode().partition("\r\n\r\n")
        return head.split(" ")[1], [problem["kind"] for problem in json.loads(body)["problems"]]

    assert await status() == ("200", [])
    cluster.sessions[1000].disconnect(server_down=True)
    assert await status() == ("503", ["zookeeper"])
    cluster.sessions[1000].reconnect()
    assert await status() == ("200", [])
