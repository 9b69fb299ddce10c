"""Each name in a request is served once; the requests are made from the field tables."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.broker.net.dispatch import HANDLERS
from anabranch.controller.admin.dispatch import HANDLERS as CONTROLLER_HANDLERS
from anabranch.protocol import named_items
from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.generated.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.generated.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.named_items import ITEMS_A_STEP, NAMED, Named, Repeated, each_once, has_one_item
from anabranch.protocol.schema import Field, table_named

CASES = [(key, named) for key, found in NAMED.items() for named in found]
EACH_CASE = pytest.mark.parametrize(
    ("key", "named"), CASES, ids=[f"{ApiKey(key).name}-{named.array}" for key, named in CASES]
)

REFUSED_BY_THE_CONTROLLER = set(CONTROLLER_HANDLERS)
IN_MAPS = {ApiKey.FETCH, ApiKey.DESCRIBE_LOG_DIRS, ApiKey.CONSUMER_GROUP_POSITION}
IN_ORDER = {ApiKey.CREATE_ACLS, ApiKey.DELETE_ACLS}
OF_THE_CONTROLLER = {ApiKey.LEADER_AND_ISR, ApiKey.STOP_REPLICA, ApiKey.UPDATE_METADATA}


@pytest.mark.parametrize("key", sorted({*HANDLERS, *CONTROLLER_HANDLERS}), ids=lambda key: ApiKey(key).name)
def test_every_request_with_an_array_has_a_rule_for_repeated_names(key: ApiKey) -> None:
    has_array = any(f.is_array for f in table_named(API[key].request.TABLE).fields)
    assert key in {*NAMED, *IN_MAPS, *IN_ORDER, *OF_THE_CONTROLLER, *REFUSED_BY_THE_CONTROLLER} or not has_array


def field_of(key: int, named: Named) -> Field:
    return next(f for f in table_named(API[ApiKey(key)].request.TABLE).fields if f.name == named.array)


def items_of(key: int, named: Named, f: Field, names: list[int]) -> list[Any]:
    """Items with these names; each has an inner array with the same names."""
    if not f.fields:
        return [number if f.element_type == "int32" else f"n{number}" for number in names]
    module = __import__(API[ApiKey(key)].request.__module__, fromlist=[f.element_type])
    made = []
    for number in names:
        item = getattr(module, f.element_type)()
        for name in named.key:
            of = next(g for g in f.fields if g.name == name)
            setattr(item, name, f"n{number}" if of.type == "string" else number)
        if named.inner is not None:
            inner = next(g for g in f.fields if g.name == named.inner.array)
            setattr(item, inner.name, items_of(key, named.inner, inner, names))
        made.append(item)
    return made


def request_of(key: int, named: Named, names: list[int]) -> Any:
    return API[ApiKey(key)].request(**{named.array: items_of(key, named, field_of(key, named), names)})


def counted(key: int, request: Any) -> tuple[Repeated, int]:
    """Leave each name once; returns the repeated names and the number of steps."""
    repeated: Repeated = set()
    return repeated, sum(1 for _ in each_once(key, request, repeated))


@EACH_CASE
def test_each_name_is_left_once(key: int, named: Named) -> None:
    request = request_of(key, named, [3, 1, 3, 2, 1, 3])
    repeated, _ = counted(key, request)
    level, items, depth = named, getattr(request, named.array), 1
    while True:
        keys = [item if not level.key else tuple(getattr(item, name) for name in level.key) for item in items]
        assert len(keys) == len(set(keys)) == 3
        if level.inner is None:
            break
        level, items, depth = level.inner, getattr(items[0], level.inner.array), depth + 1
    assert repeated
    assert all(len(path) <= depth for path in repeated)
    assert counted(key, request)[0] == set()


@EACH_CASE
def test_a_request_without_repeated_names_stays_as_it_is(key: int, named: Named) -> None:
    request, same = request_of(key, named, [3, 1, 2]), request_of(key, named, [3, 1, 2])
    assert counted(key, request)[0] == set()
    assert request == same
    assert not has_one_item(key, request)
    assert has_one_item(key, request_of(key, named, [3]))
    assert has_one_item(key, API[ApiKey(key)].request())


@EACH_CASE
def test_other_tasks_run_while_names_are_compared(key: int, named: Named, monkeypatch: pytest.MonkeyPatch) -> None:
    """One name stands very often, and very many names stand once."""
    for names in ([0] * 5_000, list(range(5_000))):
        outer = request_of(key, named._replace(inner=None), names)
        _, steps = counted(key, outer)
        assert steps >= len(names) // ITEMS_A_STEP


def test_very_many_names_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_items, "KEYS_A_PASS", 4)
    request = request_of(ApiKey.DESCRIBE_GROUPS, NAMED[ApiKey.DESCRIBE_GROUPS][0], [*range(20), *range(10)])
    counted(ApiKey.DESCRIBE_GROUPS, request)
    assert sorted(request.groups) == sorted({f"n{number}" for number in range(20)})


def test_partitions_of_a_repeated_topic_are_joined_and_the_last_counts() -> None:
    def topic(*offsets: tuple[int, int]) -> OffsetCommitRequestTopic:
        partitions = [OffsetCommitRequestPartition(partition_index=p, committed_offset=o) for p, o in offsets]
        return OffsetCommitRequestTopic(name="t", partitions=partitions)

    request = OffsetCommitRequest(topics=[topic((0, 5), (1, 6)), topic((1, 7), (2, 8))])
    repeated, _ = counted(ApiKey.OFFSET_COMMIT, request)
    assert request.topics == [topic((0, 5), (1, 7), (2, 8))]
    assert repeated == {("t", 1)}


def test_null_topics_of_a_repeated_group_stand_for_all_topics() -> None:
    some = OffsetFetchRequestGroup(group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=[1])])
    request = OffsetFetchRequest(groups=[some, OffsetFetchRequestGroup(group_id="g", topics=None)])
    counted(ApiKey.OFFSET_FETCH, request)
    assert request.groups == [OffsetFetchRequestGroup(group_id="g", topics=None)]


def test_of_a_repeated_config_resource_the_last_one_counts() -> None:
    """The keys are not joined: an empty list stands for all keys."""
    named = [
        DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=keys)
        for keys in (["a"], [], ["b", "b"])
    ]
    request = DescribeConfigsRequest(resources=named)
    counted(ApiKey.DESCRIBE_CONFIGS, request)
    assert [resource.configuration_keys for resource in request.resources] == [["b"]]


def test_one_topic_in_two_layouts_is_a_repeated_topic() -> None:
    """The batches are not joined under one of the layouts."""
    data = [[PartitionProduceData(index=index)] for index in (0, 1)]
    topics = [
        TopicProduceData(name="t", layout_version=number, partition_data=found) for number, found in enumerate(data)
    ]
    assert ("t",) in counted(ApiKey.PRODUCE, ProduceRequest(topic_data=topics))[0]
