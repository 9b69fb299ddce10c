"""JSON indented for people. Numbers, their digits, and repeated names stay as they are written. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

MOST_BYTES = 64 * 1024
"""Longer data is not parsed."""
_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_OPEN, _CLOSE = ("[", "{"), ("]", "}")


def indented(data: bytes, most: int) -> str | None:
    """The first ``most`` characters, or some more, of a JSON object or array in UTF-8; None for all other data."""
    if len(data) > MOST_BYTES or data[:1] not in (b"{", b"[", b" ", b"\n", b"\r", b"\t"):
        return None
    try:
        text = data.decode()
        if not isinstance(json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse), dict | list):
            return None
    except (ValueError, RecursionError):
        return None
    found, length = [], 0
    for piece in _pieces(text):  # the indents of deep data are longer than the data
        found.append(piece)
        length += len(piece)
        if length > most:
            break
    return "".join(found)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _pieces(text: str) -> Iterator[str]:
    depth, last = 0, ""
    for match in _TOKENS.finditer(text):
        token = match[0]
        depth -= token in _CLOSE
        if last in _OPEN or last == "," or token in _CLOSE:
            is_empty = last in _OPEN and token in _CLOSE
            yield "" if is_empty else "\n" + "  " * depth
        depth += token in _OPEN
        if token == ":":
            yield ": "
        elif token.startswith('"'):
            yield json.dumps(json.loads(token), ensure_ascii=False)
        else:
            yield token
        last = token
