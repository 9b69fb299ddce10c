"""``--order-by``: reads the integer that orders a key's records from their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from anabranch.protocol.plurals import counted

Extract: TypeAlias = Callable[[bytes], int]

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1
_SAFE_DIGITS = 18


class OrderFieldError(ValueError):
    """An ``--order-by`` is invalid, or a value does not have the field."""


class OrderField:
    """The field ``json:FIELD`` (``a.b`` is field b of the object a) or ``tsv:N`` (columns count from 0).

    Raises OrderFieldError for anything else. ``extract`` raises it for a value without a 64-bit integer in the field.
    """

    def __init__(self, spec: str) -> None:
        kind, _, argument = spec.partition(":")
        self.extract: Extract
        self._read: Callable[[pa.Array], pa.Array]
        if kind == "json" and argument:
            path = argument.split(".")
            read_one = _json_reader(path)
            self.extract = lambda value: _from_json(value, path, read_one(value))
            self._read = lambda values: pa.array(map(read_one, values.to_pylist()), pa.int64(), size=len(values))
        elif kind == "tsv" and argument.isdecimal():
            column = int(argument)
            self.extract = lambda value: _from_tsv(value, column)
            self._read = _tsv_reader(column)
        else:
            raise OrderFieldError(f"order-by {spec!r} is neither json:FIELD nor tsv:N with N from 0")

    def read(self, values: pa.Array) -> tuple[pa.Array, pa.Array]:
        """The integers in an array of binary values, and an error for each value without an integer.

        A null value gives null for both. ``extract`` reads the values that the fast reader cannot read.
        """
        found = self._read(values)
        errors = pa.nulls(len(values), pa.string())
        if found.null_count == values.null_count:
            return found, errors
        messages: dict[int, str] = {}
        numbers: dict[int, int] = {}
        for index in pc.indices_nonzero(pc.and_(pc.is_null(found), pc.is_valid(values))).to_pylist():
            try:
                numbers[index] = self.extract(values[index].as_py())
            except OrderFieldError as error:
                messages[index] = str(error)
        return _filled(found, numbers), _filled(errors, messages)


def _filled(array: pa.Array, entries: dict[int, int] | dict[int, str]) -> pa.Array:
    """``array`` with these entries in place of nulls."""
    mask = [False] * len(array)
    for index in entries:
        mask[index] = True
    return pc.replace_with_mask(array, pa.array(mask), pa.array([entries[x] for x in sorted(entries)], array.type))


def _tsv_reader(column: int) -> Callable[[pa.Array], pa.Array]:
    pattern = rf"^(?:[^\t]*\t){{{column}}}(?P<number>-?[0-9]{{1,{_SAFE_DIGITS}}})(?:\t|$)"

    def read(values: pa.Array) -> pa.Array:
        return pc.cast(pc.cast(pc.struct_field(pc.extract_regex(values, pattern), 0), pa.string()), pa.int64())

    return read


def _json_reader(path: list[str]) -> Callable[[bytes | None], int | None]:
    """Make a reader of only this field, so that other strings may have invalid UTF-8.

    The reader returns None for a value without an integer.
    """
    inner: type = int
    for depth, name in enumerate(reversed(path)):
        inner = msgspec.defstruct(f"Level{depth}", [("found", inner)], rename={"found": name})
    decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(inner, strict=True)

    def read_one(value: bytes | None) -> int | None:
        if value is None:
            return None
        try:
            found = decoder.decode(value)
            for _ in path:
                found = found.found
        except (msgspec.DecodeError, RecursionError):
            return None
        return found if _LOWEST <= found <= _HIGHEST else None

    return read_one


def _from_tsv(value: bytes, column: int) -> int:
    columns = value.split(b"\t", column + 1)
    if column >= len(columns):
        raise OrderFieldError(f"value has {counted(len(columns), 'column')}, no column {column} (counted from 0)")
    try:
        return _bounded(int(columns[column]))
    except ValueError:
        raise OrderFieldError(f"column {column} holds {columns[column][:40]!r}, not an integer") from None


def _from_json(value: bytes, path: list[str], read: int | None) -> int:
    """The integer in a JSON value. ``read`` is the result of the fast reader."""
    if read is not None:
        return read
    try:
        found = json.loads(value)
    except (ValueError, RecursionError):
        raise OrderFieldError(f"value is not JSON: {value[:40]!r}") from None
    for name in path:
        if not isinstance(found, dict) or name not in found:
            raise OrderFieldError(f"value has no field {'.'.join(path)}")
        found = found[name]
    if not isinstance(found, int) or isinstance(found, bool):
        raise OrderFieldError(f"field {'.'.join(path)} holds {found!r:.40}, not an integer")
    return _bounded(found)


def _bounded(number: int) -> int:
    if not _LOWEST <= number <= _HIGHEST:
        raise OrderFieldError(f"{number} does not fit in 64 bits")
    return number
