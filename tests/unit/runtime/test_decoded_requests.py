"""All large requests of a process together are decoded within one limit of memory."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.framing import LARGE_FRAME_BYTES, RequestHeader, encode_request
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest
from anabranch.protocol.generated.alter_partition import PartitionData as AlterPartitionData
from anabranch.protocol.generated.alter_partition import TopicData as AlterPartitionTopic
from anabranch.protocol.generated.delete_groups import DeleteGroupsRequest
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.protocol.message import Message
from anabranch.protocol.message_limits import RequestLimits
from anabranch.protocol.primitives import DecodeError
from anabranch.runtime.decoded_requests import DecodedRequests

pytestmark = pytest.mark.trio
LIMIT = 32 << 20
CLIENTS = 40


def frame_of(body: Message, version: int) -> memoryview:
    parts = encode_request(RequestHeader(body.API_KEY, version, 1, None), body)
    return memoryview(b"".join(bytes(part) for part in parts))[4:]  # type: ignore[arg-type]


MANY_PARTS = frame_of(DeleteGroupsRequest(groups_names=[f"g{number}" for number in range(20_000)]), 2)
BUDGET = RequestLimits().budget(ApiKey.DELETE_GROUPS, len(MANY_PARTS)).memory


def produce(partitions: int) -> memoryview:
    data = [PartitionProduceData(index=index, records=bytes(LARGE_FRAME_BYTES)) for index in range(partitions)]
    return frame_of(ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=data)]), 9)


def still_open() -> bool:
    return False


def ended() -> bool:
    return True


async def full() -> DecodedRequests:
    """The memory of the requests that are served is used up."""
    requests = DecodedRequests(RequestLimits(max_decoded_bytes=1))
    await requests.read(MANY_PARTS, still_open)
    return requests


async def test_requests_of_many_connections_take_bounded_memory() -> None:
    requests = DecodedRequests(RequestLimits(max_decoded_bytes=LIMIT))
    served = most_bytes = 0

    async def connection() -> None:
        nonlocal served, most_bytes
        request = await requests.read(MANY_PARTS, still_open)
        most_bytes = max(most_bytes, requests.taken_bytes)
        await trio.lowlevel.checkpoint()  # other requests are decoded while this one is served
        assert len(request.body.groups_names) == 20_000  # type: ignore[attr-defined]
        requests.free(ApiKey.DELETE_GROUPS, request.decoded_bytes)
        served += 1

    async with trio.open_nursery() as nursery:
        for _ in range(CLIENTS):
            nursery.start_soon(connection)
    assert 2 * BUDGET < most_bytes <= LIMIT // 2 + BUDGET < CLIENTS * BUDGET, "some at the same time, not all"
    assert (served, requests.taken_bytes) == (CLIENTS, 0)


async def test_a_request_counts_with_its_objects_once_it_is_decoded() -> None:
    requests = DecodedRequests()
    request = await requests.read(MANY_PARTS, still_open)
    assert 20_000 * 50 < requests.taken_bytes == request.decoded_bytes < BUDGET


async def test_a_request_that_cannot_be_decoded_counts_no_longer() -> None:
    requests = DecodedRequests(RequestLimits(max_elements=10_000))
    with pytest.raises(DecodeError):
        await requests.read(MANY_PARTS, still_open)
    with pytest.raises(DecodeError):
        await requests.read(MANY_PARTS[:-9], still_open)
    assert requests.taken_bytes == 0


async def test_a_request_waits_for_room_and_is_given_up_when_its_client_is_gone() -> None:
    requests = await full()
    taken_bytes = requests.taken_bytes
    async with trio.open_nursery() as nursery:

        async def read() -> None:
            with pytest.raises(ConnectionAbortedError):
                await requests.read(MANY_PARTS, ended)

        nursery.start_soon(read)
        await trio.testing.wait_all_tasks_blocked()
        assert requests.taken_bytes == taken_bytes
        requests.free(ApiKey.DELETE_GROUPS, taken_bytes)
    assert requests.taken_bytes == 0


async def test_a_produce_of_large_batches_and_a_small_request_do_not_wait() -> None:
    requests = await full()
    assert (await requests.read(produce(10), ended)).header.api_key == ApiKey.PRODUCE
    small = frame_of(DeleteGroupsRequest(groups_names=["g"]), 2)
    assert (await requests.read(small, ended)).header.api_key == ApiKey.DELETE_GROUPS


def newest(body: Message) -> memoryview:
    return frame_of(body, API[ApiKey(body.API_KEY)].max_version)


def fetch() -> FetchRequest:
    return FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition()] * 5_000)])


def update() -> UpdateMetadataRequest:
    states = [UpdateMetadataPartitionState(isr=[1], replicas=[1])] * 5_000
    return UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=states)])


def change_of_isr() -> AlterPartitionRequest:
    data = [AlterPartitionData(new_isr=[1])] * 5_000
    return AlterPartitionRequest(topics=[AlterPartitionTopic(partitions=data)])


@pytest.mark.parametrize("frame", [produce(300), newest(fetch()), newest(update()), newest(change_of_isr())])
async def test_what_keeps_partitions_going_does_not_wait_for_requests_that_wait_for_the_controller(
    frame: memoryview,
) -> None:
    requests = await full()
    taken_bytes = requests.taken_bytes
    with trio.fail_after(5):
        request = await requests.read(frame, still_open)
    assert requests.taken_bytes == taken_bytes + request.decoded_bytes > taken_bytes
    requests.free(request.header.api_key, request.decoded_bytes)
    assert requests.taken_bytes == taken_bytes


async def test_requests_of_the_controller_wait_for_one_another() -> None:
    requests = DecodedRequests(RequestLimits(max_decoded_bytes=1))
    first = await requests.read(produce(300), still_open)
    with trio.move_on_after(0.05) as waiting:
        await requests.read(produce(300), still_open)
    assert waiting.cancelled_caught and requests.taken_bytes == first.decoded_bytes


async def test_a_produce_whose_client_closed_its_connection_after_it_is_decoded() -> None:
    """Without acknowledgements a client closes its connection once it has sent everything."""
    request = await DecodedRequests().read(produce(300), ended)
    assert len(request.body.topic_data[0].partition_data) == 300  # type: ignore[attr-defined]


async def test_without_a_limit_no_request_waits() -> None:
    requests = DecodedRequests(RequestLimits(max_decoded_bytes=-1))
    for _ in range(3):
        await requests.read(MANY_PARTS, still_open)
    assert requests.taken_bytes > 3 * 20_000 * 50
