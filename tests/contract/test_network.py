"""The contract of ``Network``: TCP under trio and asyncio, and the simulated network."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
import trio

from anabranch.runtime import real_anyio, real_trio
from anabranch.runtime.env import File, Network, Stream
from sim.network import SimFabric
from sim.scheduler import run_deterministic
from sim.storage import SimDisk

HOST = "127.0.0.1"
DEADLINE_S = 10.0


@dataclass
class NetworkFixture:
    """A network, a way to create a file with given content, and a runner for a scenario."""

    kind: str
    folder: Path

    def run(self, scenario: Callable[[NetworkFixture, Network], Awaitable[None]]) -> None:
        if self.kind == "simulated":
            for seed in range(5):
                run_deterministic(seed, self._run, scenario, seed)
        elif self.kind == "trio":
            trio.run(self._run, scenario, 0)
        else:
            anyio.run(self._run, scenario, 0, backend="asyncio")

    async def _run(self, scenario: Callable[[NetworkFixture, Network], Awaitable[None]], seed: int) -> None:
        with anyio.fail_after(DEADLINE_S):
            await scenario(self, self._network(seed))

    def _network(self, seed: int) -> Network:
        if self.kind == "simulated":
            rng = random.Random(seed)
            fabric = SimFabric(rng, delay_s=partial(rng.uniform, 0, 0.01), split_probability=0.5)
            return fabric.node("here")
        return real_trio.TrioNetwork() if self.kind == "trio" else real_anyio.AnyioNetwork()

    def file(self, content: bytes) -> File:
        storage: Any
        if self.kind == "simulated":
            storage = SimDisk(random.Random(0)).mount()
            path = "/file"
        else:
            storage = real_trio.RealStorage()
            path = str(self.folder / "file")
        file: File = storage.open(path, create=True)
        file.append(content)
        return file


@pytest.fixture(params=["trio", "asyncio", "simulated"])
def network_fixture(request: pytest.FixtureRequest, tmp_path: Path) -> NetworkFixture:
    return NetworkFixture(request.param, tmp_path)


async def connected(network: Network, send_buffer_bytes: int = -1) -> tuple[Stream, Stream]:
    """Return the client's and the server's end of a new connection; ``send_buffer_bytes`` is for the server's end."""
    listener = await network.listen(HOST, 0, send_buffer_bytes=send_buffer_bytes)
    client = await network.connect(HOST, listener.port)
    server = await listener.accept()
    listener.close()
    return client, server


async def receive_all(stream: Stream) -> bytes:
    received, buffer = bytearray(), memoryview(bytearray(65_536))
    while count := await stream.receive_into(buffer):
        received += buffer[:count]
    return bytes(received)


async def sent_whole(sender: Stream, parts: Sequence[Any], receiver: Stream) -> bytes:
    """Return all bytes that ``receiver`` gets while ``sender`` sends ``parts`` and closes."""
    received = b""

    async def receive() -> None:
        nonlocal received
        received = await receive_all(receiver)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(receive)
        await sender.send(parts)
        sender.close()
    receiver.close()
    return received


async def receive_exactly(stream: Stream, length: int) -> bytes:
    buffer = memoryview(bytearray(length))
    held = 0
    while held < length:
        count = await stream.receive_into(buffer[held:])
        assert count > 0
        held += count
    return bytes(buffer)


def test_bytes_arrive_whole_and_in_order_both_ways(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        there, back = random.Random(1).randbytes(700_000), random.Random(2).randbytes(300_000)
        received: dict[str, bytes] = {}

        async def receive(name: str, stream: Stream) -> None:
            received[name] = await receive_all(stream)

        async def send(stream: Stream, data: bytes) -> None:
            for start in range(0, len(data), 100_000):
                await stream.send([data[start : start + 50_000], memoryview(data)[start + 50_000 : start + 100_000]])

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive, "there", server)
            async with anyio.create_task_group() as senders:
                senders.start_soon(send, client, there)
                senders.start_soon(send, server, back)
                assert await receive_exactly(client, len(back)) == back
            client.close()
        assert received["there"] == there
        server.close()

    network_fixture.run(scenario)


def test_small_and_large_file_ranges_are_sent_between_buffers(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        content = random.Random(3).randbytes(600_000)
        file = network_fixture.file(content)
        parts: list[Any] = [
            b"header",
            file.range(0, 0),
            file.range(10, 4096),
            bytearray(b"middle"),
            file.range(5, 500_000),
            file.range(599_999, 1),
            b"",
            b"tail",
        ]
        expected = b"".join([b"header", content[10:4106], b"middle", content[5:500_005], content[599_999:], b"tail"])
        assert await sent_whole(client, parts, server) == expected

    network_fixture.run(scenario)


def test_many_small_parts_arrive_whole_and_in_order(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        await client.send([bytes([n % 256]) * (n % 5) for n in range(500)])
        client.close()
        assert await receive_all(server) == b"".join(bytes([n % 256]) * (n % 5) for n in range(500))
        server.close()

    network_fixture.run(scenario)


@pytest.mark.parametrize("length", [1000, 100_000])
def test_sending_a_range_of_a_truncated_file_is_an_error(network_fixture: NetworkFixture, length: int) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        file = network_fixture.file(bytes(length))
        part = file.range(0, length)
        file.truncate(length // 2)
        with pytest.raises(OSError, match="file ends"):
            await client.send([b"header", part])
        client.close()
        server.close()

    network_fixture.run(scenario)


def test_send_now_sends_without_waiting_and_returns_the_rest(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network, send_buffer_bytes=100_000)
        assert not server.send_now([b"at", b"", b" once"])
        assert await receive_exactly(client, 7) == b"at once"
        content = random.Random(4).randbytes(9_000_000)
        file = network_fixture.file(content)
        parts: list[Any] = [b"header", file.range(0, 10), content[10:3_000_000], file.range(3_000_000, 6_000_000)]
        rest = server.send_now(parts)
        assert 0 < sum(map(len, rest)) < len(content), "some bytes are sent before the peer reads"
        assert await sent_whole(server, rest, client) == b"header" + content

    network_fixture.run(scenario)


def test_the_next_send_raises_an_error_that_send_now_met(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        file = network_fixture.file(bytes(100_000))
        part = file.range(0, 100_000)
        file.truncate(0)
        rest = client.send_now([part])
        with pytest.raises(OSError, match="file ends"):
            await client.send(rest)
        client.close()
        assert list(client.send_now([b"late"])) == [b"late"]
        server.close()

    network_fixture.run(scenario)


def test_a_range_can_be_sent_after_its_file_is_closed(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        file = network_fixture.file(b"x" * 5000)
        part = file.range(1, 4999)
        file.close()
        await client.send([part])
        client.close()
        assert await receive_all(server) == b"x" * 4999
        server.close()

    network_fixture.run(scenario)


def test_wait_readable_returns_for_data_and_at_the_end_of_the_stream(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        woken = []

        async def wait() -> None:
            await server.wait_readable()
            woken.append("readable")

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait)
            await anyio.wait_all_tasks_blocked()
            assert woken == []
            await client.send([b"x"])
        assert await receive_exactly(server, 1) == b"x"
        client.close()
        await server.wait_readable()
        assert await server.receive_into(memoryview(bytearray(1))) == 0
        server.close()

    network_fixture.run(scenario)


def test_a_stream_has_ended_when_the_peer_closed_it_and_all_bytes_are_received(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        assert not server.has_ended()
        await client.send([b"x"])
        client.close()
        await server.wait_readable()
        assert not server.has_ended()
        assert await receive_exactly(server, 1) == b"x"
        await server.wait_readable()
        assert server.has_ended()
        assert await server.receive_into(memoryview(bytearray(1))) == 0
        server.close()
        assert server.has_ended()

    network_fixture.run(scenario)


def test_closing_wakes_the_tasks_that_wait_on_the_stream(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        errors: list[str] = []

        async def expect_error(name: str, wait: Callable[[], Awaitable[Any]]) -> None:
            try:
                await wait()
            except OSError:
                errors.append(name)

        async def fill() -> None:
            while True:
                await client.send([bytes(1_000_000)])

        silent, other = await connected(network)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(expect_error, "wait", client.wait_readable)
            tasks.start_soon(expect_error, "send", fill)
            tasks.start_soon(expect_error, "receive", lambda: silent.receive_into(memoryview(bytearray(1))))
            await anyio.wait_all_tasks_blocked()
            client.close()
            silent.close()
        assert sorted(errors) == ["receive", "send", "wait"]
        client.close()
        for call in (lambda: client.send([b"x"]), client.wait_readable):
            with pytest.raises(OSError):
                await call()
        with pytest.raises(OSError):
            await client.receive_into(memoryview(bytearray(1)))
        server.close()
        other.close()

    network_fixture.run(scenario)


def test_sending_to_a_closed_peer_fails_eventually(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        server.close()

        async def send_much() -> None:
            for _ in range(1000):
                await client.send([bytes(10_000)])

        with pytest.raises(OSError):
            await send_much()
        client.close()

    network_fixture.run(scenario)


def test_a_sender_waits_for_a_slow_reader(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        sent = []

        async def send() -> None:
            await client.send([bytes(50_000_000)])
            sent.append(True)
            client.close()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send)
            await receive_exactly(server, 1000)
            await anyio.wait_all_tasks_blocked()
            assert sent == []
            tasks.cancel_scope.cancel()
        client.close()
        server.close()

    network_fixture.run(scenario)


def test_a_connection_to_a_port_without_a_listener_is_refused(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        listener = await network.listen(HOST, 0)
        port = listener.port
        listener.close()
        with pytest.raises(ConnectionRefusedError):
            await network.connect(HOST, port)
        with pytest.raises(OSError):
            await network.connect("no-such-host.invalid", port)

    network_fixture.run(scenario)


def test_a_port_has_one_listener_and_is_free_after_its_close(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        listener = await network.listen(HOST, 0)
        assert listener.port > 0
        with pytest.raises(OSError):
            await network.listen(HOST, listener.port)
        listener.close()
        again = await network.listen(HOST, listener.port)
        assert again.port == listener.port
        again.close()

    network_fixture.run(scenario)


def test_closing_a_listener_wakes_the_task_that_accepts(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        listener = await network.listen(HOST, 0)
        errors: list[OSError] = []

        async def accept() -> None:
            try:
                await listener.accept()
            except OSError as error:
                errors.append(error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(accept)
            await anyio.wait_all_tasks_blocked()
            listener.close()
        assert len(errors) == 1
        with pytest.raises(OSError):
            await listener.accept()

    network_fixture.run(scenario)


def test_the_name_of_a_peer_is_its_host_and_port(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        listener = await network.listen(HOST, 0)
        client = await network.connect(HOST, listener.port)
        server = await listener.accept()
        assert client.peer == f"{HOST}:{listener.port}"
        host, _, port = server.peer.rpartition(":")
        assert host and port.isdigit()
        for end in (client, server, listener):
            end.close()

    network_fixture.run(scenario)


def test_a_busy_stream_lets_other_tasks_run(network_fixture: NetworkFixture) -> None:
    async def scenario(network_fixture: NetworkFixture, network: Network) -> None:
        client, server = await connected(network)
        await client.send([bytes(1000)])
        await server.wait_readable()  # from here on virtual time stands still, because some task always runs
        turns = 0

        async def count_turns() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(count_turns)
            for _ in range(500):
                await receive_exactly(server, 1)
            tasks.cancel_scope.cancel()
        assert turns >= 50
        client.close()
        server.close()

    network_fixture.run(scenario)
