"""The generated codec agrees with the reference codec for every message and version, on values by the field tables."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.broker.log.slices import at_once
from anabranch.protocol import steps
from anabranch.protocol.message_limits import response_budget
from anabranch.protocol.reference import struct_for
from anabranch.protocol.types import Part
from tests.support.protocol.protocol_tables import (
    Case,
    cases,
    full_sample,
    minimal_sample,
    plain,
    to_mapping,
    to_object,
    values,
)

ALL = pytest.mark.parametrize("case", cases(), ids=str)


def check(case: Case, mapping: dict[str, object]) -> None:
    reference = struct_for(case.cls.TABLE, case.version)
    wire = reference.build(mapping)
    decoded = case.cls.decode(wire, case.version)
    assert to_mapping(decoded, case.table.fields, case.version) == mapping
    made = to_object(case.cls, case.table.fields, mapping)
    assert made.encode(case.version) == wire
    assert made == decoded
    assert plain(reference.parse(wire)) == mapping
    in_steps = at_once(steps.decode_prefix(case.cls, memoryview(wire), case.version, response_budget(len(wire))))
    assert in_steps == (decoded, len(wire))
    parts: list[Part] = []
    at_once(steps.encode_into(made, case.version, bytearray(), parts))
    assert b"".join(bytes(part) for part in parts) == wire  # type: ignore[arg-type]


@ALL
@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(data=st.data())
def test_both_codecs_agree_on_random_values(case: Case, data: st.DataObject) -> None:
    check(case, data.draw(values(case.table.fields, case.version)))


@ALL
def test_both_codecs_agree_with_every_field_set(case: Case) -> None:
    check(case, full_sample(case.table.fields, case.version))


@ALL
def test_both_codecs_agree_on_nulls_and_empty_arrays(case: Case) -> None:
    check(case, minimal_sample(case.table.fields, case.version))
