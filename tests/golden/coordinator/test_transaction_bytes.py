"""KIP-915: the records of the transaction log are compared with bytes that Kafka wrote, at both value versions."""

from __future__ import annotations

import pytest

from anabranch.protocol.generated.transaction_log import TransactionLogKey, TransactionLogValue, TransactionPartitions
from anabranch.protocol.message import decode_tolerantly, decode_versioned, encode_versioned
from anabranch.protocol.primitives import DecodeError
from tests.golden.coordinator.test_record_bytes import GOLDEN

KEY = TransactionLogKey(transactional_id="tx-1")
VALUE = TransactionLogValue(
    producer_id=1234567890123,
    producer_epoch=5,
    transaction_timeout_ms=60_000,
    transaction_status=1,
    transaction_partitions=[
        TransactionPartitions(topic="topic", partition_ids=[0, 7]),
        TransactionPartitions(topic="__consumer_offsets", partition_ids=[3]),
    ],
    transaction_last_update_timestamp_ms=1_600_000_000_000,
    transaction_start_timestamp_ms=1_599_999_999_000,
)
FLEXIBLE = GOLDEN["transaction_value", 1]


def test_a_transaction_key_has_kafkas_bytes() -> None:
    assert encode_versioned(KEY, 0) == GOLDEN["transaction_key", 0]
    assert decode_versioned(TransactionLogKey, GOLDEN["transaction_key", 0]) == (0, KEY)


@pytest.mark.parametrize("version", [0, 1])
def test_kip_915_each_version_of_a_transaction_has_kafkas_bytes(version: int) -> None:
    assert encode_versioned(VALUE, version) == GOLDEN["transaction_value", version]
    assert decode_tolerantly(TransactionLogValue, GOLDEN["transaction_value", version]) == (version, VALUE)


@pytest.mark.parametrize("version", [0, 1])
def test_kip_915_a_transaction_without_partitions_stores_null_for_them(version: int) -> None:
    stored = GOLDEN["transaction_value_without_partitions", version]
    _, value = decode_tolerantly(TransactionLogValue, stored)
    assert value.transaction_partitions is None
    assert encode_versioned(value, version) == stored


def test_kip_915_tagged_fields_of_a_later_transaction_are_ignored() -> None:
    """Kafka 4 writes a previous producer id (tag 0) and a next producer id (tag 1) without a new version."""
    tags = b"\x02" + b"\x00\x08" + (11).to_bytes(8, "big") + b"\x01\x08" + (12).to_bytes(8, "big")
    assert FLEXIBLE.endswith(b"\x00")
    assert decode_tolerantly(TransactionLogValue, FLEXIBLE[:-1] + tags) == (1, VALUE)


def test_kip_915_a_higher_version_of_a_transaction_is_read_as_the_highest_known() -> None:
    assert decode_tolerantly(TransactionLogValue, b"\x00\x05" + FLEXIBLE[2:] + b"more") == (5, VALUE)


@pytest.mark.parametrize("version", [0, 1])
def test_a_transaction_cut_anywhere_is_a_decode_error(version: int) -> None:
    stored = GOLDEN["transaction_value", version]
    for end in range(len(stored)):
        with pytest.raises(DecodeError):
            decode_tolerantly(TransactionLogValue, stored[:end])
