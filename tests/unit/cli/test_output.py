"""The JSON of records: the order of their fields is the order of the keys that ``docs/cli.schema.json`` lists."""

from __future__ import annotations

import json
from typing import Any

import pytest

from anabranch.cli.cluster import DeletedRecords
from anabranch.cli.groups import ListedGroup
from anabranch.cli.output import plain, print_json
from anabranch.cli.topics import MovingPartition
from anabranch.view.activity import GroupActivity, TopicActivity
from anabranch.view.autoscale import Autoscaling
from anabranch.view.cluster import BrokerCounts, ClusterCounts, LogDirUse, UnhealthyPartition
from anabranch.view.groups import AwaitedMember, DescribedGroup, GroupPartition, GroupWait
from anabranch.view.resets import Reset
from anabranch.view.resize import PlannedMove, ResizePlan
from anabranch.view.retained import RetainedRecords
from anabranch.view.topics import DescribedPartition, DescribedTopic, WithheldRecords
from tests.support.seen.cli_schema import SCHEMA

RECORDS: list[Any] = [
    AwaitedMember, Autoscaling, BrokerCounts, ClusterCounts, WithheldRecords, DeletedRecords, DescribedGroup,
    DescribedPartition, DescribedTopic, GroupActivity, GroupPartition, GroupWait, ListedGroup, LogDirUse,
    MovingPartition, PlannedMove, Reset, ResizePlan, RetainedRecords, TopicActivity, UnhealthyPartition,
]  # fmt: skip


def objects(schema: Any) -> list[list[str]]:
    """The keys of every object in a schema."""
    if isinstance(schema, list):
        return [found for one in schema for found in objects(one)]
    if not isinstance(schema, dict):
        return []
    own = [list(schema["properties"])] if "properties" in schema else []
    return own + [found for one in schema.values() for found in objects(one)]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_the_fields_of_a_record_are_the_keys_of_an_object_in_the_schema(record: Any) -> None:
    assert [name.rstrip("_") for name in record._fields] in objects(SCHEMA)


def test_records_are_objects_at_every_depth(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"rows": [Reset("t", 0, None, 5)], "pairs": [(1, {2: 3})]}
    assert plain(value) == {
        "rows": [{"topic": "t", "partition": 0, "from": None, "to": 5}],
        "pairs": [[1, {2: 3}]],
    }
    print_json(value)
    assert list(json.loads(capsys.readouterr().out)["rows"][0]) == ["topic", "partition", "from", "to"]
