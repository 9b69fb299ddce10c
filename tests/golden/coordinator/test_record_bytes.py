"""Records of the offsets topic are compared with bytes that Kafka wrote, and read by the rules of KIP-915."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from anabranch.broker.coordinator.consumer_offsets_records import UnknownRecord, decode, encode
from anabranch.broker.coordinator.durable import (
    GroupRecord,
    OffsetRecord,
    StableGeneration,
    StoredMember,
    StoredOffset,
)
from anabranch.protocol.primitives import DecodeError
from anabranch.protocol.types import TopicPartition

GOLDEN = {
    (name, int(version)): bytes.fromhex(text)
    for name, version, text in (
        line.split()
        for line in (Path(__file__).parent / "record_bytes.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}
OFFSET_KEY = GOLDEN["offset_key", 1]
GROUP_KEY = GOLDEN["group_key", 2]
NOW_MS = 1_600_000_000_000
OFFSET = StoredOffset(1234567890123, leader_epoch=5, metadata="héllo", commit_timestamp_ms=NOW_MS)
OFFSET_WITH_EXPIRY = StoredOffset(42, commit_timestamp_ms=NOW_MS, expire_timestamp_ms=NOW_MS + 60_000)
MEMBER = StoredMember("m-1", "i-1", "c", "/127.0.0.1", 60_000, 10_000, b"\x01\x02", b"\x03")
GENERATION = StableGeneration("consumer", 3, "range", "m-1", NOW_MS, {"m-1": MEMBER})
EMPTY_GENERATION = StableGeneration("consumer", 4, None, None, NOW_MS)
PARTITION = TopicPartition("topic", 7)


def offset_record(value: StoredOffset | None) -> OffsetRecord:
    return OffsetRecord("group-1", PARTITION, value)


@pytest.mark.parametrize("level", [0, 1])
def test_below_level_2_an_offset_is_written_as_kafka_writes_version_3(level: int) -> None:
    assert encode(offset_record(OFFSET), level) == (OFFSET_KEY, GOLDEN["offset_value", 3])


@pytest.mark.parametrize("level", [1, 2])
def test_an_offset_with_its_own_expiry_is_written_as_version_1(level: int) -> None:
    assert encode(offset_record(OFFSET_WITH_EXPIRY), level) == (OFFSET_KEY, GOLDEN["offset_value_with_expiry", 1])


@pytest.mark.parametrize("level", [0, 1])
def test_below_level_2_a_generation_is_written_as_kafka_writes_version_3(level: int) -> None:
    assert encode(GroupRecord("group-1", GENERATION), level) == (GROUP_KEY, GOLDEN["group_value", 3])
    assert encode(GroupRecord("group-1", EMPTY_GENERATION), level) == (GROUP_KEY, GOLDEN["group_value_empty", 3])


def test_tombstones_have_no_value() -> None:
    assert encode(offset_record(None)) == (OFFSET_KEY, None)
    assert encode(GroupRecord("group-1", None)) == (GROUP_KEY, None)
    assert decode(OFFSET_KEY, None) == offset_record(None)
    assert decode(GROUP_KEY, None) == GroupRecord("group-1", None)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(0, replace(OFFSET, leader_epoch=-1)), (2, replace(OFFSET, leader_epoch=-1)), (3, OFFSET), (4, OFFSET)],
)
def test_every_offset_version_is_read(version: int, expected: StoredOffset) -> None:
    assert decode(OFFSET_KEY, GOLDEN["offset_value", version]) == offset_record(expected)


def test_an_offset_of_version_1_is_read_with_its_expiry() -> None:
    assert decode(OFFSET_KEY, GOLDEN["offset_value_with_expiry", 1]) == offset_record(OFFSET_WITH_EXPIRY)


def test_an_offset_key_of_version_0_is_read() -> None:
    assert decode(b"\x00\x00" + OFFSET_KEY[2:], GOLDEN["offset_value", 3]) == offset_record(OFFSET)


@pytest.mark.parametrize("version", range(5))
def test_every_generation_version_is_read(version: int) -> None:
    member = MEMBER
    if version < 3:
        member = replace(member, group_instance_id=None)
    if version < 1:
        member = replace(member, rebalance_timeout_ms=member.session_timeout_ms)
    expected = replace(GENERATION, members={"m-1": member}, state_timestamp_ms=NOW_MS if version >= 2 else -1)
    assert decode(GROUP_KEY, GOLDEN["group_value", version]) == GroupRecord("group-1", expected)


def test_kip_915_the_flexible_versions_are_read() -> None:
    assert decode(OFFSET_KEY, GOLDEN["offset_value", 4]) == offset_record(OFFSET)
    assert decode(GROUP_KEY, GOLDEN["group_value", 4]) == GroupRecord("group-1", GENERATION)


def test_hole_20_an_offset_with_an_incarnation_is_written_as_version_4_with_tag_10256() -> None:
    key, value = encode(offset_record(replace(OFFSET, incarnation=9)))
    untagged = GOLDEN["offset_value", 4]
    assert value == untagged[:-1] + b"\x01" + b"\x90\x50\x08" + (9).to_bytes(8, "big")
    assert decode(key, value) == offset_record(replace(OFFSET, incarnation=9))


def test_kip_915_from_level_2_on_the_flexible_version_of_offsets_is_written() -> None:
    assert encode(offset_record(OFFSET), 2) == (OFFSET_KEY, GOLDEN["offset_value", 4])


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_group_is_written_in_the_version_that_kafka_writes(level: int) -> None:
    assert encode(GroupRecord("group-1", GENERATION), level) == (GROUP_KEY, GOLDEN["group_value", 3])


def test_the_number_of_rewinds_of_an_offset_is_written_in_tag_10273() -> None:
    key, value = encode(offset_record(replace(OFFSET, rewinds=3)))
    assert decode(key, value) == offset_record(replace(OFFSET, rewinds=3))
    assert value == encode(offset_record(OFFSET))[1][:-1] + b"\x01\xa1\x50\x04\x00\x00\x00\x03"
    assert decode(*encode(offset_record(replace(OFFSET, rewinds=3)), 1)) == offset_record(OFFSET)


def test_kip_915_below_level_2_the_incarnation_is_left_out() -> None:
    key, value = encode(offset_record(replace(OFFSET, incarnation=9)), 1)
    assert decode(key, value) == offset_record(OFFSET)


@pytest.mark.parametrize("name", ["offset_value", "group_value"])
def test_kip_915_unknown_tagged_fields_are_ignored(name: str) -> None:
    key = OFFSET_KEY if name == "offset_value" else GROUP_KEY
    known = GOLDEN[name, 4]
    assert known.endswith(b"\x00")
    tagged = known[:-1] + b"\x01\x63\x02\xab\xcd"  # one tag, number 99, two bytes
    assert decode(key, tagged) == decode(key, known)


@pytest.mark.parametrize("name", ["offset_value", "group_value"])
def test_kip_915_a_higher_version_is_read_as_the_highest_known(name: str) -> None:
    key = OFFSET_KEY if name == "offset_value" else GROUP_KEY
    known = GOLDEN[name, 4]
    assert decode(key, b"\x00\x09" + known[2:]) == decode(key, known)


def test_kip_915_an_unknown_key_type_is_read_as_an_unknown_record() -> None:
    assert decode(b"\x00\x03\x00\x01x", b"anything") == UnknownRecord(3)
    assert decode(b"\x7f\xff", None) == UnknownRecord(0x7FFF)


@pytest.mark.parametrize(
    "record", [(OFFSET_KEY, GOLDEN["offset_value", 3]), (GROUP_KEY, GOLDEN["group_value", 3])], ids=["offset", "group"]
)
def test_a_record_cut_anywhere_is_a_decode_error(record: tuple[bytes, bytes]) -> None:
    key, value = record
    for end in range(len(value)):
        with pytest.raises(DecodeError):
            decode(key, value[:end])
    for end in range(len(key)):
        with pytest.raises(DecodeError):
            decode(key[:end], value)


def test_a_null_key_is_a_decode_error() -> None:
    with pytest.raises(DecodeError, match="key"):
        decode(None, b"")
