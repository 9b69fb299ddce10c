"""``anabranch dump-log``: what the files of a partition hold."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from anabranch.cli.errors import CommandError
from anabranch.cli.options import JsonFlag
from anabranch.segment_dump import Row, UnknownFileError, dump_file


def dump_log(*files: Path, print_data: bool = False, json_: JsonFlag = False) -> int:
    """Print the batches of segment files and the entries of indexes, snapshots and checkpoints.

    Exit status 1 when a batch is damaged; the line says where.

    Parameters
    ----------
    files
        Files of a partition's directory (.log .index .timeindex .txnindex .snapshot, checkpoints).
    print_data
        The records of each batch too.
    """
    if not files:
        raise CommandError("name at least one file, e.g. anabranch dump-log data/broker-1/events-0/*.log")
    sound = True
    for path in files:
        try:
            rows = dump_file(path, records=print_data)
        except UnknownFileError as error:
            raise CommandError(str(error)) from error
        if not json_:
            print(f"Dumping {path}")
        for row in rows:
            sound &= "error" not in row and row.get("is_valid", True)
            if json_:
                print(json.dumps({"file": str(path), **row}, default=_text))
            else:
                _print_row(row)
    if not sound:
        print("anabranch: some of it is damaged (see error and is_valid: False above)", file=sys.stderr)
    return 0 if sound else 1


def _print_row(row: Row) -> None:
    records = row.pop("records", [])
    print(" ".join(f"{name}: {_shown(value)}" for name, value in row.items()))
    for record in records:
        print("| " + " ".join(f"{name}: {_shown(value)}" for name, value in record.items()))


def _shown(value: Any) -> str:
    return _text(value) if isinstance(value, bytes) else str(value)


def _text(value: Any) -> str:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
