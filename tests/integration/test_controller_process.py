"""Controller processes on a real ZooKeeper: one dies by kill -9, the other takes over."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import trio

from anabranch.local.embedded_zookeeper import EmbeddedZookeeper
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import NoNodeError, ZkStore
from anabranch.runtime.real_trio import TrioNetwork
from anabranch.runtime.zk_kazoo import open_zk
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.controller import ControllerZnode, decode_controller_epoch

pytestmark = [pytest.mark.trio, pytest.mark.integration]
SESSION_TIMEOUT_MS = 2_000


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[EmbeddedZookeeper]:
    with EmbeddedZookeeper(str(tmp_path / "zookeeper"), durable=False) as running:
        yield running


def start(controller_id: int, zookeeper: str) -> subprocess.Popen[bytes]:
    settings = {
        "controller.id": controller_id,
        "controller.listener": "PLAINTEXT://127.0.0.1:0",
        "zookeeper.connect": zookeeper,
        "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
    }
    arguments = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    return subprocess.Popen([sys.executable, "-m", "anabranch.controller", *arguments])


async def elected(zk: ZkStore, other_than: int | None = None) -> ControllerZnode:
    with trio.fail_after(60):
        while True:
            try:
                found = ControllerZnode.decode(paths.CONTROLLER, (await zk.get(paths.CONTROLLER)).data)
                if found.controller_id != other_than:
                    return found
            except NoNodeError:
                pass
            await trio.sleep(0.05)  # polls: /controller


async def test_the_standby_controller_takes_over_after_kill_9(zookeeper: EmbeddedZookeeper) -> None:
    with ExitStack() as processes:
        controllers = {id: processes.enter_context(start(id, zookeeper.connect_string)) for id in (1000, 1001)}
        for process in controllers.values():
            processes.callback(process.kill)
        async with open_zk(zookeeper.connect_string, 10_000) as zk:
            first = await elected(zk)
            controllers[first.controller_id].kill()
            second = await elected(zk, other_than=first.controller_id)
            epoch = (await zk.get(paths.CONTROLLER_EPOCH)).data
            assert decode_controller_epoch(paths.CONTROLLER_EPOCH, epoch) == 2
            topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
            async with Channel.open(TrioNetwork(), second.host, second.port, "test", negotiate=True) as channel:
                with trio.fail_after(30):
                    code = ErrorCode.NOT_CONTROLLER
                    while code == ErrorCode.NOT_CONTROLLER:
                        response = await channel.request(CreateTopicsRequest(topics=[topic]))
                        code = response.topics[0].error_code
            assert code == ErrorCode.INVALID_REPLICATION_FACTOR
            assert "available brokers: 0" in response.topics[0].error_message
        survivor = controllers[second.controller_id]
        survivor.send_signal(signal.SIGTERM)
        assert survivor.wait(timeout=20) == 0


async def test_a_bad_key_ends_the_process_with_one_line() -> None:
    command = [sys.executable, "-m", "anabranch.controller", "--set", "controller.idd=1"]
    ended = await trio.run_process(command, capture_stderr=True, check=False)
    assert ended.returncode == 2
    problem = "controller.idd: no such controller config key; did you mean controller.id? (on the command line)"
    assert ended.stderr.decode().strip() == f"controller: {problem}"
