"""Decides large requests in slices, so that other decisions wait for one slice at most.

A slice is a request of the same kind with some of the entries. Entries that name the same item stay in one slice,
because they are refused together. The answers of all slices are joined.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from typing import Any, NamedTuple

from anabranch.controller.image import ClusterImage
from anabranch.controller.leaders import ELECTED_AT_ONCE
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import PARTITIONS_PER_WRITE, TOPICS_AT_ONCE
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, ReplicaElectionResult, TopicPartitions
from anabranch.protocol.types import TopicPartition

ITEMS_AT_ONCE = 16
"""The largest number of topics or configs in a slice. Each takes a few requests to ZooKeeper."""


class _Named(NamedTuple):
    """The request field with the named items, the response field with their results, and the key of an item."""

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


class _OfPartitions(NamedTuple):
    """The fields of a request for partitions by topic, the fields of its response, and the limits of a slice."""

    asked: str
    asked_partitions: str
    answered: str
    answered_partitions: str
    name: str
    """The field with the topic name, in request and response."""
    at_once: int
    topics_at_once: int


_OF_PARTITIONS = {
    ApiKey.ALTER_PARTITION: _OfPartitions(
        *("topics", "partitions", "topics", "partitions", "name"), *(ELECTED_AT_ONCE, ELECTED_AT_ONCE)
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _OfPartitions(
        *("topics", "partitions", "responses", "partitions", "name"), *(PARTITIONS_PER_WRITE, TOPICS_AT_ONCE)
    ),
    ApiKey.ELECT_LEADERS: _OfPartitions(
        *("topic_partitions", "partitions", "replica_election_results", "partition_result", "topic"),
        *(ELECTED_AT_ONCE, ELECTED_AT_ONCE),
    ),
}


class Slices:
    """A request in slices, and the outcomes of those that are decided."""

    def __init__(self, api_key: int, body: Any, image: ClusterImage) -> None:
        self._api_key, self._body = api_key, body
        self._left = sliced(api_key, body, image)
        self._outcomes: list[Outcome] = []

    @property
    def next(self) -> Any:
        """The slice to decide now."""
        return self._left[0]

    def take(self, outcome: Outcome) -> Outcome | None:
        """Take the outcome of ``next``. Returns the outcome of the request after its last slice, otherwise None."""
        self._left.popleft()
        self._outcomes.append(outcome)
        return None if self._left else joined(self._api_key, self._body, self._outcomes)


def sliced(api_key: int, body: Any, image: ClusterImage) -> deque[Any]:
    """The slices of a request, in order. A small request, or a request of another kind, is one slice.

    An ElectLeaders request for all partitions becomes a request that names the partitions of the image.
    """
    if of_partitions := _OF_PARTITIONS.get(ApiKey(api_key)):
        if api_key == ApiKey.ELECT_LEADERS:
            body = _with(body, topic_partitions=_each_once(body, image))
        return deque(_by_partitions(body, of_partitions))
    for named in _NAMED.get(ApiKey(api_key), ()):
        items = getattr(body, named.asked)
        if len(items) > ITEMS_AT_ONCE:
            return deque(_with(body, **{named.asked: some}) for some in _together(items, named.key, ITEMS_AT_ONCE))
    return deque([body])


def joined(api_key: int, body: Any, outcomes: list[Outcome]) -> Outcome:
    """Join the outcomes of all slices of a request. There is at least one."""
    response = outcomes[0].response
    if of_partitions := _OF_PARTITIONS.get(ApiKey(api_key)):
        field = of_partitions.answered
        answers = _by_topic([answer for found in outcomes for answer in getattr(found.response, field)], of_partitions)
        response.error_code = next((found.response.error_code for found in outcomes if found.response.error_code), 0)
        if api_key == ApiKey.ELECT_LEADERS and body.topic_partitions is None:
            answers = _elected(answers)
    elif len(outcomes) == 1:
        return outcomes[0]
    else:
        field = _NAMED[ApiKey(api_key)][0].answered
        answers = [answer for outcome in outcomes for answer in getattr(outcome.response, field)]
    waits = [wait for outcome in outcomes for wait in outcome.waits]
    return Outcome(_with(response, **{field: answers}), waits, max(outcome.timeout_ms for outcome in outcomes))


def _with(body: Any, **fields: Any) -> Any:
    changed = copy.copy(body)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _together(items: list[Any], key: Callable[[Any], Hashable], at_once: int) -> Iterable[list[Any]]:
    """Slices of at most ``at_once`` keys. All items of a key are in one slice."""
    by_key: dict[Hashable, list[Any]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    groups = iter(by_key.values())
    while some := list(islice(groups, at_once)):
        yield [item for group in some for item in group]


def _by_partitions(body: Any, named: _OfPartitions) -> Iterable[Any]:
    """Slices of at most ``named.at_once`` partitions and ``named.topics_at_once`` topics, in the request's order."""
    some: list[Any] = []
    count = 0
    for topic in getattr(body, named.asked):
        partitions = getattr(topic, named.asked_partitions)
        begin = 0
        while True:
            if count == named.at_once or len(some) == named.topics_at_once:
                yield _with(body, **{named.asked: some})
                some, count = [], 0
            part = partitions[begin : begin + named.at_once - count]
            some.append(_with(topic, **{named.asked_partitions: part}))
            count += len(part)
            begin += len(part)
            if begin == len(partitions):
                break
    yield _with(body, **{named.asked: some})


def _by_topic(answers: list[Any], named: _OfPartitions) -> list[Any]:
    """Merge the answers of each topic into one."""
    found: dict[str, Any] = {}
    for answer in answers:
        known = found.setdefault(getattr(answer, named.name), answer)
        if known is not answer:
            getattr(known, named.answered_partitions).extend(getattr(answer, named.answered_partitions))
    return list(found.values())


def _each_once(body: ElectLeadersRequest, image: ClusterImage) -> list[TopicPartitions]:
    """The partitions that an ElectLeaders request names, or all. Each partition appears once, so it is in one slice."""
    if body.topic_partitions is None:
        asked = (led[0] for led in image.led_partitions())
    else:
        asked = (TopicPartition(topic.topic, index) for topic in body.topic_partitions for index in topic.partitions)
    by_topic: dict[str, dict[int, None]] = {}
    for tp in asked:
        by_topic.setdefault(tp.topic, {})[tp.partition] = None
    return [TopicPartitions(topic=name, partitions=list(indexes)) for name, indexes in by_topic.items()]


def _elected(answers: list[ReplicaElectionResult]) -> list[ReplicaElectionResult]:
    """The answers without the partitions that need no election."""
    found = []
    for topic in answers:
        results = [result for result in topic.partition_result if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if results:
            found.append(ReplicaElectionResult(topic=topic.topic, partition_result=results))
    return found
