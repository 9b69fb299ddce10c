"""``anabranch dump-log``: prints the files of a partition, with the options of ``kafka-dump-log``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from anabranch.cli.exit_status import DONE, FAILED
from anabranch.cli.options import Int, JsonFlag
from anabranch.command_error import CommandError, UsageError
from anabranch.record_decoders import Decoder, decode_offsets, decode_text, decode_transactions
from anabranch.segment_dump import RECORDS, FileFault, Row, UnknownFileError, What, dump_file


def dump_log(
    *paths: Path,
    files: Annotated[str | None, Parameter(name="--files")] = None,
    print_data_log: bool = False,
    deep_iteration: bool = False,
    skip_record_metadata: bool = False,
    offsets_decoder: bool = False,
    transaction_log_decoder: bool = False,
    index_sanity_check: bool = False,
    verify_index_only: bool = False,
    max_bytes: Int | None = None,
    json_: JsonFlag = False,
) -> int:
    """Print the contents of segments, indexes, snapshots and checkpoints, in the format of kafka-dump-log.

    Faults of a file are printed on standard error. The exit status is 1 when a file is damaged.

    Parameters
    ----------
    paths
        Files of a partition's directory, Anabranch's or Kafka's.
    files
        The same, separated by commas.
    print_data_log
        Also print the keys and values of the records.
    deep_iteration
        Also print the records of each batch, without keys and values.
    skip_record_metadata
        Print only the keys and values of records.
    offsets_decoder
        Read keys and values as those of __consumer_offsets.
    transaction_log_decoder
        Read keys and values as those of __transaction_state.
    index_sanity_check
        Print no entries of indexes, only whether a broker would accept the index when it starts.
    verify_index_only
        Compare indexes with their segments, and print no entries.
    max_bytes
        Read at most this many bytes of each segment, in whole batches.
    """
    named = [*paths, *(Path(name.strip()) for name in (files or "").split(",") if name.strip())]
    if not named:
        raise UsageError("name at least one file, e.g. anabranch dump-log data/broker-1/events-0/*.log")
    if offsets_decoder and transaction_log_decoder:
        raise UsageError("give --offsets-decoder or --transaction-log-decoder, not both")
    decoder: Decoder = decode_text
    if offsets_decoder or transaction_log_decoder:
        decoder = decode_offsets if offsets_decoder else decode_transactions
    contents = print_data_log or decoder is not decode_text
    what = What(
        deep=deep_iteration or contents,
        contents=contents,
        metadata=not skip_record_metadata,
        entries=not verify_index_only,
        index_sanity=index_sanity_check,
        max_bytes=max_bytes,
        decoder=decoder,
    )
    faults = sum(_dump(path, what, as_json=json_) for path in named)
    return FAILED if faults else DONE


def _dump(path: Path, what: What, *, as_json: bool) -> int:
    """Print a file. Returns the number of damaged places in it."""
    faults = []
    try:
        lines = dump_file(path, what)
        if not as_json:
            print(f"Dumping {path}")
        for line in lines:
            if isinstance(line, FileFault):
                faults.append(line)
            if as_json:
                _print_json({"file": str(path), **({"error": line.message} if isinstance(line, FileFault) else line)})
            elif isinstance(line, FileFault):
                if line.kafka_text is not None:
                    print(line.kafka_text)
            else:
                _print_row(line)
    except UnknownFileError as error:
        raise CommandError(str(error)) from error
    sys.stdout.flush()
    for fault in faults:
        print(fault.message, file=sys.stderr)
    return sum(fault.is_damage for fault in faults)


def _print_json(row: Row) -> None:
    """Print a row as one line of JSON. A batch may have many records, so these are printed one by one."""
    records = row.pop(RECORDS, None)
    if records is None:
        print(json.dumps(row))
        return
    print(f'{json.dumps(row)[:-1]}, "{RECORDS}": [', end="")
    for number, record in enumerate(records):
        print(", " if number else "", json.dumps(record), sep="", end="")
    print("]}")


def _print_row(row: Row) -> None:
    print(_shown({name: value for name, value in row.items() if name != RECORDS}))
    for record in row.get(RECORDS, ()):
        print(f"| {_shown(record)}")


def _shown(row: Row) -> str:
    return " ".join(f"{name}: {_value(value)}" if name else str(value) for name, value in row.items())


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"[{','.join(value)}]" if isinstance(value, list) else str(value)
