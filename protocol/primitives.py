"""The base of the generated codecs: errors, bounded lengths, tagged fields, and the base of every message class.

Every length is checked against the bytes left before anything is allocated. The encodings are those of KIP-482 and
Kafka's ``ByteBufferAccessor``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Generator, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar

from anabranch.protocol.types import Buffer, Part

MAX_UVARINT_BYTES: Final = 5
EMPTY: Final[list[Any]] = []
"""Stands for "a new empty list" as a default argument; never changed."""


class DecodeError(ValueError):
    """Bytes that are no valid message. The text names the message, the field and the byte offset."""


class EncodeError(ValueError):
    """The requested version cannot carry the object."""


# ---------------------------------------------------------------- decoding


def read_uvarint(data: memoryview, pos: int) -> tuple[int, int]:
    """An unsigned varint of at most 32 bits and five bytes at ``pos``; value and the position after it."""
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


def read_tags(data: memoryview, pos: int, count: int) -> tuple[dict[int, memoryview], int]:
    """The tagged fields of a struct: tag -> bytes of the value, and the position after them.

    ``count`` is the first byte of the number of tags, just before ``pos``. Tags must ascend strictly.
    """
    if count > 0x7F:
        count, pos = read_uvarint(data, pos - 1)
    size = len(data)
    tags: dict[int, memoryview] = {}
    last = -1
    for _ in range(count):
        tag, pos = read_uvarint(data, pos)
        length, pos = read_uvarint(data, pos)
        if tag <= last:
            raise DecodeError(f"tagged fields: tag {tag} after {last} before byte {pos}: tags must ascend")
        end = pos + length
        if end > size:
            raise bad_length(f"tag {tag}", length, pos, size)
        tags[tag] = data[pos:end]
        last = tag
        pos = end
    return tags, pos


def skip_tags(data: memoryview, pos: int, count: int) -> int:
    """Check and skip tagged fields, none of which is known; returns the position after them."""
    return read_tags(data, pos, count)[1]


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


def _parts_to_bytes(parts: list[Part]) -> bytes:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise EncodeError(f"records are a {type(part).__name__}: only encode_parts can pass them on")
    return b"".join(parts)  # type: ignore[arg-type]


# ---------------------------------------------------------------- classes

M = TypeVar("M", bound="Message")
Decoder = Callable[[memoryview], tuple[Any, int]]
Encoder = Callable[[Any, bytearray, list[Part]], None]


class Struct:
    """Base of every generated class: equality and repr by fields."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes, in the order of the field table. (A compiled class has no ``__slots__``.)"""
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in self.FIELDS)

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELDS)
        return f"{type(self).__name__}({fields})"


def has_more_items(message: Struct, limit: int) -> bool:
    """Whether the arrays of a message, and of the structs in them, have more than ``limit`` items in all."""
    count = 0
    unseen = [message]
    while unseen:
        found = unseen.pop()
        for name in found.FIELDS:
            value = getattr(found, name)
            if type(value) is list:
                count += len(value)
                if count > limit:
                    return True
                if value and isinstance(value[0], Struct):
                    unseen += value
    return False


class Message(Struct):
    """Base of a top-level message: its codecs, one per version."""

    __slots__ = ()

    API_KEY: ClassVar[int] = -1
    TABLE: ClassVar[str] = ""
    """The place of the field table: ``module:NAME`` under ``protocol.messages``."""
    DECODERS: ClassVar[Mapping[int, Decoder]] = {}
    ENCODERS: ClassVar[Mapping[int, Encoder]] = {}

    @classmethod
    def decode(cls, data: Buffer, version: int) -> Self:
        """The message that is all of ``data``. ``records`` fields are slices of ``data``. Raises DecodeError."""
        decoded, end = cls.decode_prefix(data, version)
        if end != len(data):
            raise DecodeError(f"{cls.__name__} v{version}: {len(data) - end} bytes are left over after byte {end}")
        return decoded

    @classmethod
    def decode_prefix(cls, data: Buffer, version: int) -> tuple[Self, int]:
        """The message at the start of ``data``, and the position after it. Raises DecodeError."""
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            raise DecodeError(f"{cls.__name__} has no version {version}")
        view = data if type(data) is memoryview else memoryview(data)
        try:
            return decoder(view)
        except (struct.error, IndexError, ValueError) as error:
            raise DecodeError(f"{cls.__name__} v{version}: {_reason(cls, view, version, error)}") from error

    def encode_into(self, version: int, out: bytearray, parts: list[Part]) -> None:
        """Append the message to ``out`` and ``out`` to ``parts``; records go into ``parts`` as they are."""
        encoder = self.ENCODERS.get(version)
        if encoder is None:
            raise EncodeError(f"{type(self).__name__} has no version {version}")
        try:
            encoder(self, out, parts)
        except (struct.error, AttributeError, TypeError, ValueError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error

    @classmethod
    def decode_in_steps(cls, data: memoryview, version: int) -> Generator[None, None, tuple[Self, int]]:
        """``decode_prefix`` for a message of many items: yields after each."""
        from anabranch.protocol import steps

        try:
            decoded: tuple[Self, int] = yield from steps.decoder(cls, version)(data)  # type: ignore[arg-type]
        except (struct.error, IndexError, ValueError) as error:
            raise DecodeError(f"{cls.__name__} v{version}: {_reason(cls, data, version, error)}") from error
        return decoded

    def encode_in_steps(self, version: int, out: bytearray, parts: list[Part]) -> Generator[None, None, None]:
        """``encode_into`` for a message of many items: yields after each. The message must not change meanwhile."""
        from anabranch.protocol import steps

        try:
            yield from steps.encoder(type(self), version)(self, out, parts)  # type: ignore[arg-type]
        except (struct.error, AttributeError, TypeError, ValueError) as error:
            raise EncodeError(f"{type(self).__name__} v{version}: {error}") from error

    def encode_parts(self, version: int) -> list[Part]:
        """The encoded message in pieces; a ``records`` field is a piece of its own, not copied. Raises EncodeError."""
        parts: list[Part] = []
        self.encode_into(version, bytearray(), parts)
        return parts

    def encode(self, version: int) -> bytes:
        """The encoded message in one piece. Raises EncodeError."""
        return _parts_to_bytes(self.encode_parts(version))


_MAX_EXPLAINED_BYTES: Final = 4096
"""The longest message that is decoded again to name the field at fault: a broken peer must not cost much."""


def _reason(cls: type[Message], data: memoryview, version: int, error: Exception) -> str:
    """The field at fault. The flat codec does not track it, so the reference codec decodes a short message again."""
    if isinstance(error, DecodeError):
        return str(error)
    if len(data) <= _MAX_EXPLAINED_BYTES:
        from anabranch.protocol import reference

        found = reference.explain(cls.TABLE, data, version)
        if found is not None:
            return found
    return f"cut short or not valid ({error}) within {len(data)} bytes"


def encode_versioned(message: Message, version: int) -> bytes:
    """A message behind its version as int16: keys and values in ``__consumer_offsets``, the consumer protocol."""
    out = bytearray(version.to_bytes(2, "big"))
    parts: list[Part] = []
    message.encode_into(version, out, parts)
    return _parts_to_bytes(parts)


def read_version(data: Buffer) -> int:
    """The int16 version in front of a versioned message."""
    if len(data) < 2:
        raise DecodeError(f"version: {len(data)} bytes where 2 are needed")
    return int.from_bytes(data[:2], "big", signed=True)


def decode_versioned(cls: type[M], data: Buffer) -> tuple[int, M]:
    """Version and message. A version that ``cls`` does not have is a DecodeError."""
    version = read_version(data)
    return version, cls.decode(memoryview(data)[2:], version)


def decode_tolerantly(cls: type[M], data: Buffer) -> tuple[int, M]:
    """Version and message; a version newer than ``cls`` knows is read as the newest one and may hold more bytes.

    That is the rule of the consumer protocol, where a newer member may write a newer version.
    """
    version = read_version(data)
    newest = max(cls.DECODERS)
    if version <= newest:
        return version, cls.decode(memoryview(data)[2:], version)
    return version, cls.decode_prefix(memoryview(data)[2:], newest)[0]
