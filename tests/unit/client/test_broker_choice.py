"""The choice of a broker and of an address: a silent broker is avoided while another answers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio

from anabranch.client.admin.admin import Admin
from anabranch.client.cluster import Node
from anabranch.client.errors import KafkaError
from anabranch.client.net.broker_choice import FAILING
from anabranch.client.net.broker_choice import SILENT as RANK_OF_SILENT
from anabranch.client.net.connections import CHANGES, GENERAL, Connections, ConnectionSettings
from anabranch.client.net.metadata import Metadata
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataResponse, MetadataResponseBroker
from anabranch.runtime.env import Env
from anabranch.runtime.real_anyio import client_env
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.virtual_time import in_virtual_time

GOOD, SILENT = 1, 2
CHOICES = 50
"""In this number of choices, each of two equally loaded brokers is chosen at least once."""


@asynccontextmanager
async def two_brokers(env: Env | None = None, **settings: Any) -> AsyncIterator[tuple[Admin, FakeBroker]]:
    """Yield a client that knows both brokers, and the broker that a test makes silent."""
    env = env or client_env()
    good, silent = FakeBroker({}), FakeBroker({})
    async with good.running(env), silent.running(env):

        def describe_both(response: MetadataResponse) -> None:
            response.brokers.append(MetadataResponseBroker(node_id=SILENT, host="127.0.0.1", port=silent.port))

        good.metadata_hook = describe_both
        async with Admin(env=env, bootstrap_servers=good.address, **settings) as admin:
            await admin._metadata.refresh()
            yield admin, silent


def chosen(admin: Admin, purpose: str = GENERAL) -> set[int]:
    return {admin._metadata.any_node(purpose).id for _ in range(CHOICES)}


async def ask(admin: Admin, node_id: int, purpose: str) -> None:
    node = admin._metadata.node(node_id)
    assert node is not None
    with trio.move_on_after(20):
        await admin._connections.request(node, MetadataRequest(topics=[]), purpose=purpose)


def rank(admin: Admin, node: Node | None, purpose: str = GENERAL) -> int:
    assert node is not None
    return admin._connections.load(node, purpose)[0]


async def until_it_counts_as_silent(admin: Admin) -> None:
    with trio.fail_after(20):
        while rank(admin, admin._metadata.node(SILENT)) != RANK_OF_SILENT:
            await trio.sleep(0.01)  # polls: the client's view of the broker


@pytest.mark.trio
@pytest.mark.parametrize("purpose", [GENERAL, CHANGES])
async def test_a_broker_whose_handshake_takes_long_is_not_asked(purpose: str) -> None:
    async with two_brokers() as (admin, silent), trio.open_nursery() as nursery:
        silent.is_silent = True
        nursery.start_soon(ask, admin, SILENT, purpose)
        await until_it_counts_as_silent(admin)
        assert chosen(admin) == chosen(admin, CHANGES) == {GOOD}
        nursery.cancel_scope.cancel()


@pytest.mark.trio
async def test_a_broker_with_an_overdue_response_is_not_asked() -> None:
    async with two_brokers() as (admin, silent), trio.open_nursery() as nursery:
        await ask(admin, GOOD, GENERAL)
        await ask(admin, SILENT, GENERAL)
        assert chosen(admin) == {GOOD, SILENT}
        silent.is_silent = True
        nursery.start_soon(ask, admin, SILENT, GENERAL)
        await until_it_counts_as_silent(admin)
        assert chosen(admin) == chosen(admin, CHANGES) == {GOOD}
        nursery.cancel_scope.cancel()


def test_a_change_is_not_sent_again_to_the_broker_whose_handshake_failed() -> None:
    async def ask_twice(env: Env) -> None:
        async with two_brokers(env=env, socket_connection_setup_timeout_ms=50) as (admin, silent):
            silent.is_silent = True
            with pytest.raises(KafkaError, match=r"API_VERSIONS was not answered within 0\.05 s"):
                await ask(admin, SILENT, CHANGES)
            assert chosen(admin, CHANGES) == {GOOD}

    in_virtual_time(ask_twice)


def test_a_broker_that_left_a_request_unanswered_is_not_asked_for_a_while() -> None:
    async def ask_late(env: Env) -> None:
        async with two_brokers(env=env, request_timeout_ms=1_000) as (admin, silent):
            for node in (GOOD, SILENT):
                await ask(admin, node, CHANGES)
            assert chosen(admin, CHANGES) == {GOOD, SILENT}
            silent.is_silent = True
            with pytest.raises(KafkaError, match="METADATA was not answered within 1 s"):
                await ask(admin, SILENT, CHANGES)
            assert chosen(admin, CHANGES) == {GOOD}
            assert rank(admin, admin._metadata.node(SILENT), CHANGES) == FAILING
            await trio.sleep(100)  # virtual time: in_virtual_time
            assert rank(admin, admin._metadata.node(SILENT), CHANGES) < FAILING

    in_virtual_time(ask_late)


def test_a_broker_that_refuses_is_asked_before_one_that_is_silent() -> None:
    """A refused connection takes a moment, and an unanswered request takes the whole time limit."""

    async def ask_both(env: Env) -> None:
        async with two_brokers(env=env) as (admin, silent), trio.open_nursery() as nursery:
            silent.is_silent = True
            nursery.start_soon(ask, admin, SILENT, GENERAL)
            refusing = Node(3, "127.0.0.1", 1)
            with pytest.raises(KafkaError, match="Connection refused"):
                await admin._connections.get(refusing)
            await until_it_counts_as_silent(admin)
            assert rank(admin, refusing) == FAILING < RANK_OF_SILENT
            nursery.cancel_scope.cancel()

    in_virtual_time(ask_both)


def test_changes_go_to_a_broker_chosen_for_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def change(env: Env) -> None:
        async with two_brokers(env=env) as (admin, _silent):
            purposes: list[str] = []

            def note(_metadata: Metadata, purpose: str = GENERAL) -> Node:
                purposes.append(purpose)
                raise KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "noted")

            monkeypatch.setattr(Metadata, "any_node", note)
            with pytest.raises(KafkaError, match="noted"):
                await admin._change("a change", MetadataRequest(topics=[]), lambda _response: None)
            assert purposes == [CHANGES]

    in_virtual_time(change)


async def test_each_try_to_connect_begins_with_another_address() -> None:
    """An address may accept the connection and never complete the handshake."""

    class Refusing:
        def __init__(self) -> None:
            self.attempts: list[int] = []

        async def connect(self, host: str, port: int, *, attempt: int = 0) -> Any:
            self.attempts.append(attempt)
            raise ConnectionRefusedError("refused")

    network: Any = Refusing()
    settings = ConnectionSettings(None, 1000, 0, 0, 1000, 1000)
    async with anyio.create_task_group() as tasks:
        connections = Connections(dataclasses.replace(client_env(), network=network), settings, tasks)
        for _ in range(3):
            with pytest.raises(KafkaError, match="refused"):
                await connections.get(Node(1, "broker-1", 9092))
    assert network.attempts == [0, 1, 2]
