"""Reads the records of a log into memory. A thread waits for the disk."""

from __future__ import annotations

from anabranch.broker.log.cold_reads import TRIES, ColdError
from anabranch.broker.log.partition_log import PartitionLog


async def load_records(log: PartitionLog, offset: int, max_bytes: int) -> bytes:
    """The batches from ``offset`` (or the log start) towards the log end: at least one batch, if there is any.

    Raises ``OSError`` and the errors of ``PartitionLog.read``.
    """
    for tried in range(TRIES + 1):
        start = max(offset, log.log_start_offset)
        try:
            read = log.read(start, max_bytes, upper_bound=log.log_end_offset, waits=tried == TRIES)
        except ColdError as cold:
            await cold.warm()
        else:
            return read.records if isinstance(read.records, bytes) else await read.records.load()
    raise AssertionError("the last try waits for the disk, so it raises no ColdError")
