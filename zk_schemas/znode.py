"""The common part of all znode classes: reading a JSON object by field, and the error with path and field."""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Mapping
from typing import Any, NoReturn, cast

import msgspec

NO_ID = uuid.UUID(int=0)
"""Kafka's "no topic id"."""
_MISSING: Any = object()
_INT32_MAX = 2**31 - 1
_MAX_DIGITS = 10
_INT64_MAX = 2**63 - 1
_MAX_DEPTH = 32
"""The deepest accepted nesting of JSON. It is limited because the code that decodes, shows or encodes JSON recurses."""
MAX_EPOCH = 2**30
"""No cluster reaches a higher leader epoch or layout version. A value near its type's limit could not rise."""
MAX_PARTITIONS = 2**16
"""The assignment of more partitions than this does not fit into a topic's znode."""
MAX_TIME_MS = 253_402_300_799_999
"""The end of the year 9999."""
MAX_OFFSET = 2**62
"""The highest offset in a znode. It leaves room for the records that follow."""


class MalformedZnodeError(ValueError):
    """A znode whose content does not fit its schema. ``field`` is empty if the content is not a JSON object at all."""

    def __init__(self, path: str, field: str, detail: str) -> None:
        super().__init__(f"znode {path}: {f'field {field}: ' if field else ''}{detail}")
        self.path = path
        self.field = field
        self.detail = detail


class ZnodeReader:
    """Takes and checks the fields of one JSON object. ``rest`` has the fields that were not taken, which are unknown.

    Every method takes the field's name. Without ``default`` the field must be present. A JSON null counts as absent.
    Raises ``MalformedZnodeError``.
    """

    __slots__ = ("_fields", "_path", "_prefix")

    def __init__(self, path: str, fields: dict[str, Any], prefix: str = "") -> None:
        self._path = path
        self._fields = fields
        self._prefix = prefix

    @classmethod
    def parse(cls, path: str, data: bytes) -> ZnodeReader:
        """``data`` as a JSON object."""
        try:
            fields = msgspec.json.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedZnodeError(path, "", f"not JSON: {error}") from None
        if not isinstance(fields, dict):
            raise MalformedZnodeError(path, "", f"a JSON object was expected, not {describe(fields)}")
        if data.count(b"[") + data.count(b"{") > _MAX_DEPTH:
            for name, value in fields.items():
                if _is_deeper(value, _MAX_DEPTH):
                    raise MalformedZnodeError(path, name, f"is nested more than {_MAX_DEPTH} deep")
        return cls(path, fields)

    def fail(self, field: str, detail: str) -> NoReturn:
        raise MalformedZnodeError(self._path, self._prefix + field, detail)

    def has(self, field: str) -> bool:
        """Whether the field is present and not null. Does not take the field."""
        return self._fields.get(field) is not None

    def integer(self, field: str, default: int = _MISSING, *, low: int = 0, high: int = _INT32_MAX) -> int:
        value = self._take(field, default)
        return value if value is default else self._checked_integer(field, value, low, high)

    def optional_integer(self, field: str, *, low: int = 0, high: int = _INT32_MAX) -> int | None:
        value = self._take(field, None)
        return None if value is None else self._checked_integer(field, value, low, high)

    def number_text(self, field: str, default: int = _MISSING, *, low: int = 0) -> int:
        """An int64 that Kafka writes as a string; a plain number is accepted."""
        value: int | str = self._take(field, default)
        if value is default:
            return default
        if isinstance(value, str):
            try:
                value = int(value)
            except ValueError:
                self.fail(field, f"a number was expected, not {value!r}")
        return self._checked_integer(field, value, low, _INT64_MAX)

    def text(self, field: str, default: str | None = _MISSING) -> str:
        value = self._take(field, default)
        if value is not default and not isinstance(value, str):
            self.fail(field, f"a string was expected, not {describe(value)}")
        return cast(str, value)

    def optional_text(self, field: str) -> str | None:
        return self.text(field, None)

    def optional_flag(self, field: str) -> bool | None:
        value = self._take(field, None)
        if value is not None and not isinstance(value, bool):
            self.fail(field, f"true or false was expected, not {describe(value)}")
        return value

    def topic_id(self, field: str) -> uuid.UUID:
        """A topic id in Kafka's base64url form; ``NO_ID`` when absent."""
        if not self.has(field):
            self._fields.pop(field, None)
            return NO_ID
        try:
            return parse_id(self.text(field))
        except ValueError as error:
            self.fail(field, str(error))

    def integers(self, field: str, *, low: int = 0) -> list[int]:
        value = self._take(field, _MISSING)
        return self._integer_list(field, value, low)

    def texts(self, field: str, default: list[str] = _MISSING) -> list[str]:
        value = self._take(field, default)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(field, f"a list of strings was expected, not {describe(value)}")
        return value

    def text_map(self, field: str, default: dict[str, str] = _MISSING) -> dict[str, str]:
        value = self._take(field, default)
        if not isinstance(value, dict):
            self.fail(field, f"an object was expected, not {describe(value)}")
        for key, item in value.items():
            if not isinstance(item, str):
                self.fail(f"{field}.{key}", f"a string was expected, not {describe(item)}")
        return value

    def epochs(self, field: str) -> dict[int, int]:
        """``{partition: leader epoch}``; empty when absent."""
        return self._checked_epochs(field, self._take(field, {}))

    def epoch_entries(self, field: str) -> list[tuple[int, dict[int, int]]]:
        """``[[leader epoch, {partition: leader epoch}], ...]``; empty when absent."""
        value = self._take(field, [])
        if not isinstance(value, list):
            self.fail(field, f"a list was expected, not {describe(value)}")
        entries = []
        for index, item in enumerate(value):
            name = f"{field}.{index}"
            if not isinstance(item, list) or len(item) != 2 or not isinstance(item[1], dict):
                self.fail(name, f"a leader epoch and an object were expected, not {describe(item)}")
            epoch = self._checked_integer(name, item[0], 0, MAX_EPOCH)
            entries.append((epoch, self._checked_epochs(name, item[1])))
        return entries

    def offsets(self, field: str) -> dict[int, int]:
        """``{partition: offset}``; empty when absent."""
        value = self._number_keyed(field, {})
        return {key: self._checked_integer(f"{field}.{key}", item, 0, MAX_OFFSET) for key, item in value.items()}

    def times(self, field: str) -> dict[int, int]:
        """``{leader epoch: ms since 1970}``; empty when absent."""
        value = self._number_keyed(field, {})
        return {key: self._checked_integer(f"{field}.{key}", item, 0, MAX_TIME_MS) for key, item in value.items()}

    def replicas(self, field: str, default: dict[str, Any] = _MISSING) -> dict[int, list[int]]:
        """``{partition: [broker ids]}``."""
        value = self._number_keyed(field, default)
        return {key: self._integer_list(f"{field}.{key}", item, 0) for key, item in value.items()}

    def objects(self, field: str) -> dict[str, ZnodeReader]:
        """``{name: object}``, a reader for each; empty when absent."""
        value = self._take(field, {})
        if not isinstance(value, dict):
            self.fail(field, f"an object was expected, not {describe(value)}")
        return {name: self._nested(f"{field}.{name}", item) for name, item in value.items()}

    def object(self, field: str) -> ZnodeReader:
        return self._nested(field, self._take(field, _MISSING))

    def rest(self) -> dict[str, Any]:
        return self._fields

    def _nested(self, field: str, value: Any) -> ZnodeReader:
        if not isinstance(value, dict):
            self.fail(field, f"an object was expected, not {describe(value)}")
        return ZnodeReader(self._path, value, f"{self._prefix}{field}.")

    def _take(self, field: str, default: Any) -> Any:
        value = self._fields.pop(field, None)
        if value is not None:
            return value
        if default is _MISSING:
            self.fail(field, "is missing")
        return default

    def _checked_integer(self, field: str, value: Any, low: int, high: int) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            self.fail(field, f"an integer was expected, not {describe(value)}")
        if not low <= value <= high:
            self.fail(field, f"{value} is not between {low} and {high}")
        return value

    def _integer_list(self, field: str, value: Any, low: int) -> list[int]:
        if not isinstance(value, list):
            self.fail(field, f"a list was expected, not {describe(value)}")
        numbers = [self._checked_integer(field, item, low, _INT32_MAX) for item in value]
        if len(set(numbers)) != len(numbers):
            self.fail(field, f"{numbers} names a number twice")
        return numbers

    def _checked_epochs(self, field: str, value: Any) -> dict[int, int]:
        keyed = self._checked_keys(field, value)
        return {key: self._checked_integer(f"{field}.{key}", item, -1, MAX_EPOCH) for key, item in keyed.items()}

    def _number_keyed(self, field: str, default: Any) -> dict[int, Any]:
        return self._checked_keys(field, self._take(field, default))

    def _checked_keys(self, field: str, value: Any) -> dict[int, Any]:
        if not isinstance(value, dict):
            self.fail(field, f"an object was expected, not {describe(value)}")
        keyed = {}
        for key, item in value.items():
            if not (key.isascii() and key.isdigit() and len(key) <= _MAX_DIGITS and int(key) <= _INT32_MAX):
                self.fail(field, f"a partition number was expected, not {key!r}")
            keyed[int(key)] = item
        return dict(sorted(keyed.items()))


def _is_deeper(value: object, levels: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_is_deeper(item, levels - 1) for item in items)


def encode_fields(fields: Mapping[str, Any], extra: Mapping[str, Any]) -> bytes:
    """One JSON object: first the known fields, then the unknown fields that the znode had when it was read."""
    return msgspec.json.encode({**fields, **{name: value for name, value in extra.items() if name not in fields}})


def describe(value: object) -> str:
    """A value's type and beginning, short enough for an error message."""
    if value is None:
        return "null"
    kinds = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    text = repr(value)
    return f"{kinds[type(value)]} {text if len(text) <= 40 else text[:37] + '...'}"


def format_id(value: uuid.UUID) -> str:
    """A UUID as Kafka prints it: 22 characters of base64url without padding."""
    return base64.urlsafe_b64encode(value.bytes).rstrip(b"=").decode()


def parse_id(text: str) -> uuid.UUID:
    """The reverse of ``format_id``. Raises ``ValueError``."""
    try:
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raw = b""
    if len(raw) != 16:
        raise ValueError(f"{text!r} is not a base64url id of 16 bytes")
    return uuid.UUID(bytes=raw)
