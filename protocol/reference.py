"""The reference codec: a construct struct for every message and version, built from the field tables on first use.

This codec is slow (tens of microseconds a message) and simple. The generated codec must give the same results. When a
message cannot be decoded, the reference codec names the field at fault. A message is a mapping of field names to
values; null is None.
"""

# construct has no types, so its classes are Any to mypy.
# mypy: disable-error-code="misc"

from __future__ import annotations

import functools
import io
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import construct

from anabranch.protocol.primitives import MAX_UVARINT_BYTES
from anabranch.protocol.schema import Field, min_bytes, plain_fields, table_named, tagged_fields


class BoundError(construct.ConstructError):
    """A length, varint or tag that is out of bounds."""


def _left(stream: io.BytesIO) -> int:
    """Bytes from the position to the end of the stream."""
    here = stream.tell()
    end = stream.seek(0, io.SEEK_END)
    stream.seek(here)
    return end - here


class Uvarint(construct.Construct):
    """An unsigned varint of at most five bytes and 32 bits. (construct's own ``VarInt`` has no bound.)"""

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> int:
        value = 0
        byte: int
        for index in range(MAX_UVARINT_BYTES):
            byte = construct.stream_read(stream, 1, path)[0]
            value |= (byte & 0x7F) << 7 * index
            if byte < 0x80:
                if value >> 32:
                    raise BoundError("varint of more than 32 bits", path=path)
                return value
        raise BoundError(f"varint of more than {MAX_UVARINT_BYTES} bytes", path=path)

    def _build(self, obj: int, stream: io.BytesIO, context: Any, path: str) -> int:
        rest = obj
        while rest > 0x7F:
            stream.write(bytes([rest & 0x7F | 0x80]))
            rest >>= 7
        stream.write(bytes([rest]))
        return obj


class CompactLength(construct.Adapter):
    """A length, encoded as a varint of the length plus one; -1 is null."""

    def __init__(self) -> None:
        super().__init__(Uvarint())

    def _decode(self, obj: int, context: Any, path: str) -> int:
        return obj - 1

    def _encode(self, obj: int, context: Any, path: str) -> int:
        return obj + 1


class CountedItems(construct.Construct):
    """A length, and as many items of at least ``least`` bytes each. The length is checked before the items are read."""

    def __init__(self, length: construct.Construct, least: int, nullable: bool) -> None:
        super().__init__()
        self.length = length
        self.least = least
        self.nullable = nullable

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> Any:
        count = self.length._parsereport(stream, context, path)
        if count == -1 and self.nullable:
            return None
        left = _left(stream)
        if count < 0 or count * self.least > left:
            raise BoundError(f"length {count} where {left} bytes are left", path=path)
        return self.parse_items(stream, count, context, path)

    def _build(self, obj: Any, stream: io.BytesIO, context: Any, path: str) -> Any:
        if obj is None and not self.nullable:
            raise BoundError("null where there must be a value", path=path)
        items = self.to_items(obj)
        self.length._build(-1 if items is None else len(items), stream, context, path)
        if items is not None:
            self.build_items(items, stream, context, path)
        return obj

    def to_items(self, obj: Any) -> Any:
        return obj

    def parse_items(self, stream: io.BytesIO, count: int, context: Any, path: str) -> Any:
        return construct.stream_read(stream, count, path)

    def build_items(self, items: Any, stream: io.BytesIO, context: Any, path: str) -> None:
        stream.write(bytes(items))


class BytesField(CountedItems):
    """Bytes, or a record set."""

    def __init__(self, flexible: bool, nullable: bool) -> None:
        super().__init__(CompactLength() if flexible else construct.Int32sb, 1, nullable)


class StringField(CountedItems):
    """A UTF-8 string."""

    def __init__(self, flexible: bool, nullable: bool) -> None:
        super().__init__(CompactLength() if flexible else construct.Int16sb, 1, nullable)

    def to_items(self, obj: str | None) -> bytes | None:
        return None if obj is None else obj.encode()

    def parse_items(self, stream: io.BytesIO, count: int, context: Any, path: str) -> str:
        raw = construct.stream_read(stream, count, path)
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError as error:
            raise BoundError(f"not UTF-8: {error}", path=path) from error


class ArrayField(CountedItems):
    """An array of ``element``."""

    def __init__(self, element: construct.Construct, least: int, flexible: bool, nullable: bool) -> None:
        super().__init__(CompactLength() if flexible else construct.Int32sb, least, nullable)
        self.element = element

    def parse_items(self, stream: io.BytesIO, count: int, context: Any, path: str) -> list[Any]:
        return [self.element._parsereport(stream, context, f"{path}[{index}]") for index in range(count)]

    def build_items(self, items: Sequence[Any], stream: io.BytesIO, context: Any, path: str) -> None:
        for index, item in enumerate(items):
            self.element._build(item, stream, context, f"{path}[{index}]")


class UuidField(construct.Adapter):
    """Sixteen bytes."""

    def __init__(self) -> None:
        super().__init__(construct.Bytes(16))

    def _decode(self, obj: bytes, context: Any, path: str) -> uuid.UUID:
        return uuid.UUID(bytes=obj)

    def _encode(self, obj: uuid.UUID, context: Any, path: str) -> bytes:
        return obj.bytes


class FlexibleStruct(construct.Construct):
    """A struct that ends in tagged fields. A tagged field at its default is not written; unknown tags are skipped."""

    def __init__(self, plain: construct.Struct, tagged: Sequence[tuple[Field, construct.Construct]]) -> None:
        super().__init__()
        self.plain = plain
        self.tagged = {f.tag: (f, element) for f, element in tagged if f.tag is not None}
        self.uvarint = Uvarint()

    def _parse(self, stream: io.BytesIO, context: Any, path: str) -> construct.Container:
        found = self.plain._parsereport(stream, context, path)
        for f, _ in self.tagged.values():
            found[f.name] = f.default
        last = -1
        for _ in range(self.uvarint._parse(stream, context, path)):
            tag = self.uvarint._parse(stream, context, path)
            size = self.uvarint._parse(stream, context, path)
            if tag <= last:
                raise BoundError(f"tag {tag} after {last}: tags must ascend", path=path)
            if size > _left(stream):
                raise BoundError(f"tag {tag}: length {size} where {_left(stream)} bytes are left", path=path)
            last = tag
            value = construct.stream_read(stream, size, path)
            if tag in self.tagged:
                f, element = self.tagged[tag]
                found[f.name] = _parse_whole(element, value, context, f"{path} -> {f.name}")
        return found

    def _build(self, obj: Mapping[str, Any], stream: io.BytesIO, context: Any, path: str) -> Any:
        self.plain._build(obj, stream, context, path)
        given = [(tag, f, element) for tag, (f, element) in self.tagged.items() if obj[f.name] != f.default]
        self.uvarint._build(len(given), stream, context, path)
        for tag, f, element in given:
            value = element.build(obj[f.name])
            self.uvarint._build(tag, stream, context, path)
            self.uvarint._build(len(value), stream, context, path)
            stream.write(value)
        return obj


def _parse_whole(element: construct.Construct, value: bytes, context: Any, path: str) -> Any:
    stream = io.BytesIO(value)
    found = element._parsereport(stream, context, path)
    if _left(stream):
        raise BoundError(f"{_left(stream)} bytes are left over in the tagged field", path=path)
    return found


# ---------------------------------------------------------------- from the tables


_FIXED = {
    "bool": construct.Flag,
    "int8": construct.Int8sb,
    "int16": construct.Int16sb,
    "int32": construct.Int32sb,
    "int64": construct.Int64sb,
    "uint16": construct.Int16ub,
    "float64": construct.Float64b,
}


def _value(type: str, flexible: bool, nullable: bool) -> construct.Construct:
    if type == "string":
        return StringField(flexible, nullable)
    if type in ("bytes", "records"):
        return BytesField(flexible, nullable)
    if type == "uuid":
        return UuidField()
    found: construct.Construct = _FIXED[type]
    return found


def _field(f: Field, version: int, flexible: bool) -> construct.Construct:
    nullable = version in f.nullable
    if f.fields:
        element = _struct(f.fields, version, flexible)
    else:
        element = _value(f.element_type, flexible, nullable and not f.is_array)
    if not f.is_array:
        return element
    return ArrayField(element, min_bytes(f, version, flexible), flexible, nullable)


def _struct(fields: Sequence[Field], version: int, flexible: bool) -> construct.Construct:
    plain = construct.Struct(*[f.name / _field(f, version, flexible) for f in plain_fields(fields, version)])
    if not flexible:
        return plain
    return FlexibleStruct(plain, [(f, _field(f, version, True)) for f in tagged_fields(fields, version)])


@functools.cache
def struct_for(reference: str, version: int) -> construct.Construct:
    """The construct struct of one message in one version."""
    table = table_named(reference)
    return _struct(table.fields, version, table.is_flexible(version))


def explain(reference: str, data: memoryview, version: int) -> str | None:
    """The field of ``data`` that does not decode, with position and reason; None when all of it decodes."""
    stream = io.BytesIO(data)
    try:
        struct_for(reference, version).parse_stream(stream)
    except construct.ConstructError as error:
        path = (error.path or "").removeprefix("(parsing)").strip().removeprefix("->").strip().replace(" -> ", ".")
        reason = str(error).splitlines()[-1]
        return f"{path or 'tagged fields'}: {reason} (byte {stream.tell()} of {len(data)})"
    return None
