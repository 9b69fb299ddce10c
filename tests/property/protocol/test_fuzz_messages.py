"""For damaged and random bytes both codecs return the same values, or both fail. Our codec fails with DecodeError."""

from __future__ import annotations

import io
from typing import Any

import construct
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.reference import struct_for
from tests.support.protocol.protocol_tables import Case, cases, full_sample, plain, to_mapping, to_object

ALL = pytest.mark.parametrize("case", cases(), ids=str)
REFUSED = object()


def by_flat(case: Case, data: bytes) -> Any:
    try:
        return to_mapping(case.cls.decode(data, case.version), case.table.fields, case.version)
    except DecodeError:
        return REFUSED


def by_reference(case: Case, data: bytes) -> Any:
    try:
        stream = io.BytesIO(data)
        found = struct_for(case.cls.TABLE, case.version).parse_stream(stream)
        return REFUSED if stream.read() else plain(found)
    except construct.ConstructError:
        return REFUSED


@ALL
@settings(max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_both_codecs_agree_on_damaged_messages(case: Case, data: st.DataObject) -> None:
    whole = to_object(case.cls, case.table.fields, full_sample(case.table.fields, case.version))
    wire = bytearray(whole.encode(case.version))
    for _ in range(data.draw(st.integers(1, 3)) if wire else 0):
        position = data.draw(st.integers(0, len(wire) - 1))
        wire[position] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF]))
    assert by_flat(case, bytes(wire)) == by_reference(case, bytes(wire))


@ALL
@settings(max_examples=6)
@given(data=st.binary(max_size=60))
def test_both_codecs_agree_on_random_bytes(case: Case, data: bytes) -> None:
    assert by_flat(case, data) == by_reference(case, data)
