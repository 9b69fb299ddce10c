"""Records as text and as JSON, in both directions."""

from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from anabranch.view.record_text import Input, InputError, TextFormat, parse_json, parse_text, to_json

RECORD = SimpleNamespace(
    topic="t", partition=1, offset=42, leader_epoch=3, timestamp=1700, key=b"k", value=b"v", headers=[("h", b"x")]
)


def test_a_line_is_a_value_or_a_key_and_a_value() -> None:
    assert parse_text(b"a:b:c", None) == Input(None, b"a:b:c")
    assert parse_text(b"a:b:c", b":") == Input(b"a", b"b:c")
    with pytest.raises(InputError, match="no key separator ':' in 'abc'"):
        parse_text(b"abc", b":")


def test_produce_accepts_the_json_that_consume_prints() -> None:
    assert parse_json(to_json(RECORD).encode()) == Input(b"k", b"v", [("h", b"x")], 1, 1700)


def test_bytes_that_are_not_text_are_read_back_from_json() -> None:
    record = SimpleNamespace(**{**vars(RECORD), "value": b"\xff\x00"})
    assert "value_base64" in json.loads(to_json(record))
    assert parse_json(to_json(record).encode()).value == b"\xff\x00"


@pytest.mark.parametrize("line", [b"{", b"[]", b'{"value": "v", "partition": "x"}', b'{"value_base64": "%"}'])
def test_a_line_that_is_no_record_is_refused(line: bytes) -> None:
    with pytest.raises(InputError):
        parse_json(line)


def test_text_shows_the_requested_parts_of_a_record() -> None:
    assert TextFormat().line(RECORD) == b"v"
    assert TextFormat(b"=", True, True, True).line(RECORD) == b"CreateTime:1700\tPartition:1\tOffset:42\th:x\tk=v"
    empty = SimpleNamespace(**{**vars(RECORD), "key": None, "value": None, "headers": []})
    assert TextFormat(b"=", show_headers=True).line(empty) == b"NO_HEADERS\tnull=null"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'{"value": "v", "key ": "k"}', "unknown field 'key '; did you mean 'key'?"),
        (b'{"key": "k"}', "no field 'value'"),
        (b'{"value": "v", "value_base64": "dg=="}', "both given"),
        (b'{"value": "v", "partition": -1}', "field 'partition': -1"),
        (b'{"value": "v", "timestamp": "now"}', "field 'timestamp': 'now'"),
        (b'{"value": "v", "headers": 5}', "field 'headers': 5"),
        (b'{"value": "v", "headers": ["h"]}', "field 'headers': 'h'"),
        (b'{"value": "\\ud800"}', "field 'value'"),
    ],
)
def test_the_field_that_is_wrong_is_named(line: bytes, expected: str) -> None:
    with pytest.raises(InputError, match=re.escape(expected)):
        parse_json(line)
