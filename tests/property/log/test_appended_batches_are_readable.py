"""A leader appends no batch that a reader of the log refuses because of its header.

Readers: the look-up by time, followers, recovery, the client, the audit's two scans, compaction, dump-log.
"""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.audit import segment_reader
from anabranch.audit.segment_scan import scan
from anabranch.broker.log.batch_reader import BatchReader
from anabranch.broker.log.compaction import CleanedTransactions, KeyOffsets
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.slices import at_once
from anabranch.broker.log.time_search import TimeSearch
from anabranch.protocol.batch_layout import CODEC_MASK, HEADER, MAX_LONG, MIN_LONG
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.records import iter_batches
from anabranch.segment_dump import FileFault, What, dump_file
from tests.support.log.batches import with_field
from tests.support.log.log_fixture import START_MS, LogFixture, batch, idempotent, read_all

pytestmark = pytest.mark.trio

_WIDTHS = {"q": 63, "i": 31, "h": 15, "b": 7, "I": 32}


def changed_headers(data: bytearray) -> Iterator[bytearray]:
    for index, kind in enumerate(HEADER.format.lstrip(">")):
        before = HEADER.unpack_from(data)[index]
        largest = 2 ** _WIDTHS[kind] - 1
        near = [before - 1, before + 1, *(before ^ 1 << bit for bit in range(_WIDTHS[kind]))]
        for value in {0, 1, -1, largest, largest - 99, -largest - 1, *near}:
            codec_of_other_bytes = index == 5 and value & CODEC_MASK != before & CODEC_MASK
            fits = (0 if kind == "I" else -largest - 1) <= value <= largest
            if fits and value != before and not codec_of_other_bytes:
                yield with_field(data, index, value)


def read_everywhere(log: PartitionLog, path: Path) -> None:
    """Read the log with each reader. Raises the reader's error."""
    for timestamp in (MIN_LONG, 0, START_MS, START_MS + 100, MAX_LONG, None):
        search = TimeSearch(log, timestamp)
        assert search.advance()
        struct.pack(">qqi", *(search.found or (-1, -1, -1)))
    data = path.read_bytes()
    batches = list(iter_batches(data))
    for each in batches:
        each.ensure_valid()
        each.records()
        at_once(KeyOffsets(1 << 20).add(each, CleanedTransactions([])))
    file = log.segments[0].file
    assert [BatchReader(file, len(data)).at(0).count] == [each.count for each in batches]
    assert all(run.errors == [None] for run in scan(io.BytesIO(data), len(data)))
    assert all(row.error is None for row in segment_reader.read_batch(data, 0))
    assert not any(isinstance(line, FileFault) for line in dump_file(path, What(deep=True, contents=True)))


async def test_no_reader_refuses_a_batch_that_the_leader_appended(tmp_path: Path) -> None:
    accepted = refused = 0
    sent = itertools.chain(
        changed_headers(batch(b"a", b"b", timestamp=START_MS)), changed_headers(idempotent(5, 2, producer_id=4))
    )
    for number, data in enumerate(sent):
        log_fixture = LogFixture(tmp_path / str(number))
        log = log_fixture.create()
        try:
            log.append_as_leader(data, 3)
        except KafkaError:
            refused += 1
        else:
            accepted += 1
            read_everywhere(log, log_fixture.file("00000000000000000000.log"))
            follower = LogFixture(tmp_path / f"follower-{number}").create()
            follower.append_as_follower(bytes(read_all(log)[0].buffer))
            assert follower.log_end_offset == log.log_end_offset
            follower.close_files()
        log.close_files()
    assert accepted > 50 and refused > 50
