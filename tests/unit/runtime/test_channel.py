"""Outbound requests, under trio and asyncio, to a server with the same framing."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.framing import Request, ServerConnection, encode_response
from anabranch.protocol.generated.api_versions import ApiVersion, ApiVersionsResponse
from anabranch.protocol.generated.fetch import FetchableTopicResponse, FetchRequest, FetchResponse, PartitionData
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.runtime.channel import Channel, ChannelClosedError, ChannelTimeoutError
from anabranch.runtime.env import Network, Stream
from anabranch.runtime.real_anyio import client_env

HOST = "127.0.0.1"
POSTED = 99


def in_both_loops(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test under trio and under asyncio; it gets the network of a client."""

    async def with_deadline(given: dict[str, Any]) -> None:
        with anyio.fail_after(10):
            await test(client_env().network, **given)

    def run(**given: Any) -> None:
        for backend in ("trio", "asyncio"):
            anyio.run(with_deadline, given, backend=backend)

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    _network, *others = inspect.signature(test).parameters.values()
    run.__signature__ = inspect.Signature(others)  # type: ignore[attr-defined]
    return run


async def serve(stream: Stream, answer: Callable[[Request], list[Any]]) -> None:
    """Pass each request to ``answer``, which returns the responses to send now, as ``(request, body)``."""
    connection = ServerConnection()
    try:
        while True:
            received = await stream.receive_into(connection.buffer())
            if not received:
                return
            connection.received(received)
            while (request := connection.next_request()) is not None:
                for asked, body in answer(request):
                    header = asked.header
                    if getattr(body, "error_code", 0) == ErrorCode.UNSUPPORTED_VERSION:
                        header = header._replace(api_version=0)
                    await stream.send(encode_response(header.api_key, header.api_version, header.correlation_id, body))
    except OSError:
        return


def heartbeat_generation(request: Request) -> Any:
    """Return the generation as the throttle time, so that a response shows which request it belongs to."""
    return request, HeartbeatResponse(throttle_time_ms=request.body.generation_id)


@in_both_loops
async def test_pipelined_answers_find_their_callers_in_any_order(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    held: list[Any] = []

    def answer(request: Request) -> list[Any]:
        held.append(heartbeat_generation(request))
        return [] if len(held) < 3 else held[::-1]

    results: dict[int, int] = {}

    async def ask(channel: Channel, number: int) -> None:
        response = await channel.request(HeartbeatRequest(generation_id=number))
        results[number] = response.throttle_time_ms

    async with anyio.create_task_group() as tasks:
        opened = Channel.open(network, HOST, listener.port, "test")
        async with opened as channel:
            tasks.start_soon(serve, await listener.accept(), answer)
            async with anyio.create_task_group() as askers:
                for number in (1, 2, 3):
                    askers.start_soon(ask, channel, number)
    assert results == {1: 1, 2: 2, 3: 3}
    listener.close()


@in_both_loops
async def test_a_lost_connection_fails_every_request_and_names_the_peer(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    errors: list[str] = []

    async def ask(channel: Channel) -> None:
        try:
            await channel.request(HeartbeatRequest())
        except ChannelClosedError as error:
            errors.append(str(error))

    async with Channel.open(network, HOST, listener.port, "test") as channel:
        stream = await listener.accept()
        async with anyio.create_task_group() as askers:
            askers.start_soon(ask, channel)
            askers.start_soon(ask, channel)
            await stream.wait_readable()
            stream.close()
        assert channel.closed
        with pytest.raises(ChannelClosedError, match=f"{HOST}:{listener.port}"):
            await channel.request(HeartbeatRequest())
    assert len(errors) == 2 and all(f"{HOST}:{listener.port}" in error for error in errors)
    listener.close()


@in_both_loops
async def test_a_request_without_answer_times_out_and_closes_the_channel(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    async with Channel.open(network, HOST, listener.port, "test") as channel:
        silent = await listener.accept()
        with pytest.raises(ChannelTimeoutError, match=r"HEARTBEAT was not answered within 0\.05 s"):
            await channel.request(HeartbeatRequest(), timeout_s=0.05)
        assert channel.closed
        silent.close()
    listener.close()


@pytest.mark.parametrize("posts", [True, False])
@in_both_loops
async def test_a_cancelled_request_without_answer_closes_the_channel_at_its_time_limit(
    network: Network, posts: bool
) -> None:
    listener = await network.listen(HOST, 0)
    async with Channel.open(network, HOST, listener.port, "test") as channel:
        silent = await listener.accept()
        async with anyio.create_task_group() as tasks:

            async def ask() -> None:
                if posts:
                    await channel.post(HeartbeatRequest()).wait(0.05)
                else:
                    await channel.request(HeartbeatRequest(), timeout_s=0.05)

            tasks.start_soon(ask)
            await silent.wait_readable()  # the request was sent
            tasks.cancel_scope.cancel()
        assert not channel.closed
        with pytest.raises(ChannelClosedError, match=r"HEARTBEAT was not answered within 0\.05 s"):
            await channel.request(HeartbeatRequest(), timeout_s=60)
        silent.close()
    listener.close()


@in_both_loops
async def test_a_cancellation_may_end_a_request_and_its_channel_in_any_order(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    for _ in range(20):  # the event loop chooses the order
        async with anyio.create_task_group() as tasks:
            channel = await Channel.connect(network, HOST, listener.port, "test")
            channel.start(tasks)
            tasks.start_soon(channel.request, HeartbeatRequest())
            silent = await listener.accept()
            await silent.wait_readable()
            tasks.cancel_scope.cancel()
        assert channel.closed
        silent.close()
    listener.close()


@pytest.mark.parametrize(
    "reply", [b"\x7f\xff\xff\xff", b"\x00\x00\x00\x04\x00\x00\x00\x63", b"\x00\x00\x00\x05\x00\x00\x00\x01\x00"]
)
@in_both_loops
async def test_an_unreadable_answer_closes_the_channel(network: Network, reply: bytes) -> None:
    listener = await network.listen(HOST, 0)
    async with Channel.open(network, HOST, listener.port, "test") as channel:
        stream = await listener.accept()
        async with anyio.create_task_group() as tasks:

            async def reply_badly() -> None:
                await stream.wait_readable()
                await stream.send([reply])

            tasks.start_soon(reply_badly)
            with pytest.raises(ChannelClosedError, match="could not be read"):
                await channel.request(HeartbeatRequest(), version=4)
    listener.close()


@in_both_loops
async def test_a_cancelled_request_leaves_the_channel_usable(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    first: list[Any] = []
    has_arrived = anyio.Event()

    def answer(request: Request) -> list[Any]:
        if not first:
            first.append(heartbeat_generation(request))
            has_arrived.set()
            return []
        return [first[0], heartbeat_generation(request)]

    async def cancel_once_it_has_arrived(scope: anyio.CancelScope) -> None:
        await has_arrived.wait()
        scope.cancel()

    async with anyio.create_task_group() as tasks, Channel.open(network, HOST, listener.port, "t") as channel:
        tasks.start_soon(serve, await listener.accept(), answer)
        with anyio.CancelScope() as gone:
            tasks.start_soon(cancel_once_it_has_arrived, gone)
            await channel.request(HeartbeatRequest(generation_id=1))
        assert gone.cancelled_caught
        response = await channel.request(HeartbeatRequest(generation_id=2))
        assert response.throttle_time_ms == 2
    listener.close()


@in_both_loops
async def test_a_cancelled_request_keeps_its_slot_until_its_response_comes(network: Network) -> None:
    """So callers that leave cannot pile up requests until the channel is closed for all."""
    listener = await network.listen(HOST, 0)
    held: list[Any] = []
    is_full, is_posted, is_answered = anyio.Event(), anyio.Event(), anyio.Event()
    may_answer = False

    def answer(request: Request) -> list[Any]:
        held.append(heartbeat_generation(request))
        if len(held) == 2:
            is_full.set()
        if request.body.generation_id == POSTED:
            is_posted.set()
        return [held.pop() for _ in range(len(held))] if may_answer else []

    async def ask(channel: Channel, scope: anyio.CancelScope, generation: int) -> None:
        with scope:
            await channel.request(HeartbeatRequest(generation_id=generation))
            is_answered.set()

    async with (
        anyio.create_task_group() as tasks,
        Channel.open(network, HOST, listener.port, "t", max_in_flight=2) as channel,
    ):
        stream = await listener.accept()
        tasks.start_soon(serve, stream, answer)
        gone = [anyio.CancelScope() for _ in range(2)]
        for generation, scope in enumerate(gone):
            tasks.start_soon(ask, channel, scope, generation)
        await is_full.wait()
        for scope in gone:
            scope.cancel()
        tasks.start_soon(ask, channel, anyio.CancelScope(), 2)
        await anyio.wait_all_tasks_blocked()
        channel.post(HeartbeatRequest(generation_id=POSTED))  # needs no slot
        await is_posted.wait()
        assert sorted(body.throttle_time_ms for _, body in held) == [0, 1, POSTED]
        may_answer = True
        while held:
            asked, body = held.pop()
            header = asked.header
            await stream.send(encode_response(header.api_key, header.api_version, header.correlation_id, body))
        await is_answered.wait()
    listener.close()


@in_both_loops
async def test_no_more_than_the_limit_is_in_flight(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    seen: list[int] = []
    release = anyio.Event()

    async def hold(stream: Stream) -> None:
        connection = ServerConnection()
        while len(seen) < 5:
            connection.received(await stream.receive_into(connection.buffer()))
            while (request := connection.next_request()) is not None:
                seen.append(request.header.correlation_id)
                if len(seen) == 2:
                    release.set()
                    await anyio.wait_all_tasks_blocked()
                    assert len(channel._pending) == 2
                if len(seen) >= 2:
                    for number in seen[-2:] if len(seen) == 2 else seen[-1:]:
                        await stream.send(encode_response(ApiKey.HEARTBEAT, 0, number, HeartbeatResponse()))

    limited = Channel.open(network, HOST, listener.port, "t", max_in_flight=2)
    async with anyio.create_task_group() as tasks, limited as channel:
        tasks.start_soon(hold, await listener.accept())
        async with anyio.create_task_group() as askers:
            for _ in range(5):
                askers.start_soon(lambda: channel.request(HeartbeatRequest(), version=0))
    assert seen == [1, 2, 3, 4, 5]
    listener.close()


@in_both_loops
async def test_negotiation_picks_the_highest_common_version(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    versions: list[int] = []

    def answer(request: Request) -> list[Any]:
        versions.append(request.header.api_version)
        if request.header.api_key != ApiKey.API_VERSIONS:
            return [(request, HeartbeatResponse())]
        if request.header.api_version > 0:
            return [(request, ApiVersionsResponse(error_code=ErrorCode.UNSUPPORTED_VERSION))]
        spoken = [ApiVersion(api_key=ApiKey.HEARTBEAT, min_version=0, max_version=2)]
        return [(request, ApiVersionsResponse(api_keys=spoken))]

    async with anyio.create_task_group() as tasks:
        stream: Stream | None = None

        async def accept() -> None:
            nonlocal stream
            stream = await listener.accept()
            await serve(stream, answer)

        tasks.start_soon(accept)
        async with Channel.open(network, HOST, listener.port, "t", negotiate=True) as channel:
            await channel.request(HeartbeatRequest())
            await channel.request(HeartbeatRequest(), max_version=1)
            with pytest.raises(KafkaError, match="does not support Fetch"):
                await channel.request(FetchRequest())
            with pytest.raises(
                KafkaError, match=r"share no version of Heartbeat: this side has versions 0 to -1, .* has 0 to 2"
            ):
                await channel.request(HeartbeatRequest(), max_version=-1)
    assert versions[0] > 0
    assert versions[1:] == [0, 2, 1]
    listener.close()


@in_both_loops
async def test_fetched_records_stay_valid_while_more_answers_arrive(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    served = 0

    def answer(request: Request) -> list[Any]:
        nonlocal served
        served += 1
        partition = PartitionData(records=bytes([served]) * 40_000)
        return [(request, FetchResponse(responses=[FetchableTopicResponse(partitions=[partition])]))]

    async with anyio.create_task_group() as tasks, Channel.open(network, HOST, listener.port, "t") as channel:
        tasks.start_soon(serve, await listener.accept(), answer)
        views = []
        for _ in range(6):
            response = await channel.request(FetchRequest(), version=11)
            views.append(response.responses[0].partitions[0].records)
        assert [bytes(view) for view in views] == [bytes([n]) * 40_000 for n in range(1, 7)]
    listener.close()


@in_both_loops
async def test_errors_in_the_channels_block_are_raised_as_they_are(network: Network) -> None:
    listener = await network.listen(HOST, 0)
    with pytest.raises(ZeroDivisionError):
        async with Channel.open(network, HOST, listener.port, "t"):
            1 / 0
    listener.close()
    with pytest.raises(ConnectionRefusedError):
        async with Channel.open(network, HOST, listener.port, "t"):
            raise AssertionError("connected to a closed listener")
