"""Requests with very many items are served in slices, and the joined response equals the response to the whole."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from anabranch.broker import large_requests
from anabranch.broker.deferred import Deferred
from anabranch.broker.large_requests import NAMED, cut, joined
from anabranch.broker.request_context import CloseConnectionError
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.schema import Field, table_named
from tests.support.broker.loop_probe import LoopProbe


class Context:
    """The part of a request's context that ``serve`` reads."""

    def __init__(self, api_key: ApiKey) -> None:
        self.api_key = api_key


def request_of(key: ApiKey, sizes: list[int]) -> Any:
    """Return a request with topics of these sizes. If the API has no topics, it has the sum of the sizes as items."""
    named = NAMED[key]
    numbers = iter(range(10_000))
    asked = _field(table_named(API[key].request.TABLE).fields, named.asked)
    if named.asked_inner:
        inner = _field(asked.fields, named.asked_inner)
        items = [_item(asked, **{named.asked_inner: [_item(inner, next(numbers)) for _ in range(n)]}) for n in sizes]
    else:
        items = [_item(asked, next(numbers)) for _ in range(sum(sizes))]
    return API[key].request(**{named.asked: items})


def _field(fields: Any, name: str) -> Field:
    found = next(f for f in fields if f.name == name)
    assert isinstance(found, Field)
    return found


def _item(f: Field, number: int = 0, **more: Any) -> Any:
    if not f.fields:
        return number if f.element_type == "int32" else str(number)
    module = __import__(f"anabranch.protocol.generated.{_modules()[f.struct_name]}", fromlist=[f.struct_name])
    made = getattr(module, f.struct_name)(**more)
    first = next((g.name for g in f.fields if g.element_type in ("int32", "string") and not g.is_array), None)
    if first is not None and not more:
        kind = type(getattr(made, first))
        setattr(made, first, number if kind is int else str(number))
    return made


def _modules() -> dict[str, str]:
    found = {}
    for key in NAMED:
        module, _, constant = API[key].request.TABLE.partition(":")
        for f in table_named(f"{module}:{constant}").fields:
            for inner in (f, *f.fields):
                if inner.struct_name:
                    found[inner.struct_name] = module
    return found


def echo(key: ApiKey, request: Any) -> Any:
    """Return a response with one item for each item of the request. The items have the response's item type."""
    named = NAMED[key]

    class Answered:
        def __init__(self, of: Any) -> None:
            self.of = of
            if named.asked_inner:
                setattr(self, named.answered_inner, [repr(item) for item in getattr(of, named.asked_inner)])

        def shown(self) -> Any:
            return getattr(self, named.answered_inner) if named.asked_inner else repr(self.of)

    return API[key].response(**{named.answered: [Answered(item) for item in getattr(request, named.asked)]})


def shown(key: ApiKey, response: Any) -> list[Any]:
    return [item.shown() for item in getattr(response, NAMED[key].answered)]


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "NAMED", NAMED)
    for key in list(NAMED):
        monkeypatch.setitem(NAMED, key, NAMED[key]._replace(at_once=3))


SIZES = [[1], [3], [4], [2, 2], [3, 3], [1, 7, 0, 2], [10], [0, 0, 5], [6, 1]]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("key", list(NAMED), ids=lambda key: key.name)
def test_the_joined_responses_of_the_slices_equal_the_response_to_the_whole(key: ApiKey, sizes: list[int]) -> None:
    request = request_of(key, sizes)
    slices = cut(key, request)
    named = NAMED[key]
    for part in slices:
        asked = getattr(part.request, named.asked)
        items = sum(len(getattr(topic, named.asked_inner)) for topic in asked) if named.asked_inner else len(asked)
        assert items <= 3
    if len(slices) > 1:
        answer = joined(key, slices, [echo(key, part.request) for part in slices])
        assert shown(key, answer) == shown(key, echo(key, request))
    else:
        assert slices[0].request is request and sum(sizes) <= 3


def test_a_topic_created_again_between_two_slices_is_answered_as_two() -> None:
    """The two topics stay apart: a response about the first topic must not count for the second."""
    key = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS
    slices = cut(key, request_of(key, [7]))
    responses = [echo(key, part.request) for part in slices]
    for response, incarnation in zip(responses, (5, 5, 9), strict=True):
        response.topics[0].topic_incarnation = incarnation
    answer = joined(key, slices, responses)
    assert [(topic.topic_incarnation, len(topic.partitions)) for topic in answer.topics] == [(5, 6), (9, 1)]


def many(count: int = 10) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index) for index in range(count)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=partitions)])


async def serve(handle: Any, request: Any, key: ApiKey = ApiKey.LIST_OFFSETS) -> Any:
    return await large_requests.serve(handle, Context(key), request)  # type: ignore[arg-type]


@pytest.mark.trio
async def test_other_tasks_run_between_two_slices() -> None:
    probe = LoopProbe()

    def handle(_ctx: Any, request: ListOffsetsRequest) -> Any:
        probe.step(sum(len(topic.partitions) for topic in request.topics))
        return echo(ApiKey.LIST_OFFSETS, request)

    with probe.watching():
        answer = await serve(handle, many())
        assert len(shown(ApiKey.LIST_OFFSETS, await answer.value())[0]) == 10
    assert (probe.steps, probe.most_steps) == (10, 3)


@pytest.mark.trio
async def test_the_response_waits_until_every_slice_is_done() -> None:
    parked: list[tuple[Deferred[Any], Any]] = []

    def handle(_ctx: Any, request: ListOffsetsRequest) -> Any:
        parked.append((Deferred(), echo(ApiKey.OFFSET_COMMIT, request)))
        return parked[-1][0]

    answer = await serve(handle, request_of(ApiKey.OFFSET_COMMIT, [10]), ApiKey.OFFSET_COMMIT)
    for deferred, response in reversed(parked):
        assert not answer.filled
        deferred.fill(response)
    with trio.fail_after(5):
        partitions = shown(ApiKey.LIST_OFFSETS, await answer.value())[0]
    assert [item.split("partition_index=")[1].split(",")[0] for item in partitions] == [str(n) for n in range(10)]


@pytest.mark.trio
async def test_all_slices_of_an_acks_0_produce_are_applied_before_an_error_closes_the_connection() -> None:
    applied = 0

    def handle(_ctx: Any, _request: Any) -> Any:
        nonlocal applied
        applied += 1
        if applied == 2:
            raise CloseConnectionError("refused")

    with pytest.raises(CloseConnectionError):
        await serve(handle, request_of(ApiKey.PRODUCE, [10]), ApiKey.PRODUCE)
    assert applied == 4
    applied = 10
    assert await serve(handle, request_of(ApiKey.PRODUCE, [10]), ApiKey.PRODUCE) is None


def test_a_slice_holds_few_bytes_of_records() -> None:
    """A slice has few bytes of records because each batch is checked and written in one piece."""
    batches = [bytes(size) for size in (10, 60_000, 70_000, 70_000, 500_000, 10, 10, 10, 10)]
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    topics = [
        TopicProduceData(name="a", partition_data=data[:4]),
        TopicProduceData(name="b", partition_data=data[4:]),
    ]
    request = ProduceRequest(topic_data=topics)
    slices = cut(ApiKey.PRODUCE, request)
    found = [[[p.index for p in topic.partition_data] for topic in part.request.topic_data] for part in slices]
    assert found == [[[0, 1]], [[2]], [[3]], [[4]], [[5, 6, 7]], [[8]]]
    assert [part.continues for part in slices] == [False, True, True, False, True, True]
    answer = joined(ApiKey.PRODUCE, slices, [echo(ApiKey.PRODUCE, part.request) for part in slices])
    assert shown(ApiKey.PRODUCE, answer) == shown(ApiKey.PRODUCE, echo(ApiKey.PRODUCE, request))


@pytest.mark.trio
async def test_deferred_work_of_slices_runs_one_slice_after_the_other() -> None:
    """Deferred work of the slices runs one slice after the other: all the work at once would block the event loop."""
    begun: list[Deferred[Any]] = []

    def handle(_ctx: Any, request: ListOffsetsRequest) -> Any:
        assert all(before.filled for before in begun)
        begun.append(Deferred())
        nursery.start_soon(work, begun[-1], request)
        return begun[-1]

    async def work(deferred: Deferred[Any], request: ListOffsetsRequest) -> None:
        await trio.lowlevel.checkpoint()
        deferred.fill(echo(ApiKey.LIST_OFFSETS, request))

    async with trio.open_nursery() as nursery:
        answer = await serve(handle, many())
        assert len(shown(ApiKey.LIST_OFFSETS, await answer.value())[0]) == 10 and len(begun) == 4


@pytest.mark.trio
async def test_an_error_for_one_whole_slice_is_the_error_of_the_response() -> None:
    """An error for a whole slice is the error of the whole response.

    For example, if the group's coordinator moves meanwhile, the slice's response has no results for its partitions.
    """
    partitions = [OffsetDeleteRequestPartition(partition_index=index) for index in range(10)]
    request = OffsetDeleteRequest(group_id="g", topics=[OffsetDeleteRequestTopic(name="t", partitions=partitions)])
    slices = 0

    def handle(_ctx: Any, request: OffsetDeleteRequest) -> Any:
        nonlocal slices
        slices += 1
        if slices != 2:
            return echo(ApiKey.OFFSET_DELETE, request)
        return OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR, topics=[])

    answer = await (await serve(handle, request, ApiKey.OFFSET_DELETE)).value()
    assert (answer.error_code, answer.topics, slices) == (ErrorCode.NOT_COORDINATOR, [], 4)
