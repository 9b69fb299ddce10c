"""kafka-python's own codec reads our messages and writes messages that we read, for every API and version it has.

Its classes are found by name, and filled by our field tables. kafka-python has no inter-broker APIs. Known differences:

- all fields of authorised operations are called ``authorized_operations``, and are sets of bits; bit 31 alone is None;
- a field that Kafka renamed after 3.0 has the later name;
- an ApiVersions response with an error is read in version 0, whatever version was requested (KIP-511), so these
  responses are compared without an error.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import kafka.protocol as oracle_package
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.protocol.schema import Field
from tests.support.protocol.protocol_tables import Case, cases, full_sample, minimal_sample, present, to_object
from tests.support.protocol.protocol_tables import values as values_for

AUTHORIZED_OPERATIONS = {"authorized_operations", "topic_authorized_operations", "cluster_authorized_operations"}
RENAMED = {("OffsetCommitRequest", "generation_id"): "generation_id_or_member_epoch"}
FIRST_OWN_TAG = 10_000
"""The first of KIP-253's tags; a stock client skips them."""


def oracle_classes() -> dict[str, Any]:
    """Return kafka-python's message classes by Kafka's name."""
    found: dict[str, Any] = {}
    for info in pkgutil.walk_packages(oracle_package.__path__, oracle_package.__name__ + "."):
        if ".old" in info.name or info.name.endswith("generate_stubs"):
            continue
        for name, value in vars(importlib.import_module(info.name)).items():
            if name.endswith(("Request", "Response")) and hasattr(value, "max_version"):
                found[name] = value
    return found


ORACLES = oracle_classes()
SHARED = [case for case in cases() if case.cls.__name__ in ORACLES]


def stock(fields: Sequence[Field]) -> list[Field]:
    """Return the fields without KIP-253's."""
    return [f for f in fields if f.tag is None or f.tag < FIRST_OWN_TAG]


def their_name(cls: Any, f: Field) -> str:
    if f.name in AUTHORIZED_OPERATIONS:
        return "authorized_operations"
    return RENAMED.get((cls.__name__, f.name), f.name)


def as_mapping(value: Any, fields: Sequence[Field], version: int) -> dict[str, Any]:
    """Convert kafka-python's object to a mapping by our table."""
    found = {}
    for f in present(stock(fields), version):
        item = getattr(value, their_name(type(value), f))
        if f.name in AUTHORIZED_OPERATIONS:
            item = sum(1 << bit for bit in (item if item is not None else {31}))
            item -= (item >> 31) << 32
        elif f.fields and item is not None:
            if f.is_array:
                item = [as_mapping(each, f.fields, version) for each in item]
            else:
                item = as_mapping(item, f.fields, version)
        elif isinstance(item, memoryview | bytearray):
            item = bytes(item)
        found[f.name] = item
    return found


def as_theirs(cls: Any, fields: Sequence[Field], values: Mapping[str, Any], version: int) -> Any:
    """Convert a mapping to kafka-python's object."""
    arguments = {}
    for f in present(stock(fields), version):
        item = values[f.name]
        if f.name in AUTHORIZED_OPERATIONS:
            item = {bit for bit in range(32) if item >> bit & 1}
        elif f.fields and item is not None:
            inner = cls._struct.fields[f.name].data_class
            if f.is_array:
                item = [as_theirs(inner, f.fields, each, version) for each in item]
            else:
                item = as_theirs(inner, f.fields, item, version)
        if f.tag is None or item != f.default:
            arguments[their_name(cls, f)] = item
    return cls(version=version, **arguments)


def stock_only(fields: Sequence[Field], values: Mapping[str, Any], version: int) -> dict[str, Any]:
    """Return the mapping without KIP-253's fields."""
    found = {}
    for f in present(stock(fields), version):
        item = values[f.name]
        if f.fields and item is not None:
            if f.is_array:
                item = [stock_only(f.fields, each, version) for each in item]
            else:
                item = stock_only(f.fields, item, version)
        found[f.name] = item
    return found


def both_directions(case: Case, values: dict[str, Any]) -> None:
    oracle = ORACLES[case.cls.__name__]
    fields, version = case.table.fields, case.version
    if case.cls.__name__ == "ApiVersionsResponse":
        values = {**values, "error_code": 0}
    wire = to_object(case.cls, fields, values).encode(version)
    expected = stock_only(fields, values, version)
    assert as_mapping(oracle.decode(wire, version=version), fields, version) == expected
    written = bytes(as_theirs(oracle, fields, values, version).encode(version=version))
    ours = to_object(case.cls, fields, expected)
    assert ours.encode(version) == written
    assert case.cls.decode(written, version) == ours


def test_every_client_api_is_compared() -> None:
    inter_broker = {"LeaderAndIsr", "StopReplica", "UpdateMetadata", "ControlledShutdown", "AlterPartition"}
    own = {"ConsumerGroupPosition", "PartitionLeaderEpochsForPartitions", "TopicReaders", "DescribeWithheld"}
    records = {
        "OffsetCommitKey",
        "OffsetCommitValue",
        "GroupMetadataKey",
        "GroupMetadataValue",
        "TransactionLogKey",
        "TransactionLogValue",
        "ConsumerProtocolSubscription",
        "ConsumerProtocolAssignment",
        "StickyAssignorUserData",
    }
    missing = {case.cls.__name__ for case in cases()} - set(ORACLES) - records
    assert missing == {name + kind for name in inter_broker | own for kind in ("Request", "Response")}


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_kafka_python_agrees_with_every_field_set(case: Case) -> None:
    both_directions(case, full_sample(case.table.fields, case.version))


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_kafka_python_agrees_on_nulls_and_empty_arrays(case: Case) -> None:
    both_directions(case, minimal_sample(case.table.fields, case.version))


@pytest.mark.parametrize("case", SHARED, ids=str)
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_kafka_python_agrees_on_random_values(case: Case, data: st.DataObject) -> None:
    both_directions(case, data.draw(values_for(case.table.fields, case.version)))
