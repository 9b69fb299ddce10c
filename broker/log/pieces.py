"""Cuts a leader's records into pieces, which are appended one at a time, with other tasks running in between."""

from __future__ import annotations

from collections.abc import Iterator

from anabranch.protocol.batch_layout import HEADER_BYTES, LENGTH, LENGTH_PREFIX_BYTES, Buffer

PIECE_BATCHES = 128
PIECE_BYTES = 1 << 20


def pieces_of(records: Buffer) -> Iterator[memoryview]:
    """``records`` in pieces of at most ``PIECE_BATCHES`` whole batches and ``PIECE_BYTES`` bytes.

    A single batch may be larger. The last piece includes a cut-off batch at the end, or bytes that are no batch.
    """
    view = memoryview(records)
    begin = end = batches = 0
    while end + HEADER_BYTES <= len(view):
        length = LENGTH.unpack_from(view, end)[1] + LENGTH_PREFIX_BYTES
        if length < HEADER_BYTES or end + length > len(view):
            break
        if batches == PIECE_BATCHES or (batches and end + length - begin > PIECE_BYTES):
            yield view[begin:end]
            begin, batches = end, 0
        end += length
        batches += 1
    if begin < len(view):
        yield view[begin:]
