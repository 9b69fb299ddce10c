"""The base classes of the generated messages: fields, codecs by version, and messages behind a version."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final, Self, TypeVar

from anabranch.protocol.primitives import DecodeError, EncodeError
from anabranch.protocol.types import Buffer, Part

M = TypeVar("M", bound="Message")
Decoder = Callable[[memoryview], tuple[Any, int]]
Encoder = Callable[[Any, bytearray, list[Part]], None]


class Struct:
    """Base of every generated class: equality and repr by fields."""

    __slots__ = ()

    FIELDS: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes, in the order of the field table. (A compiled class has no ``__slots__``.)"""
    ARRAYS: ClassVar[tuple[str, ...]] = ()
    """The names of those that have a list."""
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
    for found in unseen:  # it grows meanwhile
        for name in found.ARRAYS:
            value = getattr(found, name)
            if value:
                count += len(value)
                if count > limit:
                    return True
                if isinstance(value[0], Struct):
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
        """Decode a message that takes all of ``data``; ``records`` fields are slices of it. Raises DecodeError."""
        decoded, end = cls.decode_prefix(data, version)
        if end != len(data):
            raise DecodeError(f"{cls.__name__} v{version}: {len(data) - end} bytes are left over after byte {end}")
        return decoded

    @classmethod
    def decode_prefix(cls, data: Buffer, version: int) -> tuple[Self, int]:
        """Decode the message at the start of ``data``. Returns it and the position after it. Raises DecodeError."""
        decoder = cls.DECODERS.get(version)
        if decoder is None:
            raise DecodeError(f"{cls.__name__} has no version {version}")
        view = data if type(data) is memoryview else memoryview(data)
        try:
            return decoder(view)
        except (struct.error, IndexError, ValueError) as error:
            raise DecodeError(f"{cls.__name__} v{version}: {reason_of(cls, view, version, error)}") from error

    def encode_into(self, version: int, out: bytearray, parts: list[Part]) -> None:
        """Append the encoded message to ``out``, and ``out`` to ``parts``. Records go to ``parts`` without a copy."""
        encoder = self.ENCODERS.get(version)
        if encoder is None:
            raise EncodeError(f"{type(self).__name__} has no version {version}")
        try:
            encoder(self, out, parts)
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


def _parts_to_bytes(parts: list[Part]) -> bytes:
    for part in parts:
        if not isinstance(part, bytes | bytearray | memoryview):
            raise EncodeError(f"records are a {type(part).__name__}: only encode_parts can pass them on")
    return b"".join(parts)  # type: ignore[arg-type]


_MAX_EXPLAINED_BYTES: Final = 4096
"""The longest message that is decoded again to name the field at fault: a faulty peer must not take much CPU time."""


def reason_of(cls: type[Message], data: memoryview, version: int, error: Exception) -> str:
    """The field at fault. The flat codec does not track it, so the reference codec decodes a short message again."""
    if isinstance(error, DecodeError):
        return str(error)
    if len(data) <= _MAX_EXPLAINED_BYTES:
        from anabranch.protocol import reference  # construct, which most processes never need

        found = reference.explain(cls.TABLE, data, version)
        if found is not None:
            return found
    return f"cut short or not valid ({error}) within {len(data)} bytes"


def encode_versioned(message: Message, version: int) -> bytes:
    """Encode a message after its int16 version, as in ``__consumer_offsets`` and in the consumer protocol."""
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
    """Decode version and message. Raises DecodeError for a version that ``cls`` does not have."""
    version = read_version(data)
    return version, cls.decode(memoryview(data)[2:], version)


def decode_tolerantly(cls: type[M], data: Buffer) -> tuple[int, M]:
    """Decode version and message. A version above those of ``cls`` is read as the highest of ``cls``; bytes may follow.

    This is the rule of the consumer protocol, in which a newer member may write a newer version.
    """
    version = read_version(data)
    newest = max(cls.DECODERS)
    if version <= newest:
        return version, cls.decode(memoryview(data)[2:], version)
    return version, cls.decode_prefix(memoryview(data)[2:], newest)[0]
