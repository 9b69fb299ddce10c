"""The items of requests that are named, such as topics, partitions and groups, and how a repeated name is served.

A short request may repeat one name very often, and an answer to each repetition may be long. So each name is answered
once. Kafka does the same where it puts the items in a map; elsewhere it answers every repetition. If the items differ
in other fields, the last one counts, as in Kafka's maps. ``REFUSED`` has the requests in which Kafka, or this project,
refuses a repeated name. Requests that the controller decides are not here: it refuses a repeated name itself.
Nor are requests whose handlers put the items in maps anyway (Fetch, DescribeLogDirs, ConsumerGroupPosition), requests
that the controller sends, and CreateAcls and DeleteAcls, whose results have no names but the order of the request.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Mapping
from operator import attrgetter
from typing import Any, Final, NamedTuple

from anabranch.protocol.api_keys import ApiKey

ITEMS_A_STEP: Final = 1_000
KEYS_A_PASS: Final = 1 << 17
"""The names that are kept in mind at once take a bounded amount of memory, some 16 MB."""


_GONE: Final[Any] = object()
"""Stands for an item whose name is repeated later in its array."""


class Named(NamedTuple):
    """An array of named items. ``key``: the fields that name an item; empty for an array of plain values.

    ``inner`` is an array in each item. If ``joins``, the inner arrays of items with one name are joined.
    """

    array: str
    key: tuple[str, ...] = ()
    inner: Named | None = None
    joins: bool = True


def _topics(partitions: str, *key: str, topic: str = "name") -> Named:
    return Named("topics", (topic,), Named(partitions, key))


_BY_NAME: Final = _topics("partitions", "partition_index")
_BY_INDEX: Final = _topics("partition_indexes")
NAMED: Final[Mapping[int, tuple[Named, ...]]] = {
    ApiKey.PRODUCE: (Named("topic_data", ("name",), Named("partition_data", ("index",))),),
    ApiKey.LIST_OFFSETS: (_BY_NAME,),
    ApiKey.METADATA: (Named("topics", ("topic_id", "name")),),
    ApiKey.OFFSET_COMMIT: (_BY_NAME,),
    ApiKey.OFFSET_FETCH: (_BY_INDEX, Named("groups", ("group_id",), _BY_INDEX)),
    ApiKey.FIND_COORDINATOR: (Named("coordinator_keys"),),
    ApiKey.JOIN_GROUP: (Named("protocols", ("name",)),),
    ApiKey.LEAVE_GROUP: (Named("members", ("member_id", "group_instance_id")),),
    ApiKey.SYNC_GROUP: (Named("assignments", ("member_id",)),),
    ApiKey.DESCRIBE_GROUPS: (Named("groups"),),
    ApiKey.LIST_GROUPS: (Named("states_filter"),),
    ApiKey.DELETE_RECORDS: (_BY_NAME,),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (_topics("partitions", "partition", "leader_epoch", topic="topic"),),
    ApiKey.DESCRIBE_CONFIGS: (
        Named("resources", ("resource_type", "resource_name"), Named("configuration_keys"), joins=False),
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (Named("dirs", ("path",), Named("topics", ("name",), Named("partitions"))),),
    ApiKey.DELETE_GROUPS: (Named("groups_names"),),
    ApiKey.OFFSET_DELETE: (_BY_NAME,),
    ApiKey.DESCRIBE_PRODUCERS: (_BY_INDEX,),
    ApiKey.PARTITION_LEADER_EPOCHS_FOR_PARTITIONS: (
        Named("topics", ("name", "topic_incarnation"), Named("partitions", ("partition_index",))),
    ),
    ApiKey.TOPIC_READERS: (_BY_INDEX, _topics("questions", "partition_index"), Named("group_ids")),
    ApiKey.DESCRIBE_WITHHELD: (_BY_INDEX,),
}
REFUSED: Final = frozenset({ApiKey.PRODUCE, ApiKey.LIST_OFFSETS})
"""Requests whose repeated partitions are refused with INVALID_REQUEST: a batch that stands beside another batch for the
same partition must not be dropped, and Kafka refuses such a ListOffsets."""

Repeated = set[tuple[Hashable, ...]]
"""Names that stand more than once, each with the names of the items around it."""


def each_once(api_key: int, request: Any, repeated: Repeated) -> Generator[None, None, None]:
    """Leave each name once in ``request``, and add the names that were repeated to ``repeated``. Yields in between."""
    for named in NAMED.get(api_key, ()):
        yield from _each_once(named, request, (), repeated)


def has_one_item(api_key: int, request: Any) -> bool:
    """Whether the request has at most one item in each array, so that no name can be repeated."""
    for named in NAMED.get(api_key, ()):
        owner: Any = request
        found: Named | None = named
        while found is not None:
            items = getattr(owner, found.array)
            if not items:
                break
            if len(items) > 1:
                return False
            owner, found = items[0], found.inner
    return True


def _each_once(named: Named, owner: Any, path: tuple[Hashable, ...], repeated: Repeated) -> Generator[None, None, None]:
    items = getattr(owner, named.array)
    if not items:
        return
    key_of = attrgetter(*named.key) if named.key else None
    if len(items) > 1:
        passes = 1 + len(items) // KEYS_A_PASS
        gone = 0
        for turn in range(passes):
            gone += yield from _join_repeated(named, items, key_of, path, repeated, turn, passes)
        if gone:
            items[:] = [item for item in items if item is not _GONE]
    if named.inner is not None:
        assert key_of is not None
        for number, item in enumerate(items, 1):
            yield from _each_once(named.inner, item, (*path, key_of(item)), repeated)
            if number % ITEMS_A_STEP == 0:
                yield


def _join_repeated(
    named: Named,
    items: list[Any],
    key_of: Callable[[Any], Hashable] | None,
    path: tuple[Hashable, ...],
    repeated: Repeated,
    turn: int,
    passes: int,
) -> Generator[None, None, int]:
    """Replace all but the last of the items with one name by ``_GONE``; returns their number.

    Each pass looks at a part of the names.
    """
    last: dict[Hashable, int] = {}
    gone = 0
    for number, item in enumerate(items):
        if number % ITEMS_A_STEP == ITEMS_A_STEP - 1:
            yield
        if item is _GONE:
            continue
        key = item if key_of is None else key_of(item)
        if passes > 1 and hash(key) % passes != turn:
            continue
        before = last.get(key)
        if before is not None:
            items[number] = _joined(named, items[before], item, (*path, key), repeated)
            items[before] = _GONE
            gone += 1
        last[key] = number
    return gone


def _joined(named: Named, before: Any, item: Any, path: tuple[Hashable, ...], repeated: Repeated) -> Any:
    """The item that counts for two with one name. A null inner array stands for everything."""
    if named.inner is None or not named.joins:
        repeated.add(path)
        return item
    array = named.inner.array
    if any(getattr(before, name) != getattr(item, name) for name in item.FIELDS if name != array):
        repeated.add(path)
    left, right = getattr(before, array), getattr(item, array)
    if left is None or right is None:
        setattr(item, array, None)
    else:
        left += right
        setattr(item, array, left)
    return item
