"""The offsets in the reads of a log are counted without reading the batches."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from anabranch.broker.log.log_state import LogRead
from anabranch.broker.log.partition_log import PartitionLog
from anabranch.protocol.records import RecordBatch, iter_batches
from tests.support.log.batches import batch_of
from tests.support.log.log_fixture import LogFixture

RECORDS = 4
SIZE = len(batch_of(RECORDS))
LARGE = 1 << 20


def append(log: PartitionLog, counts: Sequence[int]) -> None:
    """Append a batch for each number of records."""
    for count in counts:
        log.append_as_leader(bytearray(batch_of(count)), 0)


def batches_in(read: LogRead) -> list[RecordBatch]:
    """The whole batches of a read."""
    data = read.records if isinstance(read.records, bytes) else read.records.read()
    return list(iter_batches(data, allow_partial_tail=True))


def consumed(log: PartitionLog, max_bytes: int, offset: int = 0, upper_bound: int | None = None) -> list[LogRead]:
    """The reads of a consumer from ``offset`` on. Each read begins where the whole batches of the previous read end."""
    end = log.log_end_offset if upper_bound is None else upper_bound
    reads = []
    while offset < end:
        read = log.read(offset, max_bytes, upper_bound=end)
        reads.append(read)
        offset = batches_in(read)[-1].next_offset
    return reads


def total(reads: Sequence[LogRead]) -> int:
    return sum(read.offset_count for read in reads)


def test_one_large_read_counts_every_offset_of_the_log(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    append(log, [3, 1, 7])
    assert [read.offset_count for read in consumed(log, LARGE)] == [11]
    assert log.read(11, LARGE, upper_bound=11).offset_count == 0
    assert log.read(0, 1, upper_bound=11, at_least_one=False).offset_count == 0


@pytest.mark.parametrize("max_bytes", [1, SIZE, 3 * SIZE + 5, 10 * SIZE, 33 * SIZE + 1, LARGE])
@pytest.mark.parametrize("index_interval_bytes", [1, 5 * SIZE, LARGE])
@pytest.mark.parametrize("is_recent", [True, False])
def test_each_read_of_equal_batches_is_counted_exactly(
    log_fixture: LogFixture, max_bytes: int, index_interval_bytes: int, is_recent: bool
) -> None:
    log = log_fixture.create(segment_bytes=40 * SIZE, index_interval_bytes=index_interval_bytes)
    append(log, [RECORDS] * 150)
    assert len(log.segments) == 4
    if not is_recent:
        log._segments.release_sealed()
        log._segments.active.release()
    reads = consumed(log, max_bytes)
    assert [read.offset_count for read in reads] == [RECORDS * len(batches_in(read)) for read in reads]
    assert total(reads) == RECORDS * 150


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("segment_bytes", [200_000, LARGE])
def test_the_sum_over_reads_of_unequal_batches_is_at_most_one_batch_wrong_for_each_segment(
    log_fixture: LogFixture, seed: int, segment_bytes: int
) -> None:
    """The error does not grow with the number of reads. All reads end at an index entry or at a segment's end."""
    rng = random.Random(seed)
    counts = [rng.randint(1, 40) for _ in range(1900)]
    log = log_fixture.create(segment_bytes=segment_bytes)
    append(log, counts)
    reads = consumed(log, 9000)
    assert len(reads) > 20 * len(log.segments)
    assert abs(total(reads) - sum(counts)) <= max(counts) * len(log.segments)


def test_a_read_from_within_a_batch_counts_from_its_offset(log_fixture: LogFixture) -> None:
    log = log_fixture.create()
    append(log, [10, 10])
    assert log.read(7, LARGE, upper_bound=20).offset_count == 13
    assert log.read(7, 1, upper_bound=20).offset_count == 3
    assert log.read(19, 1, upper_bound=20).offset_count == 1


def test_a_read_up_to_the_watermark_counts_up_to_it(log_fixture: LogFixture) -> None:
    log = log_fixture.create(segment_bytes=10 * SIZE)
    append(log, [RECORDS] * 25)
    bound = 17 * RECORDS
    assert [read.offset_count for read in consumed(log, LARGE, upper_bound=bound)] == [10 * RECORDS, 7 * RECORDS]
    assert [read.offset_count for read in consumed(log, LARGE, upper_bound=10 * RECORDS)] == [10 * RECORDS]


def test_a_gap_before_a_segment_is_counted_once(log_fixture: LogFixture) -> None:
    """Compaction has removed the last batch of the first segment. A consumer's next offset is in the gap."""
    log = log_fixture.create()
    append(log, [RECORDS] * 3)
    log.roll()
    append(log, [RECORDS])
    first = log.segments[0]
    first.truncate_to(2 * RECORDS)
    assert [read.offset_count for read in consumed(log, LARGE)] == [3 * RECORDS, RECORDS]


def test_a_read_to_the_end_of_a_segment_does_not_load_the_offset_index(log_fixture: LogFixture) -> None:
    """A read to the end of a segment does not need the offset index to find the end."""
    log = log_fixture.create()
    append(log, [RECORDS] * 3)
    log._segments.active.offset_index.release()
    assert log.read(RECORDS, LARGE, upper_bound=3 * RECORDS, waits=False).offset_count == 2 * RECORDS
    assert not log._segments.active.offset_index.is_loaded
