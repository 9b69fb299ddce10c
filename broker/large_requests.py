"""Serves requests that name very many partitions, topics or groups in slices. Other connections are served in between.

The items of such a request are independent of each other. A slice is a request of the same kind for the same handler,
and names some of the items. The responses are joined into one response. The request waits in its connection meanwhile,
so that the requests of a connection keep their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import trio

from anabranch.broker.deferred import Deferred
from anabranch.broker.request_context import Answer, CloseConnectionError, RequestContext
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode

LEAST_BYTES = 512
"""A smaller request is not cut: it names few partitions."""


_BYTES_AS_AN_ITEM = 64 * 1024


class _Named(NamedTuple):
    """The fields that list the items of a request and the results of its response; ``inner``: the fields of a topic."""

    asked: str
    answered: str
    asked_inner: str = ""
    answered_inner: str = ""
    at_once: int = 64
    in_turn: bool = False
    """Whether each slice is answered before the next slice starts: its deferred part is work, not waiting."""


_IN_TOPICS = _Named("topics", "topics", "partitions", "partitions")
NAMED = {
    ApiKey.PRODUCE: _Named("topic_data", "responses", "partition_data", "partition_responses"),
    ApiKey.LIST_OFFSETS: _IN_TOPICS._replace(in_turn=True),  # each may read a segment, with pauses
    ApiKey.METADATA: _Named("topics", "topics"),
    ApiKey.FIND_COORDINATOR: _Named("coordinator_keys", "coordinators"),
    ApiKey.DESCRIBE_GROUPS: _Named("groups", "groups"),
    ApiKey.DELETE_GROUPS: _Named("groups_names", "results"),
    ApiKey.DELETE_RECORDS: _IN_TOPICS._replace(at_once=4),  # each may remove and create files
    ApiKey.OFFSET_COMMIT: _IN_TOPICS._replace(at_once=1_000),  # each is a record in one batch, written as a whole
    ApiKey.OFFSET_DELETE: _IN_TOPICS._replace(at_once=1_000),
    ApiKey.OFFSET_FETCH: _Named("groups", "groups"),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _IN_TOPICS,
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: _IN_TOPICS._replace(in_turn=True),  # each may read a znode
    ApiKey.DESCRIBE_CONFIGS: _Named("resources", "results", at_once=16),  # each has dozens of keys
    ApiKey.DESCRIBE_PRODUCERS: _Named("topics", "topics", "partition_indexes", "partitions"),
}


class Slice(NamedTuple):
    """A slice of a request. ``continues``: its first topic is also the last topic of the slice before."""

    request: Any
    continues: bool = False


def cut(api_key: int, request: Any) -> list[Slice]:
    """Cut the request into slices, in order; one slice if the request is small, or if its kind is not cut."""
    named = NAMED.get(api_key)  # type: ignore[call-overload]
    if named is None:
        return [Slice(request)]
    asked = getattr(request, named.asked) or ()
    inner = named.asked_inner
    weight = sum(_weight(item) for topic in asked for item in getattr(topic, inner)) if inner else len(asked)
    if weight <= named.at_once:
        return [Slice(request)]
    if inner:
        return list(_cut_topics(named, request))
    parts = (asked[first : first + named.at_once] for first in range(0, len(asked), named.at_once))
    return [Slice(_with(request, named.asked, part)) for part in parts]


def _weight(item: Any) -> int:
    """The number of items that ``item`` counts for: more bytes of records take longer to check and to write."""
    records = getattr(item, "records", None)
    return 1 if records is None else 1 + len(records) // _BYTES_AS_AN_ITEM


def _cut_topics(named: _Named, request: Any) -> Iterator[Slice]:
    some: list[Any] = []
    room, continues = named.at_once, False
    for topic in getattr(request, named.asked):
        some.append(_with(topic, named.asked_inner, []))
        for number, item in enumerate(getattr(topic, named.asked_inner)):
            weight = _weight(item)
            if weight > room and room < named.at_once:
                continues_here = number > 0
                if not continues_here:
                    some.pop()
                yield Slice(_with(request, named.asked, some), continues)
                some, room, continues = [_with(topic, named.asked_inner, [])], named.at_once, continues_here
            getattr(some[-1], named.asked_inner).append(item)
            room -= weight
    yield Slice(_with(request, named.asked, some), continues)


def joined(api_key: int, slices: list[Slice], responses: list[Any]) -> Any:
    """Join the responses of all slices; there is at least one. Fields outside the items are from the first response.

    A topic that was deleted and created again between two slices appears twice in the response.

    If a response refuses a slice as a whole, the first such response is returned: that slice has no results.
    """
    named = NAMED[ApiKey(api_key)]
    items: list[Any] = []
    for response in responses:
        if getattr(response, "error_code", ErrorCode.NONE):
            return response
    for part, response in zip(slices, responses, strict=True):
        more = getattr(response, named.answered)
        if part.continues and _incarnation(more[0]) == _incarnation(items[-1]):
            getattr(items[-1], named.answered_inner).extend(getattr(more[0], named.answered_inner))
            more = more[1:]
        items += more
    return _with(responses[0], named.answered, items)


def _incarnation(topic: Any) -> int | None:
    """The incarnation of a topic in a response; None if the response has none."""
    found: int | None = getattr(topic, "topic_incarnation", None)
    return found


def _with(message: Any, field: str, value: Any) -> Any:
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


async def serve(handle: Callable[[RequestContext, Any], Answer], ctx: RequestContext, request: Any) -> Answer:
    """Apply a request slice by slice. ``CloseConnectionError`` is raised only after every slice was applied."""
    slices = cut(ctx.api_key, request)
    if len(slices) == 1:
        return handle(ctx, request)
    answers = []
    failure: CloseConnectionError | None = None
    for part in slices:
        try:
            answer = handle(ctx, part.request)
            if isinstance(answer, Deferred) and NAMED[ApiKey(ctx.api_key)].in_turn:
                answer = await answer.value()
            answers.append(answer)
        except CloseConnectionError as error:
            failure = failure or error
        await trio.lowlevel.checkpoint()
    if failure is not None:
        raise failure
    return None if None in answers else _once_all_are_there(ctx.api_key, slices, answers)


def _once_all_are_there(api_key: int, slices: list[Slice], answers: list[Answer]) -> Answer:
    responses: list[Any] = [None] * len(answers)
    answer: Deferred[Any] = Deferred()
    missing = len(answers)

    def arrived(index: int, response: Any) -> None:
        nonlocal missing
        responses[index] = response
        missing -= 1
        if not missing:
            answer.fill(joined(api_key, slices, responses))

    for index, found in enumerate(answers):
        if isinstance(found, Deferred):
            found.then(lambda response, index=index: arrived(index, response))  # type: ignore[misc]
        else:
            arrived(index, found)
    return answer
