"""The four codecs of the record batch, with a bound on the decompressed size.

Compressed bytes are not trusted: a few kilobytes can claim gigabytes. ``decompress`` never allocates a buffer of more
than ``max_bytes``; the smaller buffer of the previous guess may still exist. Every refusal is a ``CorruptRecordError``.

The framing is that of Kafka's clients: gzip members; snappy either in the xerial stream format (Java) or as one raw
block (librdkafka); LZ4 frames of independent 64 KiB blocks (Java refuses linked blocks); zstd frames with or without
the content size.
"""

from __future__ import annotations

import enum
import mmap
from typing import Any, Final, TypeAlias

import cramjam

from anabranch.protocol.errors import ErrorCode, KafkaError

Buffer: TypeAlias = bytes | bytearray | memoryview


class CompressionType(enum.IntEnum):
    """Codec ids, the low three bits of a batch's attributes; ``name.lower()`` is Kafka's ``compression.type``."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CorruptRecordError(KafkaError):
    """A batch or record contradicts its header; the code is CORRUPT_MESSAGE unless a narrower one fits."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.CORRUPT_MESSAGE) -> None:
        super().__init__(code, message)


_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + b"\x00\x00\x00\x01\x00\x00\x00\x01"
_XERIAL_BLOCK_BYTES = 32 * 1024

# Magic, FLG (version 1, independent blocks, no checksums), BD (64 KiB blocks), and the header checksum of FLG and BD.
_LZ4_HEADER = b"\x04\x22\x4d\x18\x60\x40\x82"
_LZ4_BLOCK_BYTES = 64 * 1024
_LZ4_STORED = 0x80000000

_GZIP_MAX_RATIO = 1032
MOST_GROWTH: Final = {
    CompressionType.NONE: 1,
    CompressionType.GZIP: _GZIP_MAX_RATIO,
    CompressionType.SNAPPY: 22,
    CompressionType.LZ4: 256,
    CompressionType.ZSTD: 32_768,
}
"""The most bytes that one compressed byte can stand for."""

_SMALLEST_GUESS = 1024
_COPIED_AT_ONCE = 1024 * 1024
"""The number of bytes copied in one piece, because a copy holds the GIL.

Larger buffers are memory-mapped: the kernel clears each page at its first use.
"""
_GROWTH = 16


def compress(codec: CompressionType, data: Buffer, level: int | None = None) -> bytes:
    """``data`` compressed in the framing Kafka's clients read. ``level`` None is the codec's default in Kafka."""
    if codec == CompressionType.NONE:
        return bytes(data)
    if codec == CompressionType.GZIP:
        return bytes(cramjam.gzip.compress(data, 6 if level is None or level < 0 else level))
    if codec == CompressionType.SNAPPY:
        return _compress_xerial(data)
    if codec == CompressionType.LZ4:
        return _compress_lz4(data, level)
    return bytes(cramjam.zstd.compress(data, 3 if level is None else level))


def decompress(codec: CompressionType, data: Buffer, max_bytes: int) -> bytes:
    """Decompress ``data`` to at most ``max_bytes`` bytes.

    Raises CorruptRecordError: CORRUPT_MESSAGE for damaged input, MESSAGE_TOO_LARGE for output beyond ``max_bytes``.
    """
    if codec == CompressionType.NONE:
        if len(data) > max_bytes:
            raise _too_large(codec, max_bytes)
        return copied(memoryview(data))
    try:
        if codec == CompressionType.SNAPPY:
            if bytes(data[: len(_XERIAL_MAGIC)]) == _XERIAL_MAGIC:
                return _decompress_xerial(memoryview(data), max_bytes)
            return _decompress_snappy_block(data, max_bytes)
        if codec == CompressionType.GZIP:
            return _decompress_growing(cramjam.gzip, codec, data, _gzip_guess(data), max_bytes)
        if codec == CompressionType.LZ4:
            return _decompress_growing(cramjam.lz4, codec, data, len(data) * _GROWTH, max_bytes)
        return _decompress_growing(cramjam.zstd, codec, data, len(data) * _GROWTH, max_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptRecordError(f"{codec.name.lower()} data cannot be decompressed: {error}") from None


def _too_large(codec: CompressionType, max_bytes: int) -> CorruptRecordError:
    return CorruptRecordError(
        f"{codec.name.lower()} data decompresses to more than the {max_bytes} bytes allowed",
        ErrorCode.MESSAGE_TOO_LARGE,
    )


def _decompress_growing(module: Any, codec: CompressionType, data: Buffer, guess: int, max_bytes: int) -> bytes:
    """Decompress into a buffer of ``guess`` bytes. After an overflow, a larger buffer is tried, up to ``max_bytes``."""
    size = min(max(guess, _SMALLEST_GUESS), max_bytes)
    while True:
        output = bytearray(size) if size <= _COPIED_AT_ONCE else mmap.mmap(-1, size)
        try:
            written = module.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if "failed to write whole buffer" not in str(error):
                raise
        else:
            return copied(memoryview(output)[:written])
        if size >= max_bytes:
            raise _too_large(codec, max_bytes)
        size = min(size * _GROWTH, max_bytes)


def copied(view: memoryview) -> bytes:
    """The bytes of ``view``; many are copied in pieces, and other threads may run in between."""
    if len(view) <= _COPIED_AT_ONCE:
        return bytes(view)
    return b"".join([bytes(view[at : at + _COPIED_AT_ONCE]) for at in range(0, len(view), _COPIED_AT_ONCE)])


def _gzip_guess(data: Buffer) -> int:
    """The size in the last member's trailer, if deflate allows that ratio; else a multiple of the compressed size."""
    claimed = int.from_bytes(data[-4:], "little")
    return claimed if 0 < claimed <= len(data) * _GZIP_MAX_RATIO else len(data) * _GROWTH


def _decompress_snappy_block(block: Buffer, max_bytes: int, used_bytes: int = 0) -> bytes:
    if used_bytes + cramjam.snappy.decompress_raw_len(block) > max_bytes:
        raise _too_large(CompressionType.SNAPPY, max_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


def _decompress_xerial(data: memoryview, max_bytes: int) -> bytes:
    output = bytearray()
    pos = len(_XERIAL_HEADER)
    end = len(data)
    if end < pos:
        raise CorruptRecordError("snappy stream ends inside its header")
    while pos < end:
        block_end = pos + 4 + int.from_bytes(data[pos : pos + 4], "big")
        if pos + 4 > end or block_end > end:
            raise CorruptRecordError(f"snappy block at byte {pos} runs past the end of the stream")
        output += _decompress_snappy_block(data[pos + 4 : block_end], max_bytes, len(output))
        pos = block_end
    return bytes(output)


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [_XERIAL_HEADER]
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    parts = [_LZ4_HEADER]
    high = level is not None and level > 2
    for start in range(0, len(view), _LZ4_BLOCK_BYTES):
        chunk = view[start : start + _LZ4_BLOCK_BYTES]
        if high:
            block = bytes(
                cramjam.lz4.compress_block(chunk, mode="high_compression", compression=level, store_size=False)
            )
        else:
            block = bytes(cramjam.lz4.compress_block(chunk, mode="fast", acceleration=1, store_size=False))
        if len(block) < len(chunk):
            parts.append(len(block).to_bytes(4, "little"))
            parts.append(block)
        else:
            parts.append((len(chunk) | _LZ4_STORED).to_bytes(4, "little"))
            parts.append(bytes(chunk))
    parts.append(b"\x00\x00\x00\x00")
    return b"".join(parts)
