"""The parts of the generated codecs: errors, bounded lengths, tagged fields.

Every length is checked against the bytes left before anything is allocated. The encodings are those of KIP-482 and
Kafka's ``ByteBufferAccessor``.
"""

from __future__ import annotations

from typing import Any, Final

MAX_UVARINT_BYTES: Final = 5
MAX_UNKNOWN_TAGS: Final = 10_000
"""Tagged fields of one message that this side does not know, and skips."""
EMPTY: Final[list[Any]] = []
"""Stands for "a new empty list" as a default argument; never changed."""


class DecodeError(ValueError):
    """Bytes that are no valid message. The text names the message, the field and the byte offset."""


class EncodeError(ValueError):
    """The requested version cannot carry the object."""


# ---------------------------------------------------------------- decoding


def read_uvarint(data: memoryview, pos: int) -> tuple[int, int]:
    """Read an unsigned varint of at most 32 bits and five bytes. Returns the value and the position after it."""
    value = shift = 0
    for _ in range(MAX_UVARINT_BYTES):
        byte = data[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > 0xFFFFFFFF:
                raise DecodeError(f"varint of more than 32 bits before byte {pos}")
            return value, pos
        shift += 7
    raise DecodeError(f"varint of more than {MAX_UVARINT_BYTES} bytes before byte {pos}")


def bad_length(path: str, length: int, pos: int, size: int) -> DecodeError:
    """The error for a length that is negative or more than the bytes left."""
    return DecodeError(f"{path}: length {length} at byte {pos} where {size - pos} bytes are left")


def check_unknown_tags(count: int, pos: int) -> None:
    """Raise DecodeError for more unknown tagged fields than one message may have."""
    if count > MAX_UNKNOWN_TAGS:
        raise DecodeError(
            f"tagged fields before byte {pos}: {count} are unknown; {MAX_UNKNOWN_TAGS} are accepted in one message"
        )


def read_tags(data: memoryview, pos: int, count: int, known: tuple[int, ...]) -> tuple[dict[int, memoryview], int, int]:
    """The ``known`` tagged fields of a struct: tag -> bytes of the value; the position after all, and how many others.

    ``count`` is the first byte of the number of tags, just before ``pos``. Tags must ascend strictly. No object is made
    for a tag that is not known.
    """
    if count > 0x7F:
        count, pos = read_uvarint(data, pos - 1)
        check_unknown_tags(count - len(known), pos)
    size = len(data)
    tags: dict[int, memoryview] = {}
    last = -1
    for _ in range(count):
        tag = data[pos]
        pos += 1
        if tag > 0x7F:
            tag, pos = read_uvarint(data, pos - 1)
        length = data[pos]
        pos += 1
        if length > 0x7F:
            length, pos = read_uvarint(data, pos - 1)
        if tag <= last:
            raise DecodeError(f"tagged fields: tag {tag} after {last} before byte {pos}: tags must ascend")
        end = pos + length
        if end > size:
            raise bad_length(f"tag {tag}", length, pos, size)
        if tag in known:
            tags[tag] = data[pos:end]
        last = tag
        pos = end
    return tags, pos, count - len(tags)


def skip_tags(data: memoryview, pos: int, count: int) -> int:
    """Check and skip tagged fields, all of which are unknown. Returns the position after them."""
    return read_tags(data, pos, count, ())[1]


def whole(decoded: tuple[Any, int], value: memoryview, path: str) -> Any:
    """The value of a tagged field, which must take all of its bytes."""
    if decoded[1] != len(value):
        raise DecodeError(f"{path}: {len(value) - decoded[1]} bytes are left over in the tagged field")
    return decoded[0]


# ---------------------------------------------------------------- encoding


def write_uvarint(out: bytearray, value: int) -> None:
    """Append an unsigned varint."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def not_in_version(path: str) -> EncodeError:
    """The error for a value that this version has no field for."""
    return EncodeError(f"{path} is set, but this version has no such field")


def not_nullable(path: str) -> EncodeError:
    """The error for a None where this version has no null."""
    return EncodeError(f"{path} is None and this version has no null for it")
