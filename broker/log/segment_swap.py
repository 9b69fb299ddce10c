"""Replaces segments by a compacted segment. A crash at any moment leaves either the old segments or the new segment.

The cleaner writes ``<base>.log.cleaned`` (and ``.txnindex.cleaned``), syncs them, and calls ``commit_cleaned``. The
swap is committed when the log is renamed to ``.swap``. If the broker crashes before, the next start discards the new
files. If it crashes later, the next start completes ``finish_swap``. Indexes are rebuilt from the log.
"""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.log.paths import (
    CLEANED_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SWAP_SUFFIX,
    offset_of,
    segment_file,
)
from anabranch.broker.log.segment import scan_headers
from anabranch.runtime.env import Storage

_TXN_INDEX = ".txnindex"


def commit_cleaned(storage: Storage, directory: str, base_offset: int) -> None:
    """Commit the cleaned segment at ``base_offset``. Raises ``OSError``; then the old segments stay."""
    txn_index = segment_file(directory, base_offset, _TXN_INDEX)
    _remove(storage, txn_index + SWAP_SUFFIX)  # left by an earlier attempt
    if storage.exists(txn_index + CLEANED_SUFFIX):
        storage.rename(txn_index + CLEANED_SUFFIX, txn_index + SWAP_SUFFIX)
    elif storage.exists(txn_index):  # no aborted transactions are left: an empty index replaces the old index
        storage.open(txn_index + SWAP_SUFFIX, create=True).close()
    log = segment_file(directory, base_offset, LOG_SUFFIX)
    storage.rename(log + CLEANED_SUFFIX, log + SWAP_SUFFIX)


def finish_swap(storage: Storage, directory: str, base_offset: int, replaced: Iterable[int]) -> None:
    """Put the committed segment in place and remove the segments that it replaces; repeatable. Raises ``OSError``.

    The log file is renamed last. If the process crashes before that, the next start does all of this again.
    """
    for base in replaced:
        if base != base_offset:
            for suffix in reversed(SEGMENT_SUFFIXES):
                _remove(storage, segment_file(directory, base, suffix))
    for suffix in SEGMENT_SUFFIXES:
        path = segment_file(directory, base_offset, suffix)
        if suffix == LOG_SUFFIX:
            continue
        if suffix == _TXN_INDEX and storage.exists(path + SWAP_SUFFIX):
            storage.rename(path + SWAP_SUFFIX, path)
        elif suffix != _TXN_INDEX:
            _remove(storage, path)
    log = segment_file(directory, base_offset, LOG_SUFFIX)
    storage.rename(log + SWAP_SUFFIX, log)


def finish_swaps(storage: Storage, directory: str) -> None:
    """At the start: finish the committed swaps, discard the others, and remove ``.deleted`` files."""
    names = storage.listdir(directory)
    swaps = [offset_of(name) for name in names if name.endswith(LOG_SUFFIX + SWAP_SUFFIX)]
    bases = [offset_of(name) for name in names if name.endswith(LOG_SUFFIX)]
    for base in swaps:
        if base is None:
            continue
        end = _end_offset(storage, segment_file(directory, base, LOG_SUFFIX) + SWAP_SUFFIX, base)
        finish_swap(storage, directory, base, [other for other in bases if other is not None and base < other < end])
    for name in storage.listdir(directory):
        if name.endswith((".deleted", CLEANED_SUFFIX, SWAP_SUFFIX, ".tmp")):
            storage.remove(f"{directory}/{name}")


def _end_offset(storage: Storage, path: str, base_offset: int) -> int:
    file = storage.open(path)
    try:
        end = base_offset
        for _, batch in scan_headers(file, 0, file.size()):
            end = batch.next_offset
        return end
    finally:
        file.close()


def _remove(storage: Storage, path: str) -> None:
    if storage.exists(path):
        storage.remove(path)
