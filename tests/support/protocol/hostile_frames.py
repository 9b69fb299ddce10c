"""Frames of a hostile peer, made from the field tables: very many tiny elements, tags, wild lengths, damaged bytes."""

from __future__ import annotations

import functools
import random
import struct
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.protocol.api_keys import API, ApiKey
from anabranch.protocol.message_limits import ADMIN_APIS, CONTROLLER_APIS
from anabranch.protocol.primitives import write_uvarint
from anabranch.protocol.schema import FIXED_SIZES, Field, Layout, layout, table_named
from anabranch.protocol.schema import MessageSchema as Table
from tests.support.protocol.protocol_tables import full_sample, present, to_object

Path = tuple[str, ...]


@dataclass(frozen=True)
class Filling:
    """The values of the items that fill an array: as few bytes as possible, or as many objects."""

    name: str
    text: bytes
    number: int
    """The byte that numbers consist of: above 0, each number is an object of its own."""
    inner_items: int
    """The items of an array in an item."""
    records: bytes = b""
    are_distinct: bool = False
    """Whether the items that fill the array have names of their own: each string and number is the item's index."""


EMPTY = Filling("empty", b"", 0, 0)
SHORT = Filling("short", b"ab", 1, 0)
NESTED = Filling("nested", b"ab", 1, 1)
FILLINGS = (EMPTY, SHORT, NESTED)


class Writer:
    """Writes a message of one version. Every array is empty, except those on the path to ``filled``.

    ``filled`` has ``count`` items, or as many as take about ``size`` bytes.
    """

    def __init__(
        self, version: int, flexible: bool, filled: Path, filling: Filling, *, size: int = 0, count: int = 0
    ) -> None:
        self._version = version
        self._flexible = flexible
        self._filled = filled
        self._filling = filling
        self._size = size
        self._count = count
        self._index: int | None = None
        """The index of the item that is written, if items have names of their own."""

    def message(self, fields: Sequence[Field]) -> bytes:
        return self._struct(fields, ())

    def _struct(self, fields: Sequence[Field], path: Path) -> bytes:
        out = bytearray()
        for f in present(fields, self._version):
            if f.tag is None:
                out += self._field(f, path)
        if self._flexible:
            tagged = [f for f in present(fields, self._version) if self._is_needed_tag(f, path)]
            write_uvarint(out, len(tagged))
            for f in tagged:
                assert f.tag is not None
                value = self._field(f, path)
                write_uvarint(out, f.tag)
                write_uvarint(out, len(value))
                out += value
        return bytes(out)

    def _is_needed_tag(self, f: Field, path: Path) -> bool:
        return f.tag is not None and self._leads_to((*path, f.name))

    def _leads_to(self, path: Path) -> bool:
        return self._filled[: len(path)] == path

    def _field(self, f: Field, path: Path) -> bytes:
        here = (*path, f.name)
        if f.is_array:
            return self._array(f, here)
        return self._struct(f.fields, here) if f.fields else self._value(f.type)

    def _array(self, f: Field, here: Path) -> bytes:
        if self._filled == here:
            item = self._item(f, here)
            count = self._count or max(1, self._size // len(item))
            items = self._distinct(f, here, count) if self._filling.are_distinct else item * count
            return self._length(count, 4) + items
        if self._leads_to(here):
            return self._length(1, 4) + self._item(f, here)
        inside = len(here) > len(self._filled) and here[: len(self._filled)] == self._filled
        count = self._filling.inner_items if inside else 0
        return self._length(count, 4) + self._item(f, here) * count

    def _distinct(self, f: Field, here: Path, count: int) -> bytes:
        out = bytearray()
        for self._index in range(count):
            out += self._item(f, here)
        self._index = None
        return bytes(out)

    def _item(self, f: Field, here: Path) -> bytes:
        return self._struct(f.fields, here) if f.fields else self._value(f.element_type)

    def _value(self, type: str) -> bytes:
        if type == "bool":
            return b"\0"
        if type in FIXED_SIZES:
            size = FIXED_SIZES[type]
            if self._index is not None and size > 2:
                return self._index.to_bytes(size, "big")
            return bytes([self._filling.number]) * size
        text = self._filling.records if type == "records" else self._filling.text
        if self._index is not None and type == "string":
            text = b"n%d" % self._index
        return self._length(len(text), 2 if type == "string" else 4) + text

    def _length(self, count: int, width: int) -> bytes:
        if not self._flexible:
            return count.to_bytes(width, "big")
        out = bytearray()
        write_uvarint(out, count + 1)
        return bytes(out)


def array_paths(fields: Sequence[Field], version: int, path: Path = ()) -> Iterator[Path]:
    """Every array of a message, at every level."""
    for f in present(fields, version):
        here = (*path, f.name)
        if f.is_array:
            yield here
        yield from array_paths(f.fields, version, here)


class Dense(NamedTuple):
    """A message of which one array, at any level, has as many items as fit."""

    table: Table
    version: int
    path: Path
    filling: Filling

    def __str__(self) -> str:
        return f"{self.table.name}-v{self.version}-{'.'.join(self.path)}-{self.filling.name}"

    def body(self, size: int = 0, count: int = 0) -> bytes:
        """A message of about ``size`` bytes, or with ``count`` items."""
        flexible = self.table.is_flexible(self.version)
        writer = Writer(self.version, flexible, self.path, self.filling, size=size, count=count)
        return writer.message(self.table.fields)

    def request(self, size: int = 0, count: int = 0) -> bytes:
        """A frame without its size."""
        return request_header(self.table.api_key, self.version) + self.body(size, count)

    def response(self, size: int = 0, count: int = 0) -> bytes:
        """A response frame without its size, with correlation id 1."""
        tags = b"\0" if self.table.is_flexible(self.version) and self.table.api_key != ApiKey.API_VERSIONS else b""
        return b"\0\0\0\1" + tags + self.body(size, count)


def dense_messages(kind: str) -> list[Dense]:
    """One for each API, layout and array of the requests or responses: ``kind`` is REQUEST or RESPONSE."""
    found = []
    for key in ApiKey:
        table = table_named(f"{key.name.lower()}:{kind}")
        seen: set[Layout] = set()
        for version in table.versions:
            made = layout(table, version)
            if made not in seen:
                seen.add(made)
                for path in array_paths(table.fields, version):
                    found += [Dense(table, version, path, filling) for filling in FILLINGS]
    return found


def request_header(api_key: int, version: int, tags: bytes = b"\0") -> bytes:
    flexible = version >= API[ApiKey(api_key)].first_flexible
    return struct.pack(">hhih", api_key, version, 1, 2) + b"me" + (tags if flexible else b"")


def unknown_tags(size: int) -> bytes:
    """A section of about ``size`` bytes with as many empty tagged fields as fit."""
    fields = bytearray()
    count = 0
    while len(fields) < size:
        write_uvarint(fields, 20_000 + count)
        fields += b"\0"
        count += 1
    out = bytearray()
    write_uvarint(out, count)
    return bytes(out + fields)


def tagged_requests(size: int) -> Iterator[tuple[str, bytes]]:
    """Requests of every API with tagged fields: very many of them in the header, and at the end of the body."""
    tags = unknown_tags(size)
    for key, api in API.items():
        if api.flexible_from is None:
            continue
        for version in range(api.flexible_from, api.max_version + 1):
            body = api.request().encode(version)
            yield f"{key.name} v{version} header tags", request_header(key, version, tags) + body
            yield f"{key.name} v{version} body tags", request_header(key, version) + body[:-1] + tags


HARMLESS_APIS = frozenset(ApiKey) - ADMIN_APIS - CONTROLLER_APIS - {ApiKey.CONTROLLED_SHUTDOWN, ApiKey.ALTER_PARTITION}
"""APIs whose requests cannot change the cluster, apart from its topics and groups of the names in the samples."""


def random_request(rng: random.Random, size: int, apis: Collection[ApiKey] = tuple(ApiKey)) -> tuple[str, bytes]:
    """A hostile frame without its size, of at most about ``size`` bytes, and a description of it."""
    kind = rng.choice(("dense", "dense", "tags", "damaged", "cut", "random"))
    key = rng.choice(sorted(apis))
    if kind == "dense" and (dense := _dense_requests().get(key)):
        chosen = rng.choice(dense)
        return str(chosen), chosen.request(rng.choice((200, size // 16, size)))
    api = API[key]
    version = rng.randint(api.min_version, api.max_version)
    table = table_named(api.request.TABLE)
    header, name = request_header(key, version), f"{key.name} v{version}"
    if kind == "random":
        return f"{name} random bytes", header + rng.randbytes(rng.randint(0, 2_000))
    if kind == "tags" and table.is_flexible(version):
        tags = unknown_tags(rng.choice((10, 1_000, size // 8, size)))
        body = api.request().encode(version)
        if rng.random() < 0.5:
            return f"{name} header tags", request_header(key, version, tags) + body
        return f"{name} body tags", header + body[:-1] + tags
    body = to_object(api.request, table.fields, full_sample(table.fields, version)).encode(version)
    if kind == "cut":
        return f"{name} cut short", header + body[: rng.randrange(len(body) + 1)]
    damaged = bytearray(body)
    for _ in range(rng.randint(1, 4) if damaged else 0):
        damaged[rng.randrange(len(damaged))] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFE, 0xFF))
    return f"{name} damaged", header + bytes(damaged)


@functools.cache
def _dense_requests() -> dict[ApiKey, list[Dense]]:
    found: dict[ApiKey, list[Dense]] = {}
    for dense in dense_messages("REQUEST"):
        found.setdefault(ApiKey(dense.table.api_key), []).append(dense)
    return found
