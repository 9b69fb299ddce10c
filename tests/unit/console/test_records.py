"""Bytes as text for people, and the partitions that a key can be in."""

from __future__ import annotations

import uuid

import pytest

from anabranch import TopicDescription
from anabranch.client.cluster import PartitionInfo
from anabranch.console.json_text import indented
from anabranch.console.records import SHOWN_BYTES, parse_partitions, places_of, text_of
from anabranch.protocol.key_placement import place, positive_hash


@pytest.mark.parametrize(
    ("data", "how", "shown"),
    [
        (None, "text", "null"),
        (b"", "text", ""),
        ("grüße".encode(), "text", "grüße"),
        (b"\xff\x00", "text", "hex ff 00"),
        (b"a\x1b[31mb", "text", "a\\u001b[31mb"),
        (b'{"a":1}', "json", '{\n  "a": 1\n}'),
        (b"no json", "json", "no json"),
        (
            b'{"a": [], "b": {}, "a": [1.10, 1e400, -0]}',
            "json",
            '{\n  "a": [],\n  "b": {},\n  "a": [\n    1.10,\n    1e400,\n    -0\n  ]\n}',
        ),
        (b" [1]", "json", "[\n  1\n]"),
        (b'["gr\\u00fc\\u00dfe \\ud800 \\u202e\\n"]', "json", '[\n  "gr\u00fc\u00dfe \\ud800 \\u202e\\n"\n]'),
        (b"[NaN]", "json", "[NaN]"),
        (b"[1,]", "json", "[1,]"),
        (b'{"a":1} b', "json", '{"a":1} b'),
        (b"[\xff]", "json", "hex 5b ff 5d"),
        (b"[" * 1_500, "json", "[" * 1_500),
        (b"ab", "hex", "61 62"),
    ],
)
def test_bytes_are_shown_as_text_json_or_hex(data: bytes | None, how: str, shown: str) -> None:
    assert text_of(data, how) == shown


def test_deep_json_is_cut_when_its_text_gets_long() -> None:
    deep = b"[" * 400 + b"1," * 20_000 + b"1" + b"]" * 400
    shown = text_of(deep, "json")
    assert shown.startswith("[\n  [\n    [") and shown.endswith(" … 40,801 bytes in all")
    assert len(shown) < 2 * SHOWN_BYTES
    assert len(indented(deep, SHOWN_BYTES) or "") < 2 * SHOWN_BYTES, "the whole text has 16 MB"


@pytest.mark.parametrize("how", ["text", "json", "hex"])
def test_a_huge_value_is_cut(how: str) -> None:
    shown = text_of(b"x" * 100_000_000, how)
    assert len(shown) < 4 * SHOWN_BYTES and shown.endswith("99,998,000 more bytes")


def test_a_character_cut_in_two_is_left_out() -> None:
    assert text_of("ü".encode() * SHOWN_BYTES, "text").startswith("üü")
    assert text_of(b"x" + "ü".encode() * SHOWN_BYTES, "text").startswith("xüü")


def test_partitions_are_given_as_numbers_and_ranges() -> None:
    assert parse_partitions("", [0, 1, 2]) == [0, 1, 2]
    assert parse_partitions("2, 0-1,7-9", [0, 1, 2, 8]) == [0, 1, 2, 8]
    for wrong in ("x", "1-", "-1", "5", "²", "9" * 5_000):
        with pytest.raises(ValueError, match="partition"):
            parse_partitions(wrong, [0, 1, 2])


def topic(initial: int, count: int, *, ordered: bool = True) -> TopicDescription:
    partitions = tuple(PartitionInfo(p, 1, 0, (1,), (1,)) for p in range(count))
    return TopicDescription("t", uuid.UUID(int=1), False, partitions, initial, count, 3, ordered)


def test_a_key_is_searched_in_every_partition_that_it_was_placed_in() -> None:
    for number in range(200):
        key = b"key-%d" % number
        expected = {place(positive_hash(key), 4, count) for count in range(4, 14)}
        assert places_of(key, topic(4, 13)) == sorted(expected)


def test_without_order_a_key_may_be_in_any_partition() -> None:
    assert places_of(b"k", topic(4, 6, ordered=False)) == list(range(6))
    assert places_of(b"k", topic(-1, 3)) == [0, 1, 2]
