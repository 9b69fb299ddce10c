"""Decides large requests in slices, so that other decisions wait for one slice at most.

A slice is a request of the same kind with some of the entries. Entries that name the same item stay in one slice,
because they are refused together; ``gather`` puts them next to each other first. A slice is cut when its turn comes,
and its answers are joined with those before it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any, NamedTuple

from anabranch.controller.image import ClusterImage
from anabranch.controller.leaders import ELECTED_AT_ONCE
from anabranch.controller.outcome import Outcome
from anabranch.controller.reassignment import PARTITIONS_PER_WRITE, TOPICS_AT_ONCE, moving_partitions
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.elect_leaders import ReplicaElectionResult, TopicPartitions
from anabranch.protocol.generated.list_partition_reassignments import ListPartitionReassignmentsTopics
from anabranch.protocol.named_items import ITEMS_A_STEP
from anabranch.protocol.types import TopicPartition

ITEMS_AT_ONCE = 16
"""The largest number of topics or configs in a slice. Each takes a few requests to ZooKeeper."""
_KEPT_OF_A_NAME = 2
"""A name that is given twice is refused. More items of this name change nothing."""


class _Named(NamedTuple):
    """The request field with the named items, the response field with their results, and the key of an item."""

    asked: str
    answered: str
    key: Callable[[Any], Hashable]


_name = attrgetter("name")
_resource = attrgetter("resource_type", "resource_name")
_NAMED = {
    ApiKey.CREATE_TOPICS: [_Named("topics", "topics", _name)],
    ApiKey.CREATE_PARTITIONS: [_Named("topics", "results", _name)],
    ApiKey.DELETE_TOPICS: [
        _Named("topic_names", "responses", str),
        _Named("topics", "responses", attrgetter("name", "topic_id")),
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
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _OfPartitions(
        *("topics", "partition_indexes", "topics", "partitions", "name"), *(ITEMS_A_STEP, ITEMS_A_STEP)
    ),
}
_NAMED_ONCE = (ApiKey.ELECT_LEADERS, ApiKey.LIST_PARTITION_REASSIGNMENTS)
"""Of these requests, a partition that is named twice is answered once. Without a list they name all partitions."""


class Slices:
    """A request in slices, which are cut when they are needed, and the response to those that are decided."""

    def __init__(self, api_key: int, body: Any, image: ClusterImage) -> None:
        self._left = sliced(api_key, body, image)
        self._joined = Joined(api_key, body)
        self.next = next(self._left)
        """The slice to decide now."""

    def take(self, outcome: Outcome) -> Outcome | None:
        """Take the outcome of ``next``. Returns the outcome of the request after its last slice, otherwise None."""
        self._joined.add(outcome)
        following = next(self._left, None)
        if following is None:
            return self._joined.outcome()
        self.next = following
        return None


def gather(api_key: int, body: Any) -> Iterator[None]:
    """Put the items of one name next to each other, or name each partition once (``_NAMED_ONCE``). Changes ``body``.

    Yields after every ``ITEMS_A_STEP`` items.
    """
    if api_key in _NAMED_ONCE:
        yield from _name_each_once(body, _OF_PARTITIONS[ApiKey(api_key)])
    for named in _NAMED.get(ApiKey(api_key), ()):
        items = getattr(body, named.asked)
        if len(items) <= ITEMS_AT_ONCE:
            continue
        by_key: dict[Hashable, list[Any]] = {}
        for number, item in enumerate(items, 1):
            of_key = by_key.setdefault(named.key(item), [])
            if len(of_key) < _KEPT_OF_A_NAME:
                of_key.append(item)
            if number % ITEMS_A_STEP == 0:
                yield
        left, gathered = chain.from_iterable(by_key.values()), list[Any]()
        while some := list(islice(left, ITEMS_A_STEP)):
            gathered += some
            yield
        setattr(body, named.asked, gathered)


def sliced(api_key: int, body: Any, image: ClusterImage) -> Iterator[Any]:
    """The slices of a gathered request, in order. A small request, or a request of another kind, is one slice.

    A request for all partitions becomes a request that names the partitions of the image.
    """
    if of_partitions := _OF_PARTITIONS.get(ApiKey(api_key)):
        topics = getattr(body, of_partitions.asked)
        if topics is None:
            topics = _all_led(image) if api_key == ApiKey.ELECT_LEADERS else _all_moving(image)
        return _by_partitions(body, of_partitions, topics)
    for named in _NAMED.get(ApiKey(api_key), ()):
        items = getattr(body, named.asked)
        if len(items) > ITEMS_AT_ONCE:
            return (_with(body, **{named.asked: some}) for some in _together(items, named.key, ITEMS_AT_ONCE))
    return iter([body])


class Joined:
    """Joins the outcomes of the slices of a request as they are decided."""

    def __init__(self, api_key: int, body: Any) -> None:
        self._of_partitions = _OF_PARTITIONS.get(ApiKey(api_key))
        self._field = self._of_partitions.answered if self._of_partitions else None
        if named := _NAMED.get(ApiKey(api_key)):
            self._field = named[0].answered
        self._names_all = api_key == ApiKey.ELECT_LEADERS and body.topic_partitions is None
        self._whole: Outcome | None = None
        self._topics: dict[str, Any] = {}
        self._answers: list[Any] = []
        """The answers; of a request for partitions one for each topic, in the order of ``_topics``."""

    def add(self, outcome: Outcome) -> None:
        """Take the outcome of the next slice."""
        field, whole = self._field, self._whole
        if whole is None:
            whole = self._whole = replace(outcome, waits=list(outcome.waits))
        else:
            whole.waits.extend(outcome.waits)
            self._whole = replace(whole, timeout_ms=max(whole.timeout_ms, outcome.timeout_ms))
        if field is None:
            return
        answers = getattr(outcome.response, field)
        if self._of_partitions is None:
            self._answers += answers
            return
        whole.response.error_code = whole.response.error_code or outcome.response.error_code
        self._merge(_elected(answers) if self._names_all else answers, self._of_partitions)

    def _merge(self, answers: list[Any], named: _OfPartitions) -> None:
        """Merge the answers of each topic into one."""
        for answer in answers:
            known = self._topics.setdefault(getattr(answer, named.name), answer)
            if known is answer:
                self._answers.append(answer)
            else:
                getattr(known, named.answered_partitions).extend(getattr(answer, named.answered_partitions))

    def outcome(self) -> Outcome:
        """The outcome of the request, after at least one slice."""
        assert self._whole is not None
        if self._field is not None:
            setattr(self._whole.response, self._field, self._answers)
        return self._whole


def _with(body: Any, **fields: Any) -> Any:
    changed = copy.copy(body)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _together(items: list[Any], key: Callable[[Any], Hashable], at_once: int) -> Iterator[list[Any]]:
    """Slices of at most ``at_once`` keys. All items of a key are next to each other, and are in one slice."""
    some: list[Any] = []
    for number, (_, of_key) in enumerate(groupby(items, key)):
        if number and number % at_once == 0:
            yield some
            some = []
        some += of_key
    yield some


def _by_partitions(body: Any, named: _OfPartitions, topics: Iterable[Any]) -> Iterator[Any]:
    """Slices of at most ``named.at_once`` partitions and ``named.topics_at_once`` topics, in the request's order."""
    some: list[Any] = []
    count = 0
    for topic in topics:
        partitions = getattr(topic, named.asked_partitions)
        begin = 0
        while True:
            if count == named.at_once or len(some) == named.topics_at_once:
                yield _with(body, **{named.asked: some})
                some, count = [], 0
            part = partitions[begin : begin + named.at_once - count]
            is_whole = len(part) == len(partitions)  # then there is no need for a copy, which takes 5 us
            some.append(topic if is_whole else _with(topic, **{named.asked_partitions: part}))
            count += len(part)
            begin += len(part)
            if begin == len(partitions):
                break
    yield _with(body, **{named.asked: some})


def _name_each_once(body: Any, named: _OfPartitions) -> Iterator[None]:
    topics = getattr(body, named.asked)
    if topics is None:
        return
    by_topic: dict[str, tuple[Any, dict[int, None]]] = {}
    for number, topic in enumerate(topics, 1):
        _, once = by_topic.setdefault(getattr(topic, named.name), (topic, {}))
        indexes = getattr(topic, named.asked_partitions)
        for begin in range(0, len(indexes), ITEMS_A_STEP):
            once.update(dict.fromkeys(indexes[begin : begin + ITEMS_A_STEP]))
            if begin:
                yield
        if number % ITEMS_A_STEP == 0:
            yield
    gathered = []
    for number, (topic, once) in enumerate(by_topic.values(), 1):
        gathered.append(_with(topic, **{named.asked_partitions: list(once)}))
        if number % ITEMS_A_STEP == 0:
            yield
    setattr(body, named.asked, gathered)


def _all_led(image: ClusterImage) -> Iterator[TopicPartitions]:
    """The partitions that may be led, listed topic by topic as slices need them."""
    for name in sorted(image.topics):
        topic = image.topics.get(name)
        indexes = () if topic is None else sorted(topic.partitions)
        led = [index for index in indexes if image.led(TopicPartition(name, index)) is not None]
        yield TopicPartitions(topic=name, partitions=led)


def _all_moving(image: ClusterImage) -> Iterator[ListPartitionReassignmentsTopics]:
    """The partitions that are being reassigned, listed topic by topic as slices need them."""
    for name in sorted(image.topics):
        topic = image.topics.get(name)
        indexes = [] if topic is None else moving_partitions(topic.znode)
        if indexes:
            yield ListPartitionReassignmentsTopics(name=name, partition_indexes=indexes)


def _elected(answers: list[ReplicaElectionResult]) -> list[ReplicaElectionResult]:
    """The answers without the partitions that need no election."""
    found = []
    for topic in answers:
        results = [result for result in topic.partition_result if result.error_code != ErrorCode.ELECTION_NOT_NEEDED]
        if results:
            found.append(ReplicaElectionResult(topic=topic.topic, partition_result=results))
    return found
