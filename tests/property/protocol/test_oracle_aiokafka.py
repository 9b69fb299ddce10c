"""aiokafka's own schemas read our messages and write messages that we read, for every API and version of aiokafka.

Its classes are found by API key and version. Values are matched by position, in the order of our field tables, because
aiokafka has other names. aiokafka may have a plain field where Kafka has a struct of one field, and a struct where
Kafka has plain fields. ``DIFFERS`` lists the schemas that are known to differ from Kafka's.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from typing import Any

import aiokafka.protocol as oracle_package
import pytest
from aiokafka.protocol.api import RequestStruct, Response
from aiokafka.protocol.types import Schema, TaggedFields
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.protocol.schema import Field, plain_fields, tagged_fields
from tests.support.protocol.protocol_tables import Case, cases, full_sample, minimal_sample, to_object
from tests.support.protocol.protocol_tables import values as values_for

Key = tuple[int, int, str]

DIFFERS: dict[Key, str] = {
    (2, 4, "Request"): "the leader epoch is an int64 (aiokafka has the class but does not use it)",
    (2, 5, "Request"): "as version 4",
    (29, 2, "Request"): "flexible in Kafka (aiokafka has the class but does not use it)",
    (29, 2, "Response"): "as the request",
}


def oracle_classes() -> dict[Key, Any]:
    """Return aiokafka's message classes by API key, version and kind."""
    found: dict[Key, Any] = {}
    for info in pkgutil.iter_modules(oracle_package.__path__):
        module = importlib.import_module(f"{oracle_package.__name__}.{info.name}")
        for value in vars(module).values():
            if not isinstance(value, type) or not isinstance(getattr(value, "API_KEY", None), int):
                continue
            for base, kind in ((RequestStruct, "Request"), (Response, "Response")):
                if issubclass(value, base) and isinstance(getattr(value, "API_VERSION", None), int):
                    found[value.API_KEY, value.API_VERSION, kind] = value
    return found


ORACLES = oracle_classes()


def key(case: Case) -> Key:
    return case.table.api_key, case.version, "Request" if case.cls.__name__.endswith("Request") else "Response"


SHARED = [case for case in cases() if key(case) in ORACLES and key(case) not in DIFFERS]


def by_position(fields: Sequence[Field], values: Mapping[str, Any], schema: Schema, version: int) -> tuple[Any, ...]:
    """Return the values as nested tuples in the shape of their schema, with empty tagged fields."""
    return _row(iter(plain_fields(fields, version)), values, schema, version)


def _row(fields: Iterator[Field], values: Mapping[str, Any], schema: Schema, version: int) -> tuple[Any, ...]:
    row: list[Any] = []
    for theirs in schema.fields:
        if theirs is TaggedFields:
            row.append({})
            continue
        if isinstance(theirs, Schema):
            row.append(_row(fields, values, theirs, version))
            continue
        f = next(fields)
        item = values[f.name]
        if f.fields and item is not None:
            if isinstance(theirs.array_of, Schema):
                item = [by_position(f.fields, each, theirs.array_of, version) for each in item]
            else:
                item = [each[plain_fields(f.fields, version)[0].name] for each in item]
        row.append(item)
    return tuple(row)


def untagged(case: Case, fields: Sequence[Field], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping with all tagged fields at their defaults, because aiokafka has none."""
    found = dict(values)
    for f in plain_fields(fields, case.version):
        if f.fields and found[f.name] is not None:
            found[f.name] = [untagged(case, f.fields, each) for each in found[f.name]]
    for f in tagged_fields(fields, case.version):
        found[f.name] = f.default
    return found


def both_directions(case: Case, values: dict[str, Any]) -> None:
    oracle = ORACLES[key(case)]
    values = untagged(case, case.table.fields, values)
    row = by_position(case.table.fields, values, oracle.SCHEMA, case.version)
    ours = to_object(case.cls, case.table.fields, values)
    wire = ours.encode(case.version)
    assert oracle.SCHEMA.encode(row) == wire
    stream = BytesIO(wire)
    read = tuple(part.decode(stream) for part in oracle.SCHEMA.fields)
    assert not stream.read()
    assert read == row
    assert case.cls.decode(oracle.SCHEMA.encode(read), case.version) == ours


@pytest.mark.parametrize("case", [case for case in cases() if key(case) in DIFFERS], ids=str)
def test_aiokafka_still_differs_where_a_difference_is_known(case: Case) -> None:
    with pytest.raises((AssertionError, TypeError)):
        both_directions(case, full_sample(case.table.fields, case.version, tagged=False))


def test_more_than_100_message_versions_are_compared() -> None:
    assert len(SHARED) > 100


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_aiokafka_agrees_with_every_field_set(case: Case) -> None:
    both_directions(case, full_sample(case.table.fields, case.version, tagged=False))


@pytest.mark.parametrize("case", SHARED, ids=str)
def test_aiokafka_agrees_on_nulls_and_empty_arrays(case: Case) -> None:
    both_directions(case, minimal_sample(case.table.fields, case.version))


@pytest.mark.parametrize("case", SHARED, ids=str)
@settings(max_examples=3, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_aiokafka_agrees_on_random_values(case: Case, data: st.DataObject) -> None:
    both_directions(case, data.draw(values_for(case.table.fields, case.version)))
