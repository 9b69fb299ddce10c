"""Each file format is compared with bytes written out by hand from Kafka's layouts."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from anabranch.broker.log.checkpoint_files import (
    MAX_FILE_BYTES,
    LogIdentity,
    MalformedFileError,
    MetaProperties,
    decode_epochs,
    decode_meta_properties,
    decode_offsets,
    decode_partition_metadata,
    encode_epochs,
    encode_meta_properties,
    encode_offsets,
    encode_partition_metadata,
    read_checkpoint,
)
from anabranch.broker.log.paths import delete_directory_name, directory_name, is_delete_directory, parse_directory_name
from anabranch.broker.log.producer_kept import KeptProducer, decode_kept, kept_parts, pack_producers
from anabranch.broker.log.producer_snapshot import SnapshotEntry, decode_snapshot, encode_snapshot
from anabranch.broker.log.repeated_batches import BatchMetadata
from anabranch.broker.log.txn_index import AbortedTxn, TxnIndex
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_trio import RealStorage
from tests.support.log.log_fixture import START_MS, LogFixture, batch


def crc32c(data: bytes) -> int:
    """Compute the checksum bit by bit from the polynomial."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def test_an_offset_checkpoint_has_kafkas_format() -> None:
    text = b"0\n2\nfile-changes 0 100\nfile-changes 10 7\n"
    offsets = {TopicPartition("file-changes", 10): 7, TopicPartition("file-changes", 0): 100}
    assert encode_offsets(offsets) == text
    assert decode_offsets("p", text) == offsets


def test_a_leader_epoch_checkpoint_has_kafkas_format() -> None:
    assert encode_epochs([(0, 0), (3, 120)]) == b"0\n2\n0 0\n3 120\n"
    assert decode_epochs("p", b"0\n2\n0 0\n3 120\n") == [(0, 0), (3, 120)]


@pytest.mark.parametrize(
    "data",
    [b"", b"1\n0\n", b"0\n2\na 0 1\n", b"0\n1\na 0\n", b"0\n1\na 0 x\n", b"0\nx\n", b"\xff\xfe\n"],
)
def test_the_error_for_a_malformed_checkpoint_names_its_file(data: bytes) -> None:
    with pytest.raises(MalformedFileError, match=r"^dir/file: "):
        decode_offsets("dir/file", data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"0\n" + b"9" * 5000 + b"\n", "'99999999999999999999...' is not a number"),
        (b"0\n1\nt 0 " + b"9" * 5000 + b"\n", "'99999999999999999999...' is not a number"),
        (b"0\n1\nt 0 9223372036854775808\n", "is not a number from -1 to 9223372036854775807"),
        (b"0\n1\nt 0 -2\n", "is not a number from -1"),
        (b"0\n200003\n" + b"t 0 5\n" * 200_003, "at most 200000 are read"),
        (b"0\n1\n" + b"t " * 100_000 + b"\n", "line 3 has not 3 fields"),
    ],
    ids=["digits of the count", "digits", "beyond 64 bits", "negative", "lines", "fields"],
)
def test_a_checkpoint_is_read_within_bounds(data: bytes, reason: str) -> None:
    with pytest.raises(MalformedFileError, match=re.escape(reason)):
        decode_offsets("dir/file", data)


def test_a_large_checkpoint_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "recovery-point-offset-checkpoint"
    with path.open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(MalformedFileError, match=f"at most {MAX_FILE_BYTES} are read"):
        read_checkpoint(RealStorage(), str(path))


def test_partition_metadata_has_kafkas_format_and_the_incarnation_in_a_third_line() -> None:
    topic_id = uuid.UUID("00112233-4455-6677-8899-aabbccddeeff")
    kafka = b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\n"
    assert encode_partition_metadata(LogIdentity(topic_id)) == kafka
    assert decode_partition_metadata("p", kafka) == LogIdentity(topic_id, -1)
    ours = kafka + b"incarnation: 4294967305\n"
    assert encode_partition_metadata(LogIdentity(topic_id, 4294967305)) == ours
    assert decode_partition_metadata("p", ours) == LogIdentity(topic_id, 4294967305)


@pytest.mark.parametrize(
    "data",
    [
        b"version: 1\ntopic_id: x\n",
        b"version: 0\ntopic_id: abc\n",
        b"version: 0\n",
        b"version: 0\ntopic_id: ABEiM0RVZneImaq7zN3u_w\nincarnation: 4294",
    ],
    ids=["unknown version", "malformed topic id", "no topic id", "cut off"],
)
def test_malformed_partition_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedFileError):
        decode_partition_metadata("p", data)


def test_meta_properties_have_kafkas_format() -> None:
    kafka = b"#\n#Fri Jan 02 10:00:00 UTC 2026\ncluster.id=abc\nbroker.id=3\nversion=0\n"
    assert decode_meta_properties("p", kafka) == MetaProperties(3, "abc")
    assert encode_meta_properties(MetaProperties(3, "abc")) == b"#\nbroker.id=3\ncluster.id=abc\nversion=0\n"
    with pytest.raises(MalformedFileError, match=r"broker\.id"):
        decode_meta_properties("p", b"version=0\n")


def test_a_producer_snapshot_has_kafkas_format() -> None:
    body = bytes.fromhex(
        "00000001"  # one producer
        "0000000000000fa0"  # producer id 4000
        "0002"  # epoch
        "0000000b"  # last sequence 11
        "0000000000000063"  # last offset 99
        "00000004"  # offset delta
        "0000018bcfe56800"  # timestamp 1700000000000
        "ffffffff"  # coordinator epoch -1
        "ffffffffffffffff"  # no open transaction
    )
    data = b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body
    entry = SnapshotEntry(4000, 2, 11, 99, 4, 1_700_000_000_000, -1, -1)
    assert encode_snapshot([entry]) == data
    assert list(decode_snapshot("p", data)) == [entry]


@pytest.mark.parametrize(
    "change",
    [lambda d: d[:-1], lambda d: d[:20] + b"\x77" + d[21:], lambda d: b"\x00\x02" + d[2:], lambda d: d[:5]],
    ids=["last byte cut off", "byte changed", "unknown version", "cut within the header"],
)
def test_a_damaged_snapshot_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    data = encode_snapshot([SnapshotEntry(1, 0, 0, 0, 0, 0, -1, -1)])
    with pytest.raises(MalformedFileError):
        decode_snapshot("p", change(data))


def test_the_file_beside_a_producer_snapshot_has_its_format() -> None:
    snapshot = encode_snapshot([])
    body = snapshot[2:6] + bytes.fromhex(
        "00000002"  # two producers
        "00000001"  # one batch
        "0000000000000fa0"  # producer id 4000
        "0000018bcfe56800"  # appended at 1700000000000
        "0000000000000fa1"  # producer id 4001
        "0000018bcfe56801"  # appended a millisecond later
        "0000000000000fa1"  # a batch of an earlier epoch of producer 4001
        "0000000b"  # last sequence 11
        "0000000000000063"  # last offset 99
        "00000004"  # offset delta
        "0000000000000001"  # timestamp 1
    )
    data = b"\x00\x01" + crc32c(body).to_bytes(4, "big") + body
    kept = [
        KeptProducer(4000, 1_700_000_000_000),
        KeptProducer(4001, 1_700_000_000_001, (BatchMetadata(11, 99, 4, 1),)),
    ]
    assert b"".join(kept_parts([pack_producers(kept)], snapshot)) == data
    assert list(decode_kept("p", data, snapshot)) == kept


def test_a_transaction_index_has_kafkas_format(log_fixture: LogFixture) -> None:
    log_fixture.storage.makedirs(log_fixture.directory)
    index = TxnIndex(log_fixture.storage, str(log_fixture.file("00000000000000000000.txnindex")))
    txn = AbortedTxn(4000, 10, 20, 21)
    index.append(txn)
    assert log_fixture.file("00000000000000000000.txnindex").read_bytes() == bytes.fromhex(
        "00000000000000000fa0000000000000000a00000000000000140000000000000015"
    )
    assert index.transactions() == [txn]
    assert index.collect(15, 16) == ([txn], True)
    assert index.collect(21, 30) == ([], False)


def test_a_log_and_its_offset_and_time_index_have_kafkas_format(log_fixture: LogFixture) -> None:
    """A batch gets an index entry if more than ``index.interval.bytes`` were appended since the last entry.

    A roll writes a final time entry.
    """
    log = log_fixture.create(index_interval_bytes=100, segment_bytes=10_000)
    first, second, third = (batch(b"x" * 50, b"y" * 50, timestamp=START_MS + 10 * n) for n in range(3))
    size = len(first)
    for data in (first, second, third):
        log.append_as_leader(memoryview(data), 4)
    log.roll()
    stored = log_fixture.file("00000000000000000000.log").read_bytes()
    for number, data in enumerate((first, second, third)):
        expected = (2 * number).to_bytes(8, "big") + bytes(data[8:12]) + (4).to_bytes(4, "big") + bytes(data[16:])
        assert stored[number * size : (number + 1) * size] == expected
    index = log_fixture.file("00000000000000000000.index").read_bytes()
    assert index == (3).to_bytes(4, "big") + size.to_bytes(4, "big") + (5).to_bytes(4, "big") + (2 * size).to_bytes(
        4, "big"
    )
    times = log_fixture.file("00000000000000000000.timeindex").read_bytes()
    # A time entry that is written with an index entry has the largest timestamp so far, including that batch.
    entries = [(START_MS + 11, 3), (START_MS + 21, 5)]
    assert times == b"".join(ts.to_bytes(8, "big") + offset.to_bytes(4, "big") for ts, offset in entries)
    assert log_fixture.names() == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "00000000000000000006.index",
        "00000000000000000006.log",
        "00000000000000000006.producers",
        "00000000000000000006.snapshot",
        "00000000000000000006.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    assert log_fixture.file("leader-epoch-checkpoint").read_bytes() == b"0\n1\n4 0\n"


def test_directory_names_are_those_of_kafka() -> None:
    partition = TopicPartition("my-topic.1", 12)
    assert directory_name(partition) == "my-topic.1-12"
    assert parse_directory_name("my-topic.1-12") == partition
    assert parse_directory_name("lost+found") is None
    unique = uuid.UUID(int=1)
    name = delete_directory_name(partition, unique)
    assert name == "my-topic.1-12.00000000000000000000000000000001-delete"
    assert is_delete_directory(name) and parse_directory_name(name) is None
    assert len(delete_directory_name(TopicPartition("x" * 249, 1), unique)) == 255
