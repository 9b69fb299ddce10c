"""Requests with very many items are served in slices, and the joined response equals the response to the whole."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from anabranch.broker.deferred import Deferred
from anabranch.broker.net import large_requests
from anabranch.broker.net.joined_answer import EncodedAnswer, RequestSlice, Sink
from anabranch.broker.net.large_requests import CUTS, Cut, cut, cut_of
from anabranch.broker.request.context import CloseConnectionError
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import SIZE_BYTES, decode_response, encode_response
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.offset_delete import OffsetDeleteResponse
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.schema import Field, table_named
from tests.support.broker.loop_probe import LoopProbe

AT_ONCE = 3
SIZES = [[1], [3], [4], [2, 2], [3, 3], [1, 7, 0, 2], [10], [0, 0, 5], [6, 1], [0] * 9]


def arrays(key: int, kind: str, path: tuple[str, ...]) -> list[Field]:
    """The fields of nested arrays of a request or response."""
    fields = table_named(getattr(API[ApiKey(key)], kind).TABLE).fields
    found = []
    for name in path:
        found.append(next(f for f in fields if f.name == name))
        fields = found[-1].fields
    return found


def versions_of(key: int, found: Cut) -> list[int]:
    api = API[ApiKey(key)]
    fields = [*arrays(key, "request", found.asked), *arrays(key, "response", found.answered)]
    return [v for v in range(api.min_version, api.max_version + 1) if all(v in f.versions for f in fields)]


CASES = [(key, found, version) for key, cuts in CUTS.items() for found in cuts for version in versions_of(key, found)]
EACH_CASE = pytest.mark.parametrize(
    ("key", "found", "version"), CASES, ids=[f"{ApiKey(key).name}-{v}-{found.asked[0]}" for key, found, v in CASES]
)


class Context:
    """The part of a request's context that ``serve`` reads."""

    def __init__(self, api_key: int, version: int) -> None:
        self.api_key, self.api_version, self.correlation_id = api_key, version, 7


def value(f: Field, number: int) -> Any:
    """A value for a plain field that tells items apart."""
    if f.type == "string":
        return f"n{number}"
    if f.type == "bool" or f.type not in ("int16", "int32", "int64"):
        return copy.copy(f.default)
    return number


def struct(key: int, kind: str, f: Field, number: int, version: int, **arrays_of: Any) -> Any:
    if not f.fields:
        return number if f.element_type == "int32" else f"n{number}"
    module = __import__(getattr(API[ApiKey(key)], kind).__module__, fromlist=[f.element_type])
    made = getattr(module, f.element_type)()
    for field in f.fields:
        if field.name in arrays_of:
            setattr(made, field.name, arrays_of[field.name])
        elif version in field.versions and field.tag is None and not field.is_array:
            code = 0 if arrays_of else number % 90  # an item with an error has no inner items
            setattr(made, field.name, value(field, number) if field.name != "error_code" else code)
        elif version in field.versions and field.is_array:
            setattr(made, field.name, [])
    return made


def request_of(key: int, found: Cut, version: int, sizes: list[int]) -> Any:
    """Return a request with topics of these sizes, in groups if there are groups; without topics, so many items."""
    fields, numbers = arrays(key, "request", found.asked), iter(range(100_000))

    def level(depth: int, count: int) -> list[Any]:
        if depth == len(fields) - 1:
            return [struct(key, "request", fields[depth], next(numbers), version) for _ in range(count)]
        inner = fields[depth + 1].name
        counts = sizes if depth == len(fields) - 2 else [len(sizes)] * 2
        return [
            struct(key, "request", fields[depth], next(numbers), version, **{inner: level(depth + 1, n)})
            for n in counts
        ]

    items = level(0, sum(sizes))
    return API[ApiKey(key)].request(**{fields[0].name: items})


def echo(key: int, found: Cut, version: int, request: Any) -> Any:
    """Return a response with one item for each item of the request, with values from it."""
    asked, answered = arrays(key, "request", found.asked), arrays(key, "response", found.answered)

    def level(depth: int, owner: Any) -> list[Any]:
        made = []
        for item in getattr(owner, asked[depth].name):
            names = [f.name for f in asked[depth].fields if f.type in ("string", "int32") and version in f.versions]
            shown = getattr(item, names[0]) if names else item
            number = int(str(shown).lstrip("n"))
            inner = {} if depth == len(asked) - 1 else {answered[depth + 1].name: level(depth + 1, item)}
            made.append(struct(key, "response", answered[depth], number, version, **inner))
        return made

    response = API[ApiKey(key)].response(**{answered[0].name: level(0, request)})
    return response


@pytest.fixture(autouse=True)
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for key, cuts in list(CUTS.items()):
        monkeypatch.setitem(CUTS, key, tuple(found._replace(at_once=AT_ONCE) for found in cuts))


def items_in(found: Cut, owner: Any, depth: int = 0) -> int:
    items = getattr(owner, found.asked[depth]) or []
    inner = depth + 1 < len(found.asked)
    return len(items) + (sum(items_in(found, item, depth + 1) for item in items) if inner else 0)


class Kept:
    """A connection that keeps the number of bytes that were counted for it."""

    def __init__(self, most_bytes: int = 1 << 20) -> None:
        self.bytes = 0
        self.noted = 0
        self.sink = Sink(most_bytes, self._count, self._note)

    def _count(self, delta: int) -> None:
        self.bytes += delta

    def _note(self, _response: Any) -> None:
        self.noted += 1


async def serve(
    handle: Any,
    key: int,
    version: int,
    request: Any,
    kept: Kept | None = None,
    has_ended: Callable[[], bool] = lambda: False,
    waits_in: Callable[[trio.CancelScope], None] = lambda scope: None,
) -> Any:
    context: Any = Context(key, version)
    answer = await large_requests.serve(handle, context, request, (kept or Kept()).sink, has_ended, waits_in)
    if isinstance(answer, Deferred):
        with trio.fail_after(5):
            return await answer.value()
    return answer


def decoded(key: int, version: int, answer: Any) -> Any:
    if not isinstance(answer, EncodedAnswer):
        return answer
    assert answer.error is None
    frame = b"".join(answer.parts)
    assert int.from_bytes(frame[:SIZE_BYTES], "big") == len(frame) - SIZE_BYTES
    return decode_response(key, version, memoryview(frame)[SIZE_BYTES:])[1]


def as_sent(key: int, version: int, response: Any) -> Any:
    parts: Any = encode_response(key, version, 7, response)
    return decode_response(key, version, memoryview(b"".join(parts))[SIZE_BYTES:])[1]


@EACH_CASE
@pytest.mark.trio
async def test_the_joined_responses_of_the_slices_equal_the_response_to_the_whole(
    key: int, found: Cut, version: int
) -> None:
    """No slice has more items than may be handled at once, whatever the shape of the request is."""
    for sizes in SIZES:
        request = request_of(key, found, version, sizes)
        whole = as_sent(key, version, echo(key, found, version, request))
        handled = []

        def handle(_ctx: Any, part: Any, found: Cut = found, handled: list[int] = handled) -> Any:
            handled.append(items_in(found, part))
            return echo(key, found, version, part)

        answer = await serve(handle, key, version, request)
        assert decoded(key, version, answer) == whole
        around = len(found.asked) - 1  # the items around those of a slice are in it, too
        assert max(handled) <= AT_ONCE + around


@EACH_CASE
@pytest.mark.trio
async def test_other_tasks_run_between_two_slices(key: int, found: Cut, version: int) -> None:
    probe = LoopProbe()

    def handle(_ctx: Any, part: Any) -> Any:
        probe.step(items_in(found, part))
        return echo(key, found, version, part)

    with probe.watching():
        await serve(handle, key, version, request_of(key, found, version, [1, 7, 0, 2]))
    assert probe.most_steps <= AT_ONCE + len(found.asked) - 1


@EACH_CASE
@pytest.mark.trio
async def test_answers_that_arrive_in_any_order_are_joined_in_order(key: int, found: Cut, version: int) -> None:
    request = request_of(key, found, version, [1, 7, 0, 2])
    whole = as_sent(key, version, echo(key, found, version, request))
    parked: list[tuple[Deferred[Any], Any]] = []
    kept = Kept()

    def handle(_ctx: Any, part: Any) -> Any:
        answer: Deferred[Any] = Deferred()
        parked.append((answer, echo(key, found, version, part)))
        if found.in_turn:
            answer.fill(parked[-1][1])
        return answer

    context: Any = Context(key, version)
    answer = await large_requests.serve(handle, context, request, kept.sink, lambda: False, lambda scope: None)
    assert isinstance(answer, Deferred)
    for deferred, response in reversed(parked):
        if not deferred.filled:
            assert not answer.filled
            deferred.fill(response)
    joined = await answer.value()
    assert decoded(key, version, joined) == whole
    assert kept.noted == len(parked) > 1
    assert 0 < kept.bytes == joined.size_bytes


@EACH_CASE
@pytest.mark.trio
async def test_an_answer_that_is_too_large_is_given_up_early(key: int, found: Cut, version: int) -> None:
    served = 0

    def handle(_ctx: Any, part: Any) -> Any:
        nonlocal served
        served += 1
        return echo(key, found, version, part)

    answer = await serve(handle, key, version, request_of(key, found, version, [30, 30]), Kept(most_bytes=20))
    assert answer.parts == []
    assert "socket.response.max.bytes" in answer.error
    if found.in_turn:
        assert served < 20


@EACH_CASE
def test_items_are_released_with_their_slice(key: int, found: Cut, version: int) -> None:
    request = request_of(key, found, version, [1, 7, 0, 2])
    slices = list(cut(CUTS[key][0]._replace(asked=found.asked, at_once=AT_ONCE), request))
    assert len(slices) > 1
    assert set(getattr(request, found.asked[0])) == {None}


@pytest.mark.trio
async def test_a_small_request_is_handled_as_it_is() -> None:
    request = many(AT_ONCE - 1)
    assert cut_of(ApiKey.LIST_OFFSETS, request) is None
    seen = []
    await serve(lambda _ctx, part: seen.append(part), ApiKey.LIST_OFFSETS, 5, request)
    assert seen == [request] and seen[0] is request


def many(count: int = 10) -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index) for index in range(count)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="n0", partitions=partitions)])


def lineages(incarnations: Iterator[int]) -> Callable[[Any, Any], Any]:
    key, version = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS, 1

    def handle(_ctx: Any, part: Any) -> Any:
        response = echo(key, CUTS[key][0], version, part)
        for topic in response.topics:
            topic.topic_incarnation = next(incarnations)
        return response

    return handle


@pytest.mark.trio
@pytest.mark.parametrize(
    ("key", "version"), [(ApiKey.LIST_OFFSETS, 5), (ApiKey.PRODUCE, 7), (ApiKey.DELETE_RECORDS, 2)]
)
async def test_only_slices_that_read_end_with_their_connection(key: ApiKey, version: int) -> None:
    applied, found = 0, CUTS[key][0]

    def handle(_ctx: Any, part: Any) -> Any:
        nonlocal applied
        applied += 1
        return echo(key, found, version, part)

    request = request_of(key, found, version, [30, 30])
    if found.in_turn:
        with pytest.raises(ConnectionAbortedError):
            await serve(handle, key, version, request, has_ended=lambda: applied == 2)
        assert applied == 2
    else:
        await serve(handle, key, version, request, has_ended=lambda: applied == 2)
        assert applied > 2


@pytest.mark.trio
async def test_a_slice_that_waits_ends_with_its_connection() -> None:
    key, abandoned = ApiKey.METADATA, 0

    def handle(_ctx: Any, _part: Any) -> Any:
        def abandon() -> None:
            nonlocal abandoned
            abandoned += 1

        answer: Deferred[Any] = Deferred()
        answer.on_abandoned = abandon
        return answer

    with pytest.raises(ConnectionAbortedError):
        await serve(handle, key, 9, request_of(key, CUTS[key][0], 9, [100]), waits_in=trio.CancelScope.cancel)
    assert abandoned == 1


@pytest.mark.trio
async def test_a_topic_created_again_between_two_slices_ends_the_request() -> None:
    """A response about the first topic must not count for the second."""
    key = ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS
    request = request_of(key, CUTS[key][0], 1, [7])
    answer = await serve(lineages(iter([5, 5, 9, 9])), key, 1, request)
    assert "deleted and created again" in answer.error
    answer = await serve(lineages(iter([5, 5, 5, 5])), key, 1, request_of(key, CUTS[key][0], 1, [7]))
    assert answer.error is None


@pytest.mark.trio
async def test_a_handler_that_answers_too_few_items_ends_the_request() -> None:
    """The number of items stands in front of them, so a missing item would change the meaning of the others."""
    key = ApiKey.LIST_OFFSETS
    found = CUTS[key][0]

    def handle(_ctx: Any, part: Any) -> Any:
        response = echo(key, found, 5, part)
        response.topics[0].partitions.pop()
        return response

    answer = await serve(handle, key, 5, many())
    assert "answered" in answer.error


@pytest.mark.trio
async def test_all_slices_of_an_acks_0_produce_are_applied_before_an_error_closes_the_connection() -> None:
    applied, key = 0, ApiKey.PRODUCE
    found = CUTS[key][0]

    def handle(_ctx: Any, _request: Any) -> Any:
        nonlocal applied
        applied += 1
        if applied == 2:
            raise CloseConnectionError("refused")

    with pytest.raises(CloseConnectionError):
        await serve(handle, key, 9, request_of(key, found, 9, [10]))
    assert applied == 4
    applied = 10
    assert await serve(handle, key, 9, request_of(key, found, 9, [10])) is None


def test_a_slice_holds_few_bytes_of_records() -> None:
    """A slice has few bytes of records because each batch is checked and written in one piece."""
    batches = [bytes(size) for size in (10, 60_000, 70_000, 70_000, 500_000, 10, 10, 10, 10)]
    data = [PartitionProduceData(index=index, records=batch) for index, batch in enumerate(batches)]
    topics = [
        TopicProduceData(name="a", partition_data=data[:4]),
        TopicProduceData(name="b", partition_data=data[4:]),
    ]
    slices = list(cut(CUTS[ApiKey.PRODUCE][0], ProduceRequest(topic_data=topics)))
    found = [
        [(topic.name, [p.index for p in topic.partition_data]) for topic in part.request.topic_data] for part in slices
    ]
    assert found == [
        [("a", [0, 1])],
        [("a", [2])],
        [("a", [3]), ("b", [])],
        [("b", [4])],
        [("b", [5, 6, 7])],
        [("b", [8])],
    ]
    assert [(part.continues, part.unfinished) for part in slices] == [
        (0, (4,)),
        (1, (4,)),
        (1, (5,)),
        (1, (5,)),
        (1, (5,)),
        (1, ()),
    ]


@pytest.mark.trio
async def test_deferred_work_of_slices_runs_one_slice_after_the_other() -> None:
    """Deferred work of the slices runs one slice after the other: all the work at once would block the event loop."""
    begun: list[Deferred[Any]] = []
    key = ApiKey.LIST_OFFSETS

    def handle(_ctx: Any, request: ListOffsetsRequest) -> Any:
        assert all(before.filled for before in begun)
        begun.append(Deferred())
        nursery.start_soon(work, begun[-1], request)
        return begun[-1]

    async def work(deferred: Deferred[Any], request: ListOffsetsRequest) -> None:
        await trio.lowlevel.checkpoint()
        deferred.fill(echo(key, CUTS[key][0], 5, request))

    async with trio.open_nursery() as nursery:
        answer = await serve(handle, key, 5, many())
        assert len(decoded(key, 5, answer).topics[0].partitions) == 10 and len(begun) == 4


@pytest.mark.trio
async def test_an_error_for_one_whole_slice_is_the_error_of_the_response() -> None:
    """A slice that is refused as a whole has no results, so the response must not look like a success."""
    key = ApiKey.OFFSET_DELETE
    found, kept = CUTS[key][0], Kept()
    codes = iter([ErrorCode.NONE, ErrorCode.NONE, ErrorCode.NOT_COORDINATOR, ErrorCode.GROUP_ID_NOT_FOUND])

    def handle(_ctx: Any, request: Any) -> Any:
        code = next(codes)
        return echo(key, found, 0, request) if code is ErrorCode.NONE else OffsetDeleteResponse(error_code=code)

    answer = await serve(handle, key, 0, request_of(key, found, 0, [10]), kept)
    assert answer == OffsetDeleteResponse(error_code=ErrorCode.NOT_COORDINATOR)
    assert kept.bytes == 0


GROUPS = CUTS[ApiKey.OFFSET_FETCH][1]


async def fetched(sizes: list[int], refused: Callable[[int, int], bool], kept: Kept) -> Any:
    """Offsets of two groups with topics of these sizes. ``refused``: by number of the group and turn of the group."""
    key, version, turns = ApiKey.OFFSET_FETCH, 8, Counter[str]()
    request = request_of(key, GROUPS, version, sizes)
    numbers = {group.group_id: number for number, group in enumerate(request.groups)}
    whole = echo(key, GROUPS, version, request)

    def handle(_ctx: Any, part: Any) -> Any:
        response = echo(key, GROUPS, version, part)
        for group in response.groups:
            if refused(numbers[group.group_id], turns[group.group_id]):
                group.topics, group.error_code = [], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            turns[group.group_id] += 1
        return response

    answer = await serve(handle, key, version, request, kept)
    for group in whole.groups:
        if refused(numbers[group.group_id], 0):
            group.topics, group.error_code = [], ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return answer, as_sent(key, version, whole)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("last_turn", [0, 1, 100])
@pytest.mark.parametrize("which", [{0}, {1}, {0, 1}])
@pytest.mark.trio
async def test_a_group_that_is_refused_is_answered_without_topics(
    sizes: list[int], last_turn: int, which: set[int]
) -> None:
    """A coordinator that is loading refuses the group. It may know the group when the next slice is served."""
    kept = Kept()
    answer, whole = await fetched(sizes, lambda group, turn: group in which and turn <= last_turn, kept)
    assert decoded(ApiKey.OFFSET_FETCH, 8, answer) == whole
    assert kept.bytes == getattr(answer, "size_bytes", 0)


@pytest.mark.trio
async def test_a_group_that_is_refused_after_its_first_slice_ends_the_request() -> None:
    answer, _ = await fetched([10], lambda group, turn: group == 0 and turn > 0, Kept())
    assert "refused after another part was answered" in answer.error


def test_a_request_without_items_is_one_slice() -> None:
    assert list(cut(CUTS[ApiKey.LIST_OFFSETS][0], ListOffsetsRequest(topics=[]))) == [
        RequestSlice(ListOffsetsRequest(topics=[]))
    ]
