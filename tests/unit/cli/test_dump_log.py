"""``dump-log`` on files of each kind, whole and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from anabranch.cli.main import main
from protocol.batch_builder import build_control_batch
from tests.batches import batch_of


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as exit_status:
        main(["dump-log", *arguments])
    captured = capsys.readouterr()
    return int(exit_status.value.code or 0), captured.out, captured.err


def test_batches_and_records_of_a_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(
        batch_of(2, producer_id=7, producer_epoch=1, base_sequence=3) + build_control_batch(1, 7, 1, 5, 99)
    )
    status, out, _ = run(capsys, str(path), "--json", "--print-data")
    batch, marker = map(json.loads, out.splitlines())
    assert status == 0
    assert (batch["count"], batch["producer_id"], batch["last_sequence"], batch["is_valid"]) == (2, 7, 4, True)
    assert [(record["offset"], record["key"]) for record in batch["records"]] == [(0, "key-0"), (1, "key-1")]
    assert (marker["is_control"], marker["records"][0]["marker"]) == (True, "COMMIT")


def test_a_flipped_byte_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = bytearray(batch_of(2))
    data[-1] ^= 1
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(data)
    status, out, err = run(capsys, str(path))
    assert (status, "is_valid: False" in out, "damaged" in err) == (1, True, True)


def test_a_torn_tail_is_reported_with_its_position(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = batch_of(2)
    path = tmp_path / "00000000000000000000.log"
    path.write_bytes(whole + whole[:-3])
    status, out, _ = run(capsys, str(path), "--json")
    assert status == 1
    assert json.loads(out.splitlines()[-1])["position"] == len(whole)


def test_indexes_end_where_a_preallocated_file_is_zero(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "00000000000000000100.index"
    path.write_bytes(struct.pack(">iiii", 5, 4096, 9, 8192) + bytes(80))
    assert run(capsys, str(path), "--json")[1].splitlines() == [
        json.dumps({"file": str(path), "offset": 105, "position": 4096}),
        json.dumps({"file": str(path), "offset": 109, "position": 8192}),
    ]


def test_a_file_of_another_kind_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, _, err = run(capsys, str(tmp_path / "notes.txt"))
    assert (status, err.count("\n"), "no segment file" in err) == (1, 1, True)
