"""``--order-by``: take the integer that orders a key's records out of their values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TypeAlias

Extract: TypeAlias = Callable[[bytes], int]

_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class OrderFieldError(ValueError):
    """An ``--order-by`` that cannot be understood, or a value that does not carry the field."""


def parse_order_by(spec: str) -> Extract:
    """The extractor for ``json:FIELD`` (dots go into objects) or ``tsv:N`` (columns count from 0).

    The extractor raises OrderFieldError for a value without an integer of 64 bits there.
    """
    kind, _, argument = spec.partition(":")
    if kind == "json" and argument:
        path = argument.split(".")
        return lambda value: _from_json(value, path)
    if kind == "tsv" and argument.isdecimal():
        column = int(argument)
        return lambda value: _from_tsv(value, column)
    raise OrderFieldError(f"order-by {spec!r} is neither json:FIELD nor tsv:N with N from 0")


def _from_tsv(value: bytes, column: int) -> int:
    columns = value.split(b"\t", column + 1)
    if column >= len(columns):
        raise OrderFieldError(f"value has {len(columns)} columns, no column {column}")
    try:
        return _bounded(int(columns[column]))
    except ValueError:
        raise OrderFieldError(f"column {column} holds {columns[column][:40]!r}, no integer") from None


def _from_json(value: bytes, path: list[str]) -> int:
    try:
        found = json.loads(value)
    except ValueError:
        raise OrderFieldError(f"value is no JSON: {value[:40]!r}") from None
    for name in path:
        if not isinstance(found, dict) or name not in found:
            raise OrderFieldError(f"value has no field {'.'.join(path)}")
        found = found[name]
    if not isinstance(found, int) or isinstance(found, bool):
        raise OrderFieldError(f"field {'.'.join(path)} holds {found!r:.40}, no integer")
    return _bounded(found)


def _bounded(number: int) -> int:
    if not _LOWEST <= number <= _HIGHEST:
        raise OrderFieldError(f"{number} does not fit 64 bits")
    return number
