"""The records of many batches at once: numpy arrays with one entry per record, and Arrow arrays of bytes (KIP-98).

Records have no index, so the start of a record is known only after the record before it is read. Hence the starts are
found step by step, for all batches side by side. Then each field is read for all records together. A batch that breaks
a rule of the format is only marked; ``RecordBatch.records`` raises the error that names the fault.

Arrays are in the order of the batches, and of the records in them. Positions are in ``body``; a length of -1 is null.
The rest of the project runs without numpy and pyarrow: only the two Spark sources import this.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.protocol.batch_layout import MAX_BATCH_ELEMENTS, SMALLEST_RECORD_BYTES
from anabranch.protocol.compression import CorruptRecordError
from anabranch.protocol.key_placement import modulus
from anabranch.protocol.records import read_varint, skip_headers

Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"
Bytes: TypeAlias = "np.ndarray[Any, np.dtype[np.uint8]]"
Arrays: TypeAlias = "pa.Array"

HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

PADDING = bytes(16)
"""The bytes after the last batch of a body: a truncated field is read from this padding, not beyond the array."""
FEW_BATCHES = 48
"""With fewer batches than this, reading one batch after the other is faster than side by side."""
_LONGEST_LENGTH_BYTES = 5
_ROUNDS = 256
"""The first headers of all records are read side by side, and the headers after these record by record."""


class Columns(NamedTuple):
    """The fields of records; ``batch`` is the index of a record's batch."""

    batch: Ints
    offset_delta: Ints
    timestamp_delta: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints
    headers_at: Ints
    header_count: Ints

    def where(self, kept: Bools) -> Columns:
        return Columns(*(column[kept] for column in self))


def decode(
    body: Bytes, starts: Ints, ends: Ints, counts: Ints, last_deltas: Ints, bases: Ints
) -> tuple[Columns, Bools]:
    """The records of decompressed batches, and a mask of the malformed batches.

    The batches are ``body[start:end]``; ``body`` ends with ``PADDING``. ``bases`` are the timestamps to which the
    records' deltas are added. Malformed batches have no records in the columns.
    """
    bad = (counts < 0) | (counts > MAX_BATCH_ELEMENTS) | (counts * SMALLEST_RECORD_BYTES > ends - starts)
    counts = np.where(bad, 0, counts)
    batch = np.repeat(np.arange(len(counts)), counts)
    begins, stops = _record_bounds(body, starts, ends, counts, bad)
    columns, wrong = _read_fields(body, batch, begins, stops)
    wrong |= (columns.offset_delta < 0) | (columns.offset_delta > last_deltas[batch])
    base, created = bases[batch], bases[batch] + columns.timestamp_delta
    wrong |= ((base ^ created) & (columns.timestamp_delta ^ created)) < 0  # the sum does not fit into 64 bits
    wrong[1:] |= (batch[1:] == batch[:-1]) & (columns.offset_delta[1:] <= columns.offset_delta[:-1])
    bad[batch[wrong]] = True
    return (columns.where(~bad[batch]) if bad.any() else columns), bad


def _record_bounds(body: Bytes, starts: Ints, ends: Ints, counts: Ints, bad: Bools) -> tuple[Ints, Ints]:
    """The start (after the length) and the end of each record. Batches with wrong lengths are marked in ``bad``."""
    first = np.cumsum(counts) - counts
    begins, stops = np.zeros(int(counts.sum()), np.int64), np.zeros(int(counts.sum()), np.int64)
    order = np.argsort(-counts, kind="stable")
    descending = -counts[order]
    at, limit, row = starts[order], ends[order], first[order]
    number, active = 0, int(np.searchsorted(descending, 0))
    while active > FEW_BATCHES:
        length, begin, wrong = _varints(body, at[:active], 32)
        end = begin + length
        wrong |= (length < SMALLEST_RECORD_BYTES - 1) | (end > limit[:active])
        if wrong.any():
            bad[order[:active][wrong]] = True
            begin, end = np.where(wrong, at[:active], begin), np.where(wrong, at[:active], end)
        begins[row[:active] + number] = begin
        stops[row[:active] + number] = end
        at[:active] = end
        number += 1
        active = int(np.searchsorted(descending, -number))
    for index in range(active):
        _rest_of_batch(body, index, number, at, order, limit, row, counts, begins, stops, bad)
    bad |= (at != limit)[np.argsort(order)]
    return begins, stops


def _rest_of_batch(
    body: Bytes,
    index: int,
    number: int,
    at: Ints,
    order: Ints,
    limit: Ints,
    row: Ints,
    counts: Ints,
    begins: Ints,
    stops: Ints,
    bad: Bools,
) -> None:
    """The bounds of a batch's records, beginning with the record of this number."""
    batch = int(order[index])
    base, end, left = int(at[index]), int(limit[index]), int(counts[batch]) - number
    data = body[base:end].tobytes() + PADDING
    size, pos = end - base, 0
    found_begins, found_stops = [], []
    for _ in range(left):
        byte = data[pos]
        pos += 1
        z, shift = byte & 0x7F, 7
        while byte >= 0x80 and shift <= 7 * _LONGEST_LENGTH_BYTES:
            byte = data[pos]
            pos += 1
            z |= (byte & 0x7F) << shift
            shift += 7
        stop = pos + (z >> 1)
        if byte >= 0x80 or z & 1 or z >> 32 or stop > size or stop - pos < SMALLEST_RECORD_BYTES - 1:
            bad[batch] = True
            return
        found_begins.append(pos)
        found_stops.append(stop)
        pos = stop
    rows = slice(int(row[index]) + number, int(row[index]) + number + left)
    begins[rows] = np.array(found_begins, np.int64) + base
    stops[rows] = np.array(found_stops, np.int64) + base
    at[index] = base + pos


def _read_fields(body: Bytes, batch: Ints, begins: Ints, stops: Ints) -> tuple[Columns, Bools]:
    """The fields of the records in ``body[begin:stop]``, and a mask of the malformed records."""
    timestamp_delta, at, wrong = _varints(body, begins + 1, 64)
    offset_delta, at, overlong = _varints(body, at, 32)
    wrong |= overlong
    key_length, key_at, overlong = _varints(body, at, 32)
    wrong |= overlong | (key_length < -1) | (key_length > stops - key_at)
    at = np.where(wrong, begins, key_at + np.maximum(key_length, 0))
    value_length, value_at, overlong = _varints(body, at, 32)
    wrong |= overlong | (value_length < -1) | (value_length > stops - value_at)
    at = np.where(wrong, begins, value_at + np.maximum(value_length, 0))
    header_count, headers_at, overlong = _varints(body, at, 32)
    wrong |= overlong | (header_count < 0) | (header_count > (stops - headers_at) >> 1)
    if header_count.any():
        wrong |= np.bincount(batch, np.where(wrong, 0, header_count))[batch] > MAX_BATCH_ELEMENTS
    at = headers_at.copy()
    left = np.flatnonzero((header_count > 0) & ~wrong)
    number = 0
    while left.size:
        if number == _ROUNDS:
            for index in left:
                at[index], wrong[index] = _skip_rest(body, at[index], stops[index], header_count[index] - number)
            break
        at[left], malformed = _skip_header(body, at[left], stops[left])
        wrong[left[malformed]] = True
        number += 1
        left = left[(header_count[left] > number) & ~malformed]
    wrong |= at != stops
    columns = Columns(
        batch, offset_delta, timestamp_delta, key_at, key_length, value_at, value_length, headers_at, header_count
    )
    return columns, wrong


def _skip_rest(body: Bytes, at: int, stop: int, count: int) -> tuple[int, bool]:
    """The position after the last ``count`` headers of a record, and whether they are malformed."""
    try:
        return int(at) + skip_headers(body[at:stop].tobytes(), 0, int(count), int(stop - at)), False
    except (CorruptRecordError, IndexError):
        return int(stop), True


def _skip_header(body: Bytes, at: Ints, stops: Ints) -> tuple[Ints, Bools]:
    """The position after the header at each position, and a mask of the malformed headers."""
    length, at, wrong = _varints(body, at, 32)
    wrong |= (length < 0) | (length > stops - at)
    length, at, overlong = _varints(body, np.where(wrong, 0, at + length), 32)
    wrong |= overlong | (length < -1) | (length > stops - at)
    return np.where(wrong, stops, at + np.maximum(length, 0)), wrong


def _varints(body: Bytes, at: Ints, bits: int) -> tuple[Ints, Ints, Bools]:
    """The zigzag numbers of at most ``bits`` bits at these positions, the next positions, and a mask of longer numbers.

    With 32 bits, some larger numbers are not marked: these are lengths and deltas, whose bounds the caller checks.
    """
    last = len(body) - 1
    byte = body[np.minimum(at, last)]
    number = (byte & 0x7F).astype(np.uint64)
    end = at + 1
    wrong = np.zeros(len(at), np.bool_)
    left = np.flatnonzero(byte >= 0x80)
    shift = 7
    while left.size:
        if shift >= bits + 6:
            wrong[left] = True
            break
        byte = body[np.minimum(end[left], last)]
        number[left] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        if shift + 7 > 64:
            wrong[left[byte & 0x7F >= 1 << 64 - shift]] = True
        end[left] += 1
        left = left[byte >= 0x80]
        shift += 7
    return (number >> np.uint64(1)).view(np.int64) ^ -(number & np.uint64(1)).view(np.int64), end, wrong


def base_timestamps(is_append_time: Bools, base: Ints) -> Ints:
    """The ``bases`` of ``decode`` for batches with these base timestamps: LogAppendTime adds no deltas."""
    return np.where(is_append_time, 0, base)


def timestamps(columns: Columns, is_append_time: Bools, base: Ints, largest: Ints) -> Ints:
    """The timestamp of each record. The array arguments have one entry per batch, from the batch headers."""
    created = base[columns.batch] + columns.timestamp_delta
    return np.where(is_append_time[columns.batch], largest[columns.batch], created)


class Headers(NamedTuple):
    """The headers of records, in the order of records; ``record`` is the index of a header's record."""

    record: Ints
    key_at: Ints
    key_length: Ints
    value_at: Ints
    value_length: Ints


def headers(body: Bytes, columns: Columns) -> Headers:
    """All headers of the records in ``columns``, which ``decode`` has checked."""
    left = np.flatnonzero(columns.header_count)
    at, number, found = columns.headers_at[left], 0, [Headers(*(np.zeros(0, np.int64),) * 5)]
    while left.size:
        if number == _ROUNDS:
            rests = zip(left.tolist(), at.tolist(), (columns.header_count[left] - number).tolist(), strict=True)
            data = body.tobytes()
            found += [_rest_of_headers(data, *rest) for rest in rests]
            break
        key_length, key_at, _ = _varints(body, at, 32)
        value_length, value_at, _ = _varints(body, key_at + key_length, 32)
        found.append(Headers(left, key_at, key_length, value_at, value_length))
        number += 1
        more = columns.header_count[left] > number
        left, at = left[more], (value_at + np.maximum(value_length, 0))[more]
    together = [np.concatenate(columns) for columns in zip(*found, strict=True)]
    order = np.argsort(together[1])
    return Headers(*(column[order] for column in together))


def _rest_of_headers(data: bytes, record: int, pos: int, count: int) -> Headers:
    """The last ``count`` headers of a record. They begin at ``pos``."""
    rows = []
    for _ in range(count):
        key_length, key_at = read_varint(data, pos, 32)
        value_length, value_at = read_varint(data, key_at + key_length, 32)
        rows.append((record, key_at, key_length, value_at, value_length))
        pos = value_at + max(value_length, 0)
    return Headers(*np.array(rows, np.int64).T)


def having_header(body: Bytes, columns: Columns, name: str) -> Bools:
    """Which records have a header of this name."""
    found = np.zeros(len(columns.batch), np.bool_)
    if columns.header_count.any() and body.tobytes().find(name.encode()) >= 0:
        read = headers(body, columns)
        named = pc.equal(gather(body, read.key_at, read.key_length), name.encode())
        found[read.record[np.asarray(named.to_numpy(zero_copy_only=False), np.bool_)]] = True
    return found


# ---------------------------------------------------------------- Arrow


def gather(body: Bytes, at: Ints, lengths: Ints) -> Arrays:
    """The bytes at these ascending positions of ``body``; null where the length is negative.

    ``body`` is less than 2 GiB. One Arrow array covers all of ``body``: the requested ranges alternate with the gaps
    between them. Arrow then copies the requested ranges.
    """
    count = len(at)
    if not count:
        return pa.nulls(0, pa.binary())
    offsets = np.empty(2 * count, np.int32)
    offsets[0::2], offsets[1::2] = at, at + np.maximum(lengths, 0)
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), pa.py_buffer(body)])
    null = lengths < 0
    return pieces.take(pa.array(np.arange(0, 2 * count, 2), mask=null if null.any() else None))


def header_lists(body: Bytes, columns: Columns) -> Arrays:
    """The headers of each record, of the type ``HEADERS``."""
    read = headers(body, columns)
    keys = gather(body, read.key_at, read.key_length)
    try:
        names = keys.cast(pa.string())
    except pa.ArrowInvalid:
        names = pa.array([key.as_py().decode("utf-8", "replace") for key in keys], pa.string())
    values = gather(body, read.value_at, read.value_length)
    pairs = pa.StructArray.from_arrays([names, values], fields=list(HEADERS.value_type))
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(columns.header_count)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pairs)


# ---------------------------------------------------------------- placement


def place_all(hashes: Ints, initial: Ints, undeleted: Ints, layout: Ints) -> Ints:
    """``protocol.key_placement.place`` of each hash under the counts with the index ``layout``."""
    pairs = zip(initial.tolist(), undeleted.tolist(), strict=True)
    m = np.array([modulus(*counts) for counts in pairs], np.int64)[layout]
    partition = hashes % m
    return np.where(partition < undeleted[layout] - m, hashes % (2 * m), partition)


_M = np.uint32(0x5BD1E995)
_SEED = np.uint32(0x9747B28C)


def positive_hashes(body: Bytes, at: Ints, lengths: Ints) -> Ints:
    """``protocol.key_placement.positive_hash`` of the keys ``body[at:at + length]``. Lengths are at least 0."""
    hashes = np.empty(len(at), np.int64)
    order = np.argsort(lengths, kind="stable")
    bounds = np.flatnonzero(np.diff(lengths[order])) + 1
    for rows in np.split(order, bounds):
        if rows.size:
            hashes[rows] = _murmur2(body, at[rows], int(lengths[rows[0]])) & np.uint32(0x7FFFFFFF)
    return hashes


def _murmur2(body: Bytes, at: Ints, length: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """murmur2 of keys that have the same length."""
    h = np.full(len(at), _SEED ^ np.uint32(length), np.uint32)
    whole = length & ~3
    with np.errstate(over="ignore"):
        for position in range(0, whole, 4):
            k = _word(body, at + position, 4) * _M
            h = h * _M ^ (k ^ k >> np.uint32(24)) * _M
        if length > whole:
            h = (h ^ _word(body, at + whole, length - whole)) * _M
        h ^= h >> np.uint32(13)
        h *= _M
        h ^= h >> np.uint32(15)
    return h


def _word(body: Bytes, at: Ints, size: int) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """``size`` little-endian bytes at each position."""
    word = body[at].astype(np.uint32)
    for index in range(1, size):
        word |= body[at + index].astype(np.uint32) << np.uint32(8 * index)
    return word
