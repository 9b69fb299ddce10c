"""Leaves out records of aborted transactions (isolation level read_committed), and every control batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anabranch.protocol.batch_layout import CONTROL_ABORT
from anabranch.protocol.control_records import read_control_record
from anabranch.protocol.records import RecordBatch


def visible_batches(
    batches: Iterable[RecordBatch], aborted: Iterable[tuple[int, int]], *, read_committed: bool
) -> Iterator[tuple[RecordBatch, bool]]:
    """Each batch and whether its records are for the user.

    ``aborted`` are (producer id, first offset) of the aborted transactions that overlap the batches, as the broker
    sends them. A transaction's records are left out from its first offset to its abort marker.
    """
    todo = sorted(aborted, key=lambda entry: entry[1])
    at = 0
    open_aborted: set[int] = set()
    for batch in batches:
        while at < len(todo) and todo[at][1] <= batch.last_offset:
            open_aborted.add(todo[at][0])
            at += 1
        if batch.is_control:
            if read_committed and _is_abort_marker(batch):
                open_aborted.discard(batch.producer_id)
            yield batch, False
        else:
            hidden = read_committed and batch.is_transactional and batch.producer_id in open_aborted
            yield batch, not hidden


def _is_abort_marker(batch: RecordBatch) -> bool:
    record = batch.control_record()
    return record is not None and read_control_record(record)[0] == CONTROL_ABORT
