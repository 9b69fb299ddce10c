"""The faults of the simulated network; the contract suite tests it without faults."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from anabranch.runtime.env import Stream
from sim.network import SimFabric
from sim.scheduler import run_deterministic

PORT = 9092


def simulate(scenario: Callable[[SimFabric], Awaitable[None]], delay_s: float = 0.01) -> None:
    run_deterministic(0, scenario, SimFabric(random.Random(0), delay_s=lambda: delay_s))


async def connected(fabric: SimFabric) -> tuple[Stream, Stream]:
    listener = await fabric.node("server").listen("", PORT)
    client = await fabric.node("client").connect("server", PORT)
    return client, await listener.accept()


async def receive(stream: Stream) -> bytes:
    buffer = bytearray(100)
    return bytes(buffer[: await stream.receive_into(memoryview(buffer))])


def test_data_arrives_after_the_delay() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        start = trio.current_time()
        await client.send([b"x"])
        assert await receive(server) == b"x"
        assert trio.current_time() - start == pytest.approx(0.5)

    simulate(scenario, delay_s=0.5)


def test_a_cut_delays_one_direction_until_it_heals() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        fabric.cut("client", "server")
        await client.send([b"held"])
        await server.send([b"back"])
        assert await receive(client) == b"back"
        with trio.move_on_after(60) as silence:
            await receive(server)
        assert silence.cancelled_caught
        fabric.heal("client", "server")
        assert await receive(server) == b"held"

    simulate(scenario)


@pytest.mark.parametrize("direction", [("client", "server"), ("server", "client")])
def test_no_machine_connects_through_a_cut(direction: tuple[str, str]) -> None:
    async def scenario(fabric: SimFabric) -> None:
        await fabric.node("server").listen("", PORT)
        client = fabric.node("client")
        fabric.cut(*direction)
        with trio.move_on_after(30) as late:
            await client.connect("server", PORT)
        assert late.cancelled_caught
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.connect, "server", PORT)
            await trio.testing.wait_all_tasks_blocked()
            fabric.heal_all()

    simulate(scenario)


def test_a_reset_loses_the_data_in_flight_and_fails_both_ends() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        await client.send([b"lost"])
        fabric.reset("server", "client")
        for end in (client, server):
            with pytest.raises(ConnectionResetError):
                await receive(end)
            with pytest.raises(ConnectionResetError):
                await end.send([b"x"])

    simulate(scenario)


def test_a_crashed_machine_resets_its_peers_and_refuses_until_it_listens_again() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, _server = await connected(fabric)
        fabric.crash("server")
        with pytest.raises(ConnectionResetError):
            await receive(client)
        with pytest.raises(ConnectionRefusedError):
            await fabric.node("client").connect("server", PORT)
        await fabric.node("server").listen("", PORT)
        await fabric.node("client").connect("server", PORT)

    simulate(scenario)


def test_a_crash_of_a_cut_off_machine_is_not_noticed_before_the_cut_heals() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, _server = await connected(fabric)
        fabric.cut("server", "client")
        fabric.crash("server")
        with trio.move_on_after(60) as silence:
            await receive(client)
        assert silence.cancelled_caught
        fabric.heal_all()
        with pytest.raises(ConnectionResetError):
            await receive(client)

    simulate(scenario)


def test_loopback_addresses_reach_only_the_machine_itself() -> None:
    async def scenario(fabric: SimFabric) -> None:
        await fabric.node("server").listen("127.0.0.1", PORT)
        await fabric.node("server").connect("localhost", PORT)
        fabric.node("client")
        with pytest.raises(ConnectionRefusedError):
            await fabric.node("client").connect("127.0.0.1", PORT)
        with pytest.raises(OSError, match="no such machine"):
            await fabric.node("client").connect("elsewhere", PORT)

    simulate(scenario)


def test_data_of_a_killed_process_arrives_and_then_its_connections_end() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        await server.send([b"last words"])
        fabric.kill("server")
        assert await receive(client) == b"last words"
        assert await receive(client) == b""
        with pytest.raises(OSError):
            await client.send([b"x"])
        with pytest.raises(OSError, match="refused"):
            await fabric.node("client").connect("server", PORT)

    simulate(scenario)


def test_a_killed_process_cannot_connect_or_listen_and_its_successor_can() -> None:
    async def scenario(fabric: SimFabric) -> None:
        await connected(fabric)
        ghost = fabric.node("client")
        fabric.kill("client")
        with pytest.raises(OSError):
            await ghost.connect("server", PORT)
        with pytest.raises(OSError):
            await ghost.listen("", PORT)
        await fabric.node("client").connect("server", PORT)

    simulate(scenario)


def test_no_peer_notices_a_machine_without_power_until_it_has_power_again() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        await server.send([b"never seen"])
        fabric.power_off("server")
        server.close()  # the process stops with its machine
        await client.send([b"into the void"])
        with trio.move_on_after(1000) as waited:
            await receive(client)
        assert waited.cancelled_caught
        with pytest.raises(OSError, match="No route"):
            await fabric.node("client").connect("server", PORT)
        fabric.node("server")
        with pytest.raises(OSError, match="reset"):
            await receive(client)

    simulate(scenario)


def test_a_machine_can_refuse_only_new_connections() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        fabric.refuse("server")
        with pytest.raises(OSError, match="refused"):
            await fabric.node("client").connect("server", PORT)
        await client.send([b"x"])
        assert await receive(server) == b"x"
        fabric.accept("server")
        await fabric.node("client").connect("server", PORT)

    simulate(scenario)


def test_one_direction_can_be_slow() -> None:
    async def scenario(fabric: SimFabric) -> None:
        client, server = await connected(fabric)
        fabric.slow_down("client", "server", 2)
        for sender, receiver, took_s in ((client, server, 2.01), (server, client, 0.01)):
            start = trio.current_time()
            await sender.send([b"x"])
            await receive(receiver)
            assert trio.current_time() - start == pytest.approx(took_s)  # pause: virtual time
        fabric.heal_all()
        start = trio.current_time()
        await client.send([b"x"])
        await receive(server)
        assert trio.current_time() - start == pytest.approx(0.01)

    simulate(scenario)
