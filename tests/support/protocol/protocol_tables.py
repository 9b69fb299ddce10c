"""Every message class with its field table, and values for the tables: hypothesis strategies, and full samples."""

from __future__ import annotations

import itertools
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from hypothesis import strategies as st

from anabranch.protocol.generate import table_modules, tables
from anabranch.protocol.generated import __name__ as generated_package
from anabranch.protocol.message import Message
from anabranch.protocol.schema import Field, table_named
from anabranch.protocol.schema import MessageSchema as Table

_BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}


class Case(NamedTuple):
    """One message class in one version."""

    cls: type[Message]
    table: Table
    version: int

    def __str__(self) -> str:
        return f"{self.cls.__name__}-v{self.version}"


def message_classes() -> Iterator[tuple[type[Message], Table]]:
    """Every top-level message class with its table."""
    for module in table_modules():
        loaded = __import__(f"{generated_package}.{module}", fromlist=["*"])
        for table in tables(module).values():
            yield getattr(loaded, table.name), table


def cases() -> list[Case]:
    """Every message class in every version."""
    found = []
    for cls, table in message_classes():
        assert table_named(cls.TABLE) is table
        found += [Case(cls, table, version) for version in table.versions]
    return found


# ---------------------------------------------------------------- mappings and objects


def present(fields: Sequence[Field], version: int) -> list[Field]:
    return [f for f in fields if version in f.versions]


def to_object(cls: type, fields: Sequence[Field], values: Mapping[str, Any]) -> Any:
    """An instance of a generated class from a mapping of its fields."""
    arguments = {}
    for f in fields:
        if f.name not in values:
            continue
        value = values[f.name]
        if f.fields and value is not None:
            inner = getattr(sys.modules[cls.__module__], f.element_type)
            if f.is_array:
                value = [to_object(inner, f.fields, item) for item in value]
            else:
                value = to_object(inner, f.fields, value)
        arguments[f.name] = value
    return cls(**arguments)


def to_mapping(obj: Any, fields: Sequence[Field], version: int) -> dict[str, Any]:
    """The fields that ``version`` has, in the form of the reference codec."""
    found = {}
    for f in present(fields, version):
        value = getattr(obj, f.name)
        if f.fields and value is not None:
            if f.is_array:
                value = [to_mapping(item, f.fields, version) for item in value]
            else:
                value = to_mapping(value, f.fields, version)
        elif f.type == "records" and value is not None:
            value = bytes(value)
        found[f.name] = value
    return found


def plain(value: Any) -> Any:
    """A construct container as dicts and lists."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items() if not name.startswith("_")}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


# ---------------------------------------------------------------- strategies


def values(fields: Sequence[Field], version: int) -> st.SearchStrategy[dict[str, Any]]:
    """Mappings of all fields that ``version`` has."""
    return st.fixed_dictionaries({f.name: _field(f, version) for f in present(fields, version)})


def _field(f: Field, version: int) -> st.SearchStrategy[Any]:
    if f.fields:
        element: st.SearchStrategy[Any] = values(f.fields, version)
        if not f.is_array:
            return st.none() | element
    else:
        element = _value(f.element_type)
    made = st.lists(element, max_size=3) if f.is_array else element
    return st.none() | made if version in f.nullable else made


def _value(type: str) -> st.SearchStrategy[Any]:
    if type in _BITS:
        limit = 1 << (_BITS[type] - 1)
        return st.integers(-limit, limit - 1)
    return {
        "uint16": st.integers(0, 65535),
        "bool": st.booleans(),
        "float64": st.floats(allow_nan=False),
        "uuid": st.uuids(),
        "string": st.text(max_size=6) | st.just("x" * 200),
        "bytes": st.binary(max_size=6) | st.just(b"y" * 200),
        "records": st.binary(max_size=20),
    }[type]


# ---------------------------------------------------------------- one full sample


def full_sample(fields: Sequence[Field], version: int, *, tagged: bool = True) -> dict[str, Any]:
    """A sample with every field set, two elements in every array, different scalars; ``tagged``: with tagged fields."""
    return _full(fields, version, itertools.count(1), tagged)


def _full(fields: Sequence[Field], version: int, counter: Iterator[int], tagged: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for f in present(fields, version):
        if f.tag is not None and not tagged:
            found[f.name] = f.default
        elif f.fields and not f.is_array:
            found[f.name] = _full(f.fields, version, counter, tagged)
        elif f.fields:
            found[f.name] = [_full(f.fields, version, counter, tagged) for _ in range(2)]
        elif f.is_array:
            found[f.name] = [_scalar(f.element_type, next(counter)) for _ in range(2)]
        else:
            found[f.name] = _scalar(f.type, next(counter))
    return found


def _scalar(type: str, number: int) -> Any:
    if type in ("int8", "int16", "int32", "int64", "uint16"):
        return number % 120 + 2
    return {
        "bool": True,
        "float64": number + 0.5,
        "uuid": uuid.UUID(int=number << 64 | number),
        "string": f"string-{number}",
        "bytes": b"bytes-%d" % number,
        "records": b"records-%d" % number,
    }[type]


def minimal_sample(fields: Sequence[Field], version: int) -> dict[str, Any]:
    """A sample with null or empty values wherever that is possible."""
    return {f.name: None if version in f.nullable else f.default for f in present(fields, version)}
