"""Brokers and controllers serve any request in short pieces, keep nothing of it, and answer each name once.

The requests are made from the field tables: for each API that is served and each array of its requests, at every level,
in the last version that has the array (``test_decode_amplification`` decodes every version). One request has very many
items of one name, another one very many names. Nothing is timed. The lines of Python that run between two passes of the
event loop must not depend on the number of items. Messages that stay are counted without garbage collections.
"""

from __future__ import annotations

import gc
import struct
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
import trio
import trio.testing

from anabranch.broker.link.controller_client import ControllerClient
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.net.dispatch import HANDLERS
from anabranch.controller.admin import slices
from anabranch.controller.admin.dispatch import HANDLERS as CONTROLLER_HANDLERS
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.config_resources import ResourceType
from anabranch.protocol.error_responses import error_response_in_steps
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated import metadata as a_generated_module
from anabranch.protocol.message import Message
from anabranch.runtime import decoded_requests, pauses
from anabranch.runtime.env import Stream
from anabranch.runtime.pauses import with_pauses
from tests.support.broker.broker_harness import DEADLINE_S, frame, one_broker
from tests.support.broker.executed_lines import ExecutedLines
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.protocol.hostile_frames import NESTED, Dense, Filling, dense_messages

pytestmark = pytest.mark.trio

FEW = 1_100
"""More items than any API handles at once."""
MANY = 2 * FEW
MORE_LINES = 6 * (MANY - FEW)
"""The lines of a pass differ by how the items fall into passes."""
MOST_LINES = 80_000
"""Some milliseconds."""
MOST_OBJECTS = 100
"""Answers that a process keeps ready, such as that to ApiVersions."""
REPEATED = Filling("repeated", b"ab", 0xFF, 1)
DISTINCT = Filling("distinct", b"ab", 0xFF, 1, are_distinct=True)
LOGGERS = (
    Filling("repeated loggers", b"1", ResourceType.BROKER_LOGGER, 1),
    Filling("loggers", b"1", ResourceType.BROKER_LOGGER, 1, are_distinct=True),
)
ANSWERED_IN_ORDER = {ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS, ApiKey.ALTER_PARTITION_REASSIGNMENTS}
"""The results of the first two have no names, but the order of the request. The third answers a repeated partition
each time."""
GENERATED = a_generated_module.__name__.rpartition(".")[0] + "."

Connect: TypeAlias = Callable[[], Awaitable[Stream]]


def arrays_of(key: ApiKey) -> list[Dense]:
    """Each array of an API's requests, in the last version that has it."""
    found = dense_messages("REQUEST")
    return list(
        {dense.path: dense for dense in found if dense.table.api_key == key and dense.filling is NESTED}.values()
    )


def with_arrays(keys: Collection[int]) -> list[ApiKey]:
    return [key for key in sorted(map(ApiKey, keys)) if arrays_of(key)]


@pytest.fixture(autouse=True)
def in_steps_without_collections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every request is decoded in steps, as those of 32 KiB are: fewer items then show what many items cost."""
    monkeypatch.setattr(pauses, "LARGE_FRAME_BYTES", 1_024)
    monkeypatch.setattr(decoded_requests, "LARGE_FRAME_BYTES", 1_024)
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()


def messages_alive() -> Counter[str]:
    """The objects of messages, by class."""
    return Counter(type(found).__name__ for found in gc.get_objects() if type(found).__module__.startswith(GENERATED))


async def answer_to(connect: Connect, request: bytes) -> bytes:
    """The answer; empty if the connection was closed instead. Returns when the server has nothing left to do."""
    stream = await connect()
    received = bytearray()
    buffer = bytearray(1 << 20)
    with trio.fail_after(DEADLINE_S):
        await stream.send([frame(request)])
        while len(received) < 4 or len(received) < 4 + struct.unpack_from(">i", received)[0]:
            count = await stream.receive_into(memoryview(buffer))
            if count == 0:
                received.clear()
                break
            received += buffer[:count]
    stream.close()
    await trio.testing.wait_all_tasks_blocked()
    return bytes(received[4:])


async def most_lines(connect: Connect, request: bytes) -> ExecutedLines:
    lines = ExecutedLines()
    with lines.counting():
        await answer_to(connect, request)
    return lines


async def check(connect: Connect, key: ApiKey, fillings: tuple[Filling, Filling] = (REPEATED, DISTINCT)) -> None:
    for dense in arrays_of(key):
        repeated, distinct = [dense._replace(filling=filling) for filling in fillings]
        if key not in ANSWERED_IN_ORDER:
            few, many = [await answer_to(connect, repeated.request(count=count)) for count in (2, MANY)]
            assert len(many) <= len(few), str(repeated)
        few_lines = await most_lines(connect, distinct.request(count=FEW))
        alive = messages_alive().total()
        for hostile in (repeated, distinct):
            many_lines = await most_lines(connect, hostile.request(count=MANY))
            assert many_lines.most <= MOST_LINES, f"{hostile}: {many_lines.where}"
            if hostile is distinct:
                assert many_lines.most <= few_lines.most + MORE_LINES, f"{hostile}: {many_lines.where}"
            left = messages_alive()
            assert left.total() <= alive + MOST_OBJECTS, f"{hostile}: {left.most_common(3)}"


@asynccontextmanager
async def broker_with_a_topic(directory: Path) -> AsyncIterator[Connect]:
    settings = {"auto.create.topics.enable": "false", "offsets.topic.num.partitions": "1"}
    async with one_broker(directory, settings) as broker:
        await broker.create_topic("ab", 3)
        await broker.create_topic("__consumer_offsets", 1)
        yield lambda: broker.env.network.connect(broker.host, broker.port)


@pytest.mark.parametrize("key", with_arrays(HANDLERS.keys()), ids=lambda key: key.name)
async def test_nothing_is_kept_of_a_request_whose_client_is_gone(key: ApiKey, tmp_path: Path) -> None:
    """There is no controller, so requests that are forwarded to it would wait for ``request.timeout.ms``."""
    async with broker_with_a_topic(tmp_path) as connect:
        for dense in arrays_of(key):
            hostile = dense._replace(filling=DISTINCT)
            await send_and_close(connect, hostile.request(count=2))
            alive = messages_alive().total()
            await send_and_close(connect, hostile.request(count=MANY))
            left = messages_alive()
            assert left.total() <= alive + MOST_OBJECTS, f"{hostile}: {left.most_common(3)}"


async def send_and_close(connect: Connect, request: bytes) -> None:
    """Send a request, and close the connection when the request is served, or waits."""
    stream = await connect()
    with trio.fail_after(DEADLINE_S):
        await stream.send([frame(request)])
        await trio.testing.wait_all_tasks_blocked()
        stream.close()
        await trio.testing.wait_all_tasks_blocked()


@pytest.mark.parametrize("key", with_arrays(HANDLERS.keys() - CONTROLLER_HANDLERS.keys()), ids=lambda key: key.name)
async def test_a_broker_serves_very_many_items_in_short_pieces(key: ApiKey, tmp_path: Path) -> None:
    async with broker_with_a_topic(tmp_path) as connect:
        await check(connect, key)


@pytest.mark.parametrize("state", ["answered", "refused"])
@pytest.mark.parametrize("key", with_arrays(HANDLERS.keys() & CONTROLLER_HANDLERS.keys()), ids=lambda key: key.name)
async def test_a_broker_forwards_very_many_items_in_short_pieces(
    key: ApiKey, state: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(
        _controller: ControllerClient,
        body: Message,
        _version: int,
        _timeout_s: float,
        refused: Callable[[Message], bool],
    ) -> Message:
        if state == "refused":
            raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller")
        response: Message = await with_pauses(error_response_in_steps(key, body, ErrorCode.NONE, None))
        assert not refused(response)
        return response

    monkeypatch.setattr(ControllerClient, "request", answer)
    monkeypatch.setattr(MetadataCache, "has_leaders", lambda *_: True)
    monkeypatch.setattr(MetadataCache, "partition_count", lambda *_: 1 << 31)
    async with broker_with_a_topic(tmp_path) as connect:
        await check(connect, key)
        if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
            await check(connect, key, LOGGERS)


@pytest.mark.parametrize("state", ["active", "standby"])
@pytest.mark.parametrize(
    "key", with_arrays(CONTROLLER_HANDLERS.keys() | {ApiKey.DESCRIBE_CONFIGS}), ids=lambda key: key.name
)
async def test_a_controller_serves_very_many_items_in_short_pieces(
    key: ApiKey, state: str, nursery: trio.Nursery, autojump_clock: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    if found := slices._OF_PARTITIONS.get(key):
        smaller = found._replace(at_once=FEW // 2, topics_at_once=min(FEW // 2, found.topics_at_once))
        monkeypatch.setitem(slices._OF_PARTITIONS, key, smaller)
    cluster = ControllerCluster(nursery)
    await cluster.start_controller()
    await cluster.start_broker(1)
    await cluster.until(cluster.active)
    if state == "standby":
        await cluster.start_controller(1001)
    network = cluster.fabric.node("client")
    host = "controller1000" if state == "active" else "controller1001"
    await check(lambda: network.connect(host, 9090), key)
    if key == ApiKey.INCREMENTAL_ALTER_CONFIGS:
        await check(lambda: network.connect(host, 9090), key, LOGGERS)
