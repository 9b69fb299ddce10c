"""The classes of the field tables in ``protocol/messages``: fields with version ranges, and a version's layout.

A table has the content of Kafka's message definitions: a field's type, the versions that have it, the versions in
which it may be null, its default, its tag (KIP-482), and whether a version without the field drops it silently
(``ignorable``). Both codecs are made from the tables: ``reference`` builds construct structs, ``generate`` writes flat
Python.

Types: ``bool int8 int16 int32 int64 uint16 float64 uuid string bytes records``, ``[]T`` for arrays, or the name of
a struct whose ``fields`` follow.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from anabranch.protocol.types import ZERO_UUID

LATEST: Final = 32767
FIXED_FORMATS: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint16": "H",
    "float64": "d",
    "uuid": "16s",
}
"""Fixed-size types and their ``struct`` format, big-endian."""
FIXED_SIZES: Final = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint16": 2, "float64": 8, "uuid": 16}
VARIABLE_TYPES: Final = frozenset({"string", "bytes", "records"})

_DEFAULTS: Final[dict[str, object]] = {
    "bool": False,
    "float64": 0.0,
    "uuid": ZERO_UUID,
    "string": "",
    "bytes": b"",
    "records": None,
}


class TableError(ValueError):
    """A field table contradicts itself."""


@dataclass(frozen=True, slots=True)
class Versions:
    """An inclusive range of versions; empty when ``first > last``."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Versions:
        """``"3"``, ``"3-5"``, ``"3+"`` or ``"none"``."""
        if text == "none":
            return cls(0, -1)
        if text.endswith("+"):
            return cls(int(text[:-1]), LATEST)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))


NEVER: Final = Versions(0, -1)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct. Made by :func:`field`."""

    name: str
    type: str
    versions: Versions
    nullable: Versions
    default: object
    ignorable: bool
    tag: int | None
    fields: tuple[Field, ...]

    @property
    def is_array(self) -> bool:
        return self.type.startswith("[]")

    @property
    def element_type(self) -> str:
        return self.type.removeprefix("[]")

    @property
    def struct_name(self) -> str | None:
        """The struct this field holds, alone or in an array."""
        return self.element_type if self.fields else None


@dataclass(frozen=True, slots=True)
class MessageSchema:
    """A top-level message: a request, a response, or the content of a record. Made by :func:`message`."""

    name: str
    api_key: int
    versions: Versions
    flexible: Versions
    fields: tuple[Field, ...]

    def is_flexible(self, version: int) -> bool:
        """This version uses compact lengths and tagged fields (KIP-482)."""
        return version in self.flexible


_UNSET: Final = object()


def field(
    name: str,
    type: str,
    versions: str,
    *,
    nullable: str = "none",
    default: object = _UNSET,
    ignorable: bool = False,
    tag: int | None = None,
    fields: Sequence[Field] = (),
) -> Field:
    """A row of a table. A field with a ``tag`` is a tagged field in every version it is in.

    Arrays default to empty, structs to None (such a field is tagged and left out), the rest to Kafka's zero.
    """
    element = type.removeprefix("[]")
    known = element in FIXED_FORMATS or element in VARIABLE_TYPES
    if known == bool(fields):
        raise TableError(f"{name}: {type} must be a known type, or a struct with fields")
    if fields and element == type and tag is None:
        raise TableError(f"{name}: a struct outside of an array must be a tagged field")
    if default is _UNSET:
        if element != type:
            default = []
        elif fields:
            default = None
        else:
            default = _DEFAULTS.get(type, 0)
    return Field(name, type, Versions.parse(versions), Versions.parse(nullable), default, ignorable, tag, tuple(fields))


def message(
    name: str, *, versions: str, flexible: str = "none", fields: Sequence[Field], api_key: int = -1
) -> MessageSchema:
    """A table. ``versions`` is the range that is implemented, ``flexible`` the versions with tagged fields."""
    made = MessageSchema(name, api_key, Versions.parse(versions), Versions.parse(flexible), tuple(fields))
    for version in made.versions:
        _check(made, made.fields, version, name)
    return made


def _check(table: MessageSchema, fields: Sequence[Field], version: int, where: str) -> None:
    tags = [f.tag for f in fields if f.tag is not None and version in f.versions]
    if tags != sorted(set(tags)):
        raise TableError(f"{where} v{version}: tags must ascend")
    if tags and not table.is_flexible(version):
        raise TableError(f"{where} v{version}: tagged fields need a flexible version")
    for f in fields:
        _check(table, f.fields, version, f"{where}.{f.name}")


# ---------------------------------------------------------------- layout in one version


def plain_fields(fields: Sequence[Field], version: int) -> list[Field]:
    """The untagged fields of ``version``, in wire order."""
    return [f for f in fields if f.tag is None and version in f.versions]


def tagged_fields(fields: Sequence[Field], version: int) -> list[Field]:
    """The tagged fields of ``version``, in ascending order of tag."""
    return [f for f in fields if f.tag is not None and version in f.versions]


def required_elsewhere(fields: Sequence[Field], version: int) -> list[Field]:
    """The fields that ``version`` lacks and that are not ignorable: to be encoded, they must have their default."""
    return [f for f in fields if version not in f.versions and not f.ignorable]


def min_bytes(field: Field, version: int, flexible: bool) -> int:
    """The least size of an element of the array ``field``: the array's length times this must fit in the bytes left."""
    if not field.fields:
        return _min_value_bytes(field.element_type, flexible)
    total = 1 if flexible else 0
    for f in plain_fields(field.fields, version):
        total += _min_value_bytes("array" if f.is_array else f.type, flexible)
    return max(total, 1)


def _min_value_bytes(type: str, flexible: bool) -> int:
    if type in FIXED_SIZES:
        return FIXED_SIZES[type]
    if flexible:
        return 1
    return 2 if type == "string" else 4


Layout = tuple[object, ...]


def layout(table: MessageSchema, version: int) -> Layout:
    """The layout that determines a version's bytes: two versions with equal layouts share one codec."""
    return (table.is_flexible(version), _layout(table.fields, version))


def _layout(fields: Sequence[Field], version: int) -> Layout:
    return tuple(
        (f.name, version in f.versions, version in f.nullable, _layout(f.fields, version))
        for f in fields
        if version in f.versions or not f.ignorable
    )


def table_named(reference: str) -> MessageSchema:
    """The table for a message class's ``TABLE``: ``module:NAME`` under ``protocol.messages``."""
    module, _, constant = reference.partition(":")
    found = getattr(importlib.import_module(f"anabranch.protocol.messages.{module}"), constant)
    assert isinstance(found, MessageSchema)
    return found
