"""Serves requests that name very many partitions, topics or groups in slices. Other connections are served in between.

The items of such a request are independent of each other. A slice is a request of the same kind for the same handler,
and names some of the items. The responses are encoded one by one into one response. The request waits in its connection
meanwhile, so that the requests of a connection keep their order.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import trio

from anabranch.broker.deferred import Deferred
from anabranch.broker.net.joined_answer import AnswerError, EncodedAnswer, JoinedAnswer, RequestSlice, Sink
from anabranch.broker.request.context import Answer, CloseConnectionError, RequestContext
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.sync_group import SyncGroupRequest
from anabranch.protocol.named_items import ITEMS_A_STEP, NAMED, REFUSED, Repeated, each_once
from anabranch.runtime.turns import pause

LEAST_BYTES = 512
"""A smaller request is not cut: it names few partitions."""
_BYTES_AS_AN_ITEM = 64 * 1024


class Cut(NamedTuple):
    """The arrays of a request that are cut, and those of its response, each from the outermost to the innermost."""

    asked: tuple[str, ...]
    answered: tuple[str, ...]
    at_once: int = 64
    in_turn: bool = False
    """Whether each slice is answered before the next slice starts, so that few responses are there at a time.

    Such requests change nothing that a client asked for, so they may end between two slices.
    """


_PARTITIONS = Cut(("topics", "partitions"), ("topics", "partitions"))
_INDEXES = Cut(("topics", "partition_indexes"), ("topics", "partitions"), in_turn=True)
CUTS: dict[int, tuple[Cut, ...]] = {
    ApiKey.PRODUCE: (Cut(("topic_data", "partition_data"), ("responses", "partition_responses")),),
    ApiKey.LIST_OFFSETS: (_PARTITIONS._replace(in_turn=True),),  # each may read a segment, with pauses
    ApiKey.METADATA: (Cut(("topics",), ("topics",), in_turn=True),),
    ApiKey.FIND_COORDINATOR: (Cut(("coordinator_keys",), ("coordinators",)),),
    ApiKey.LEAVE_GROUP: (Cut(("members",), ("members",)),),
    ApiKey.DESCRIBE_GROUPS: (Cut(("groups",), ("groups",)),),
    ApiKey.DELETE_GROUPS: (Cut(("groups_names",), ("results",)),),
    ApiKey.DELETE_RECORDS: (_PARTITIONS._replace(at_once=4),),  # each may remove and create files
    ApiKey.OFFSET_COMMIT: (_PARTITIONS._replace(at_once=500),),  # each is a record in one batch, written as a whole
    ApiKey.OFFSET_DELETE: (_PARTITIONS._replace(at_once=500),),
    ApiKey.OFFSET_FETCH: (  # each slice waits once until the coordinator is known to be the only one
        _INDEXES._replace(at_once=500),
        Cut(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions"), at_once=500, in_turn=True),
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_PARTITIONS,),
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: (_PARTITIONS._replace(in_turn=True),),  # each may read a znode
    ApiKey.DESCRIBE_CONFIGS: (Cut(("resources",), ("results",), 16, in_turn=True),),  # each has dozens of keys
    ApiKey.DESCRIBE_PRODUCERS: (_INDEXES,),
    ApiKey.CREATE_ACLS: (Cut(("creations",), ("results",)),),
    ApiKey.DELETE_ACLS: (Cut(("filters",), ("filter_results",)),),
    ApiKey.DESCRIBE_WITHHELD: (_INDEXES,),
}


MOST_BYTES_OF_ONE = 32 * _BYTES_AS_AN_ITEM
"""A smaller request is not cut if it has at most one item in each array, and if ``each_once`` knows its arrays."""


def is_whole(api_key: int, size: int) -> bool:
    """Whether a request of ``size`` bytes names nothing twice and is not cut, whatever it has."""
    return api_key not in NAMED and size < LEAST_BYTES


def may_be_cut(api_key: int, size: int, *, has_one_item: bool) -> bool:
    """Whether a request of ``size`` bytes may have to be cut, judged without a look at its items."""
    return size >= LEAST_BYTES and not (has_one_item and size < MOST_BYTES_OF_ONE and api_key in NAMED)


def cut_of(api_key: int, request: Any) -> Cut | None:
    """How the request is cut; None if it is small, or if its kind is not cut."""
    for found in CUTS.get(api_key, ()):
        if getattr(request, found.asked[0]):
            return None if _weight(found.asked, request, found.at_once) <= found.at_once else found
    return None


def _weight(path: tuple[str, ...], owner: Any, most: int) -> int:
    """The number of items that the arrays ``path`` count for, or any number above ``most``."""
    items = getattr(owner, path[0]) or ()
    count = len(items)
    if count > most:
        return count
    for item in items:
        count += _weight(path[1:], item, most) if len(path) > 1 else _more_weight(item)
        if count > most:
            break
    return count


def _more_weight(item: Any) -> int:
    """More bytes of records take longer to check and to write: the items that they count for."""
    records = getattr(item, "records", None)
    return 0 if records is None else len(records) // _BYTES_AS_AN_ITEM


class _Cutter:
    """Cuts a request. The items of a slice are taken out of the request, so that they are freed with the slice."""

    def __init__(self, found: Cut, request: Any) -> None:
        self._path = found.asked
        self._at_once = self._room = found.at_once
        self._open = [_with(request, self._path[0], [])]
        """Copies of the request, and of the items around the next item, with their items of this slice."""
        self._totals = [0] * len(self._path)
        self._continues = 0

    def run(self, request: Any) -> Iterator[RequestSlice]:
        yield from self._level(0, request)
        yield RequestSlice(self._open[0], self._continues)

    def _level(self, depth: int, owner: Any) -> Iterator[RequestSlice]:
        path, items = self._path, getattr(owner, self._path[depth])
        is_innermost = depth == len(path) - 1
        for number, item in enumerate(items):
            weight = 1 + (_more_weight(item) if is_innermost else 0)
            if weight > self._room and self._room < self._at_once:
                yield self._close(depth)
            self._room -= weight
            items[number] = None
            if is_innermost:
                getattr(self._open[depth], path[depth]).append(item)
                continue
            inner = getattr(item, path[depth + 1])
            self._totals[depth] = len(inner or ())
            self._enter(depth, _with(item, path[depth + 1], None if inner is None else []))
            if inner:
                yield from self._level(depth + 1, item)

    def _enter(self, depth: int, item: Any) -> None:
        """Add an item without its inner items, which follow."""
        getattr(self._open[depth], self._path[depth]).append(item)
        self._open[depth + 1 :] = [item]

    def _close(self, depth: int) -> RequestSlice:
        """End the slice before an item at this depth. The items around it begin the next slice."""
        done = RequestSlice(self._open[0], self._continues, tuple(self._totals[:depth]))
        around = self._open[1 : depth + 1]
        self._open = [_with(self._open[0], self._path[0], [])]
        for level, item in enumerate(around):
            self._enter(level, _with(item, self._path[level + 1], []))
        self._continues, self._room = depth, self._at_once
        return done


def cut(found: Cut, request: Any) -> Iterator[RequestSlice]:
    """The slices of a request, in order."""
    return _Cutter(found, request).run(request)


def _with(message: Any, field: str, value: Any) -> Any:
    changed = copy.copy(message)
    setattr(changed, field, value)
    return changed


async def leave_each_once(ctx: RequestContext, request: Any) -> None:
    """Leave each name once in the request, and note repeated names for a handler that refuses them."""
    repeated: Repeated = set()
    for _ in each_once(ctx.api_key, request, repeated):
        await pause()
    if ctx.api_key in REFUSED:
        ctx.repeated = repeated
    elif ctx.api_key == ApiKey.SYNC_GROUP:
        await _leave_members(ctx, request)


async def _leave_members(ctx: RequestContext, request: SyncGroupRequest) -> None:
    """Leave only the assignments of the group's members: an assignment for anybody else has no effect."""
    members = ctx.node.groups.member_ids(request.group_id)
    if members is None:
        return
    kept = []
    for number, assigned in enumerate(request.assignments, 1):
        if assigned.member_id in members:
            kept.append(assigned)
        if number % ITEMS_A_STEP == 0:
            await pause()
    request.assignments = kept


async def serve(
    handle: Callable[[RequestContext, Any], Answer],
    ctx: RequestContext,
    request: Any,
    sink: Sink,
    has_ended: Callable[[], bool],
    waits_in: Callable[[trio.CancelScope], None],
) -> Answer:
    """Apply a request slice by slice. ``CloseConnectionError`` is raised only after every slice was applied.

    Raises ``ConnectionAbortedError`` between two slices that only read, if the client has closed the connection, and
    while such a slice waits for its answer, if the scope is cancelled that ``waits_in`` was told. Slices that change
    something are all applied.
    """
    found = cut_of(ctx.api_key, request)
    if found is None:
        return handle(ctx, request)
    header = (ctx.api_key, ctx.api_version, ctx.correlation_id)
    joining = _Joining(JoinedAnswer(header, found.asked, found.answered, sink))
    failure: CloseConnectionError | None = None
    is_silent = False
    for index, part in enumerate(cut(found, request)):
        try:
            answer = handle(ctx, part.request)
            if isinstance(answer, Deferred) and found.in_turn:
                answer = await _value(answer, waits_in)
            if answer is None:
                is_silent = True
            else:
                joining.expect(index, part, answer)
        except CloseConnectionError as error:
            failure = failure or error
        if found.in_turn:
            if joining.error is not None:
                break
            if has_ended():
                raise ConnectionAbortedError("closed by the client while its request was served")
        await pause()
    if failure is not None:
        try:
            raise failure
        finally:
            del failure  # a cycle with its traceback, which holds the request
    if is_silent:
        return None
    return joining.all_expected()


async def _value(answer: Deferred[Any], waits_in: Callable[[trio.CancelScope], None]) -> Any:
    try:
        with trio.CancelScope() as scope:
            waits_in(scope)
            return await answer.value()
    finally:
        if answer.on_abandoned is not None:
            answer.on_abandoned()
    raise ConnectionAbortedError("closed by the client while its request waited")


class _Joining:
    """Waits for the responses to all slices."""

    def __init__(self, joined: JoinedAnswer) -> None:
        self._joined: JoinedAnswer | None = joined
        self._missing = 0
        self._is_complete = False
        self._whole: Deferred[Any] = Deferred()
        self.error: str | None = None

    def expect(self, index: int, part: RequestSlice, answer: Any) -> None:
        """Take the response to a slice, now or when it is there."""
        self._missing += 1
        if isinstance(answer, Deferred):
            answer.then(lambda response: self._arrived(index, part, response))
        else:
            self._arrived(index, part, answer)

    def all_expected(self) -> Answer:
        """The response to the whole; no other slice follows."""
        self._is_complete = True
        self._fill_when_complete()
        return self._whole

    def _arrived(self, index: int, part: RequestSlice, response: Any) -> None:
        self._missing -= 1
        if self._joined is not None:
            try:
                self._joined.add(index, part, response)
            except AnswerError as error:
                self.error, self._joined = str(error), None
        self._fill_when_complete()

    def _fill_when_complete(self) -> None:
        if self._is_complete and not self._missing and not self._whole.filled:
            joined, self._joined = self._joined, None
            self._whole.fill(EncodedAnswer([], 0, self.error) if joined is None else joined.finished())
