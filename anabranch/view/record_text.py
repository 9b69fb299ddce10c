"""Records as lines of text and as JSON objects, both ways."""

from __future__ import annotations

import base64
import difflib
import json
from dataclasses import dataclass, field
from typing import Any, Protocol


class RecordLike(Protocol):
    """The fields of a consumed record that are printed."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp: int

    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> list[tuple[str, bytes | None]]: ...


@dataclass(slots=True)
class Input:
    """A record to produce. If ``partition`` or ``timestamp`` is None, the producer chooses it."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)
    partition: int | None = None
    timestamp_ms: int | None = None


class InputError(ValueError):
    """A line is not a valid record; the message gives the reason."""


def parse_text(line: bytes, separator: bytes | None) -> Input:
    """A line as a value, or as key and value around the first ``separator``.

    Raises ``InputError`` for a line without the separator.
    """
    if separator is None:
        return Input(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise InputError(f"no key separator {separator.decode()!r} in {line[:60].decode(errors='replace')!r}")
    return Input(key, value)


_FIELDS = ("key", "value", "key_base64", "value_base64", "headers", "partition", "timestamp")
_PLACES = frozenset({"topic", "offset", "leader_epoch"})
"""Fields that ``to_json`` writes but that a new record cannot have. In input, these fields are ignored."""


def parse_json(line: bytes) -> Input:
    """A record from a JSON object with the fields that ``to_json`` writes.

    ``value`` is required; ``key``, ``headers``, ``partition`` and ``timestamp`` are optional. Texts are UTF-8;
    ``key_base64`` and ``value_base64`` take bytes. Raises ``InputError``, which names the field.
    """
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise InputError(f"not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError("not a JSON object")
    for name in fields.keys() - _PLACES - set(_FIELDS):
        near = difflib.get_close_matches(name.lower(), _FIELDS, n=1)
        raise InputError(f"unknown field {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))
    if "value" not in fields and "value_base64" not in fields:
        raise InputError("no field 'value'; a tombstone is written as \"value\": null")
    return Input(
        key=_bytes_of(fields, "key"),
        value=_bytes_of(fields, "value"),
        headers=_headers_of(fields.get("headers")),
        partition=_number_of(fields, "partition", (1 << 31) - 1),
        timestamp_ms=_number_of(fields, "timestamp", (1 << 63) - 1),
    )


def _number_of(fields: dict[str, Any], name: str, highest: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= highest:
        raise InputError(f"field {name!r}: {value!r} is not a whole number from 0 to {highest}")
    return value


def _headers_of(headers: Any) -> list[tuple[str, bytes | None]]:
    pairs = list(headers.items()) if isinstance(headers, dict) else headers or []
    if not isinstance(pairs, list):
        raise InputError(f"field 'headers': {headers!r} is neither an object nor a list of pairs")
    found: list[tuple[str, bytes | None]] = []
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InputError(f"field 'headers': {pair!r} is not a pair of name and value")
        found.append((pair[0], None if pair[1] is None else str(pair[1]).encode()))
    return found


def _bytes_of(fields: dict[str, Any], name: str) -> bytes | None:
    if f"{name}_base64" in fields:
        if name in fields:
            raise InputError(f"fields {name!r} and '{name}_base64' are both given")
        try:
            return base64.b64decode(fields[f"{name}_base64"], validate=True)
        except (TypeError, ValueError) as error:
            raise InputError(f"field '{name}_base64': {error}") from None
    value = fields.get(name)
    if value is None:
        return None
    try:
        return value.encode() if isinstance(value, str) else json.dumps(value).encode()
    except UnicodeEncodeError as error:
        raise InputError(f"field {name!r}: {error}") from None


def to_json(record: RecordLike) -> str:
    """The record as one line of JSON. Bytes that are not UTF-8 are in ``..._base64``."""
    fields: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "leader_epoch": record.leader_epoch,
        "timestamp": record.timestamp,
    }
    for name, data in (("key", record.key), ("value", record.value)):
        try:
            fields[name] = None if data is None else data.decode()
        except UnicodeDecodeError:
            fields[f"{name}_base64"] = base64.b64encode(data or b"").decode()
    if record.headers:
        fields["headers"] = [
            [name, None if value is None else value.decode(errors="replace")] for name, value in record.headers
        ]
    return json.dumps(fields, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class TextFormat:
    """The fields that a line shows before the value."""

    key_separator: bytes | None = None
    show_place: bool = False
    show_timestamp: bool = False
    show_headers: bool = False

    def line(self, record: RecordLike) -> bytes:
        fields = []
        if self.show_timestamp:
            fields.append(b"CreateTime:%d" % record.timestamp)
        if self.show_place:
            fields.append(b"Partition:%d\tOffset:%d" % (record.partition, record.offset))
        if self.show_headers:
            pairs = [name.encode() + b":" + (b"null" if value is None else value) for name, value in record.headers]
            fields.append(b",".join(pairs) or b"NO_HEADERS")
        value = b"null" if record.value is None else record.value
        if self.key_separator is not None:
            value = (b"null" if record.key is None else record.key) + self.key_separator + value
        return b"\t".join([*fields, value])


_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_DIRECTIVES = frozenset("sSRkKThtpo%")
_TSV_ESCAPES = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\r", b"\\r"))


class FormatError(ValueError):
    """A format string that cannot be parsed; the message gives the reason."""


class FormatString:
    """A format string of kcat.

    ``%s`` value, ``%S`` its length (-1 for none), ``%R`` the length as four bytes, ``%k`` key, ``%K`` its length,
    ``%T`` timestamp, ``%h`` headers, ``%t`` topic, ``%p`` partition, ``%o`` offset, ``%%``; ``\\n \\r \\t \\xHH``.
    """

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | str] = []
        """Literal bytes, and the letters of directives."""
        rest = iter(text)
        for letter in rest:
            if letter == "%":
                directive = next(rest, "")
                if directive not in _DIRECTIVES or not directive:
                    raise FormatError(f"%{directive} is not one of %{' %'.join(sorted(_DIRECTIVES - {'%'}))} %%")
                self._parts.append(b"%" if directive == "%" else directive)
            elif letter == "\\":
                escape = next(rest, "")
                if escape == "x":
                    digits = next(rest, "") + next(rest, "")
                    try:
                        self._parts.append(bytes.fromhex(digits))
                    except ValueError:
                        raise FormatError(f"\\x{digits} is not \\x and two hexadecimal digits") from None
                elif escape in _ESCAPES:
                    self._parts.append(_ESCAPES[escape])
                else:
                    raise FormatError(f"\\{escape} is not one of \\n \\r \\t \\0 \\\\ \\xHH")
            else:
                self._parts.append(letter.encode())

    def text(self, record: RecordLike) -> bytes:
        """The text of a record, with a line end only if the format has one."""
        return b"".join(part if isinstance(part, bytes) else _field(part, record) for part in self._parts)


def _field(directive: str, record: RecordLike) -> bytes:
    match directive:
        case "s":
            return record.value or b""
        case "k":
            return record.key or b""
        case "S":
            return b"%d" % _length(record.value)
        case "K":
            return b"%d" % _length(record.key)
        case "R":
            return _length(record.value).to_bytes(4, signed=True)
        case "T":
            return b"%d" % record.timestamp
        case "h":
            return b",".join(n.encode() + b"=" + (b"NULL" if v is None else v) for n, v in record.headers)
        case "t":
            return record.topic.encode()
        case "p":
            return b"%d" % record.partition
    return b"%d" % record.offset


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def to_tsv(record: RecordLike) -> bytes:
    """Topic, partition, offset, timestamp, key and value, with tabs between.

    Tabs, line ends and backslashes in key and value are escaped. A null is ``\\N``, as in PostgreSQL's COPY.
    """
    place = b"%s\t%d\t%d\t%d" % (record.topic.encode(), record.partition, record.offset, record.timestamp)
    return b"\t".join([place, _tsv(record.key), _tsv(record.value)])


def _tsv(data: bytes | None) -> bytes:
    if data is None:
        return b"\\N"
    for raw, escaped in _TSV_ESCAPES:
        data = data.replace(raw, escaped)
    return data
