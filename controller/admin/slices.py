"""Requests that name much are decided in slices, so that what else there is to decide waits for one slice at most.

A slice is a request of the same kind that names some of it. Entries that name the same thing stay together, for they
are refused together. The answers of the slices are put together to one.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from controller.admin.outcome import Outcome
from protocol.api_keys import ApiKey
from protocol.generated.alter_partition_reassignments import ReassignableTopic

ITEMS_AT_ONCE = 16
"""Topics or configs of a slice; each takes a few requests to ZooKeeper."""
PARTITIONS_AT_ONCE = 127
"""Reassigned partitions of a slice; they are one multi together with the topic."""

Slices: TypeAlias = deque[Any]


class _Named(NamedTuple):
    """Where a request names what it is about, and where its response answers."""

    asked: str
    answered: str
    key: Callable[[Any], Hashable]


def _name(item: Any) -> Hashable:
    return item.name  # type: ignore[no-any-return]


def _resource(item: Any) -> Hashable:
    return (item.resource_type, item.resource_name)


_NAMED = {
    ApiKey.CREATE_TOPICS: [_Named("topics", "topics", _name)],
    ApiKey.CREATE_PARTITIONS: [_Named("topics", "results", _name)],
    ApiKey.DELETE_TOPICS: [
        _Named("topic_names", "responses", lambda name: name),
        _Named("topics", "responses", lambda topic: (topic.name, topic.topic_id)),
    ],
    ApiKey.ALTER_CONFIGS: [_Named("resources", "responses", _resource)],
    ApiKey.INCREMENTAL_ALTER_CONFIGS: [_Named("resources", "responses", _resource)],
}


def sliced(api_key: int, body: Any) -> Slices:
    """The request in slices, in order; the request itself where it is small, or not of a kind that is sliced."""
    if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        return deque(_of_reassignments(body))
    for named in _NAMED.get(ApiKey(api_key), ()):
        items = getattr(body, named.asked)
        if len(items) > ITEMS_AT_ONCE:
            return deque(_with(body, **{named.asked: some}) for some in _together(items, named.key, ITEMS_AT_ONCE))
    return deque([body])


def joined(api_key: int, outcomes: list[Outcome]) -> Outcome:
    """One outcome for all slices of a request. There is at least one."""
    if len(outcomes) == 1:
        return outcomes[0]
    response = outcomes[0].response
    if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        field = "responses"
    else:
        field = _NAMED[ApiKey(api_key)][0].answered
    answers = [answer for outcome in outcomes for answer in getattr(outcome.response, field)]
    if api_key == ApiKey.ALTER_PARTITION_REASSIGNMENTS:
        answers = _by_topic(answers)
        response.error_code = next((found.response.error_code for found in outcomes if found.response.error_code), 0)
    waits = [wait for outcome in outcomes for wait in outcome.waits]
    return Outcome(_with(response, **{field: answers}), waits, max(outcome.timeout_ms for outcome in outcomes))


def _with(body: Any, **fields: Any) -> Any:
    changed = copy.copy(body)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _together(items: list[Any], key: Callable[[Any], Hashable], at_once: int) -> Iterable[list[Any]]:
    """Slices of ``at_once`` keys, with all items of a key in one."""
    by_key: dict[Hashable, list[Any]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    groups = iter(by_key.values())
    while some := list(islice(groups, at_once)):
        yield [item for group in some for item in group]


def _of_reassignments(body: Any) -> Iterable[Any]:
    if sum(len(topic.partitions) for topic in body.topics) <= PARTITIONS_AT_ONCE:
        yield body
        return
    some: list[ReassignableTopic] = []
    count = 0
    for topic in body.topics:
        for first in range(0, max(len(topic.partitions), 1), PARTITIONS_AT_ONCE):
            part = topic.partitions[first : first + PARTITIONS_AT_ONCE]
            if some and count + len(part) > PARTITIONS_AT_ONCE:
                yield _with(body, topics=some)
                some, count = [], 0
            some.append(_with(topic, partitions=part))
            count += len(part)
    yield _with(body, topics=some)


def _by_topic(answers: list[Any]) -> list[Any]:
    """One answer for each topic."""
    found: dict[str, Any] = {}
    for answer in answers:
        known = found.setdefault(answer.name, answer)
        if known is not answer:
            known.partitions += answer.partitions
    return list(found.values())
