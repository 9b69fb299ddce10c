"""``dump-log`` on files of each kind, whole and damaged."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from anabranch.cli.main import main
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.generated.consumer_offsets import GroupMetadataKey, OffsetCommitKey, OffsetCommitValue
from anabranch.protocol.message import encode_versioned
from tests.support.log.batches import batch_of, build_control_batch

Dump = Callable[..., tuple[int, str, str]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The path of a segment."""
    return tmp_path / "00000000000000000000.log"


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Dump:
    """Run ``dump-log`` and return exit status, stdout and stderr."""

    def dump_log(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as exit_status:
            main(["dump-log", *map(str, arguments)])
        captured = capsys.readouterr()
        return int(exit_status.value.code or 0), captured.out, captured.err

    return dump_log


def test_batches_and_records_of_a_segment_are_printed(run: Dump, path: Path) -> None:
    path.write_bytes(
        batch_of(2, producer_id=7, producer_epoch=1, base_sequence=3)
        + build_batch([(None, b"\xff", [("h", b"")], 5), (b"k", None, (), 6)], base_offset=2)
    )
    status, out, err = run(path, "--json", "--print-data-log")
    start, first, second = map(json.loads, out.splitlines())
    assert (status, err, start["Log starting offset"]) == (0, "", 0)
    assert (first["count"], first["producerId"], first["lastSequence"], first["isvalid"]) == (2, 7, 4, True)
    assert [(x["offset"], x["sequence"], x["key"]) for x in first["records"]] == [(0, 3, "key-0"), (1, 4, "key-1")]
    assert [(x["keySize"], x["valueSize"], x["headerKeys"]) for x in second["records"]] == [(-1, 1, ["h"]), (1, -1, [])]
    assert [x.get("payload") for x in second["records"]] == ["\ufffd", None]


def test_options_decide_how_much_is_printed(run: Dump, path: Path) -> None:
    batch = batch_of(2)
    path.write_bytes(batch + (2).to_bytes(8, "big") + build_control_batch(1, 7, 1, 2, 99)[8:])
    lines = {
        arguments: run(path, *arguments.split())[1].splitlines()[2:]
        for arguments in ("", "--deep-iteration", "--print-data-log", "--print-data-log --skip-record-metadata")
    }
    shallow, deep, printed, bare = lines.values()
    assert [line[:11] for line in shallow] == ["baseOffset:"] * 2
    assert [line[:11] for line in deep] == ["baseOffset:", "| offset: 0", "| offset: 1", "baseOffset:", "| offset: 2"]
    assert "endTxnMarker: COMMIT coordinatorEpoch: " in deep[4]
    assert [" key: " in line for line in deep + printed] == [False] * 6 + [True, True, False, False]
    assert bare[1].startswith("| key: key-0 payload: ")
    assert len(run(path, "--max-bytes", str(len(batch)))[1].splitlines()) == 3
    assert run("--files", f"{path},{path}")[1].count("Dumping") == 2


def test_a_flipped_byte_is_reported(run: Dump, path: Path) -> None:
    data = bytearray(batch_of(2))
    data[-1] ^= 1
    path.write_bytes(data)
    status, out, err = run(path)
    assert (status, "isvalid: false" in out, "CRC of the batch at position 0" in err) == (1, True, True)


def test_a_torn_tail_is_reported_with_its_position(run: Dump, path: Path) -> None:
    whole = batch_of(2)
    path.write_bytes(whole + whole[:-3])
    status, out, err = run(path)
    assert (status, f"at position {len(whole)}" in err) == (1, True)
    assert out.splitlines()[-1] == f"Found {len(whole) - 3} invalid bytes at the end of {path.name}"


def test_a_gap_of_compaction_is_reported_and_is_no_damage(run: Dump, path: Path) -> None:
    path.write_bytes(batch_of(2) + build_batch([(b"k", b"v", (), 5)], base_offset=7))
    status, _, err = run(path)
    assert (status, "1 is followed by 7" in err) == (0, True)


def test_an_index_is_compared_with_its_segment(run: Dump, path: Path) -> None:
    log, index = path, path.with_suffix(".index")
    times = index.with_suffix(".timeindex")
    first = build_batch([(b"k", b"v", (), 5), (b"k", b"v", (), 9)])
    log.write_bytes(first + build_batch([(b"k", b"v", (), 7)], base_offset=2))
    good_index, good_times = struct.pack(">ii", 2, len(first)), struct.pack(">qiqi", 9, 1, 9, 2)
    bad = {
        struct.pack(">ii", 1, len(first)): ("index", "Index offset: 1, log offset: 2"),
        struct.pack(">ii", 2, len(first) + 1): ("index", f"no batch begins at position {len(first) + 1}"),
        struct.pack(">qi", 7, 2): ("timeindex", "Index timestamp: 7, log timestamp: 9"),
        struct.pack(">qi", 9, 4): ("timeindex", "Indexed offset: 4"),
        struct.pack(">qiqi", 9, 1, 8, 2): ("timeindex", "Previously indexed timestamp: 9"),
    }
    index.write_bytes(good_index)
    times.write_bytes(good_times)
    assert run(index, times) == (
        0,
        f"Dumping {index}\noffset: 2 position: {len(first)}\n"
        f"Dumping {times}\ntimestamp: 9 offset: 1\ntimestamp: 9 offset: 2\n",
        "",
    )
    assert run(index, "--verify-index-only")[1] == f"Dumping {index}\n"
    assert run(index, "--index-sanity-check")[1].endswith("passed sanity check.\n")
    for data, (suffix, message) in bad.items():
        path = log.with_suffix(f".{suffix}")
        path.write_bytes(data)
        status, _, err = run(path)
        assert (status, message in err) == (1, True), err


def test_indexes_end_where_a_preallocated_file_is_zero(run: Dump, path: Path) -> None:
    path = path.with_name("00000000000000000100.index")
    path.write_bytes(struct.pack(">iiii", 5, 4096, 9, 8192) + bytes(80))
    assert run(path, "--json")[1].splitlines()[::2] == [
        json.dumps({"file": str(path), "offset": 105, "position": 4096}),
        json.dumps({"file": str(path), "offset": 109, "position": 8192}),
    ]


def test_a_file_of_another_kind_is_refused(run: Dump, path: Path) -> None:
    status, _, err = run(path.with_name("notes.txt"))
    assert (status, err.count("\n"), "is not a file of a partition" in err) == (1, 1, True)


def test_a_missing_file_is_named(run: Dump, path: Path) -> None:
    status, _, err = run(path)
    assert (status, err) == (1, f"anabranch: {path}: No such file or directory\n")


@pytest.mark.parametrize("name", [f"{0:020d}.log", f"{0:020d}.timeindex", f"{0:020d}.snapshot", "x-checkpoint"])
def test_a_file_that_is_not_regular_is_refused(run: Dump, tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    status, _, err = run(tmp_path / name)
    assert status == 1 and "not a regular file" in err and name in err


def test_the_json_of_a_record_that_cannot_be_decoded_has_the_error(run: Dump, path: Path) -> None:
    good = (OffsetCommitKey(group="g", topic="t", partition=0), OffsetCommitValue(offset=5))
    key, value = (encode_versioned(each, version) for each, version in zip(good, (1, 3), strict=True))
    path.write_bytes(build_batch([(key, value, (), 5), (b"\x00\x01\x7f", b"", (), 5)]))
    status, out, err = run(path, "--json", "--offsets-decoder")
    batch = json.loads(out.splitlines()[1])
    assert status == 1 and [record["offset"] for record in batch["records"]] == [0, 1]
    assert "Error at offset 1" in batch["records"][1]["key"] and "cannot be decoded" in err


def test_records_of_the_offsets_topic_are_decoded(run: Dump, path: Path) -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9, incarnation=4)
    records = [
        (encode_versioned(key, 1), encode_versioned(value, 4), (), 1),
        (encode_versioned(key, 1), encode_versioned(value, 1), (), 1),
        (encode_versioned(GroupMetadataKey(group="g"), 2), None, (), 1),
        (b"\0\x63", b"?", (), 1),
    ]
    path.write_bytes(build_batch(records))
    _, out, _ = run(path, "--offsets-decoder", "--skip-record-metadata")
    data = '"offset":5,"leaderEpoch":2,"metadata":"m","commitTimestamp":9,"incarnation":4'
    assert out.splitlines()[3:] == [
        '| key: {"type":"1","data":{"group":"g","topic":"t","partition":3}} '
        f'payload: {{"version":"4","data":{{{data}}}}}',
        '| key: {"type":"1","data":{"group":"g","topic":"t","partition":3}} '
        'payload: {"version":"1","data":{"offset":5,"metadata":"m","commitTimestamp":9,"expireTimestamp":-1}}',
        '| key: {"type":"2","data":{"group":"g"}} payload: <DELETE>',
        '| key: {"type":"99","data":"unknown"} payload: {"version":"-1","data":"unknown"}',
    ]


def test_a_record_that_a_decoder_cannot_read_is_named(run: Dump, path: Path) -> None:
    path.write_bytes(build_batch([(b"\0\1\0", b"", (), 1)]))
    for decoder in ("--offsets-decoder", "--transaction-log-decoder"):
        status, out, err = run(path, decoder)
        assert (status, "baseOffset: 0" in out) == (1 if decoder == "--offsets-decoder" else 0, True)
        assert ("1 record cannot be decoded, the first at offset 0: " in err) == (decoder == "--offsets-decoder")
    assert "not both" in run(path, "--offsets-decoder", "--transaction-log-decoder")[2]


def test_the_other_records_of_the_batch_are_printed(run: Dump, path: Path) -> None:
    """KIP-915: a record that cannot be understood does not keep the rest from being read; here a key of one byte."""
    key = encode_versioned(GroupMetadataKey(group="g"), 2)
    path.write_bytes(build_batch([(key, None, (), 1), (b"\0", b"\0", (), 1), (key, b"\0", (), 1), (key, None, (), 1)]))
    status, out, err = run(path, "--offsets-decoder", "--skip-record-metadata")
    shown = '| key: {"type":"2","data":{"group":"g"}} payload: <DELETE>'
    first, bad_key, bad_value, last = out.splitlines()[3:]
    assert (status, first, last) == (1, shown, shown)
    assert bad_key.startswith("| key: Error at offset 1, skipping. ") and "payload" not in bad_key
    assert bad_value.startswith("| key: Error at offset 2, skipping. ")
    assert "the batch at position 0: 2 records cannot be decoded, the first at offset 1: " in err


def test_a_closed_pipe_ends_the_command_silently(path: Path) -> None:
    """A closed pipe ends the command silently, as in ``dump-log ... | head``."""
    path.write_bytes(b"".join(build_batch([(b"k", b"v" * 1000, (), 5)], base_offset=n) for n in range(500)))
    line = [sys.executable, "-m", "anabranch.cli.main", "dump-log", "--print-data-log", str(path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("Dumping")
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")
