"""Config keys as data: type, default, range, update mode; and their parsers.

A class of keys (``ConfigValues``) has one field per key, which declares the key. An instance has the values of a
process or a topic. The table (``ConfigDef``) is made from the class. It parses text or Python values. An unknown key is
an error that names the nearest known key. A value out of range is an error that names the key and the range.
"""

from __future__ import annotations

import difflib
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final, Protocol, TypeVar

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1


class ConfigError(ValueError):
    """A config key or value that cannot be used; ``key`` is the key's name."""

    def __init__(self, key: str, detail: str) -> None:
        super().__init__(f"{key}: {detail}")
        self.key = key
        self.detail = detail


class ConfigType(enum.IntEnum):
    """A key's type; the numbers are those of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


class UpdateMode(enum.Enum):
    """How a broker key can be changed while the broker runs."""

    READ_ONLY = "read-only"
    PER_BROKER = "per-broker"
    CLUSTER_WIDE = "cluster-wide"
    """For one broker, or for all brokers at once."""
    ALL_BROKERS = "all brokers"
    """Only for all brokers at once, because the controller uses the key and does not read the brokers' files."""


class _Required:
    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED: Final = _Required()
"""The default of a key that must be given."""


class Validator(Protocol):
    """Checks a value of the right type."""

    def problem(self, value: Any) -> str | None:
        """The problem with ``value``, or None."""
        ...


@dataclass(frozen=True, slots=True)
class Between:
    """A number from ``low`` to ``high``, both inclusive."""

    low: float
    high: float = float("inf")

    def problem(self, value: Any) -> str | None:
        if self.low <= value <= self.high:
            return None
        if self.high in (INT_MAX, LONG_MAX, float("inf")):
            return f"{value} is not at least {self.low}"
        return f"{value} is not between {self.low} and {self.high}"


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of a few words. In a list, every item must be one of these words."""

    words: tuple[str, ...]

    def problem(self, value: Any) -> str | None:
        given = value if isinstance(value, list) else [value]
        wrong = [item for item in given if item not in self.words]
        return f"{wrong[0]!r} is not one of {', '.join(self.words)}" if wrong else None


@dataclass(frozen=True, slots=True)
class NotEmpty:
    """Text or a list that is not empty."""

    def problem(self, value: Any) -> str | None:
        return None if value else "must not be empty"


@dataclass(frozen=True, slots=True)
class Matches:
    """Text that matches a pattern as a whole. In a list, every item must match. ``form`` describes the pattern."""

    pattern: str
    form: str

    def problem(self, value: Any) -> str | None:
        for item in value if isinstance(value, list) else [value]:
            if not re.fullmatch(self.pattern, item):
                return f"{item!r} is not {self.form}"
        return None


_WHOLE_RANGES: Final = {
    ConfigType.SHORT: 2**15 - 1,
    ConfigType.INT: INT_MAX,
    ConfigType.LONG: LONG_MAX,
}


@dataclass(frozen=True, slots=True)
class Synonym:
    """A broker key that gives a topic key its default: the broker key's value times ``factor``."""

    name: str
    factor: int = 1


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. ``default`` None: the key has no value unless it is set; ``REQUIRED``: it must be given.

    ``synonyms``: broker keys that give a topic key its default. The first synonym that is set counts.
    """

    name: str
    type: ConfigType
    default: Any
    validator: Validator | None = None
    update_mode: UpdateMode = UpdateMode.READ_ONLY
    synonyms: tuple[Synonym, ...] = ()
    doc: str = ""

    @property
    def sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def dynamic(self) -> bool:
        return self.update_mode is not UpdateMode.READ_ONLY

    def parse(self, value: object) -> Any:
        """Convert text or a Python value to the key's type, and check it. Raises ``ConfigError``."""
        if value is None:
            if self.default is None:
                return None
            raise ConfigError(self.name, "needs a value")
        parsed = self._convert(value)
        problem = self.validator.problem(parsed) if self.validator is not None else None
        if problem:
            raise ConfigError(self.name, problem)
        return parsed

    def format(self, value: Any) -> str | None:
        """A parsed value as the text that DescribeConfigs shows; the reverse of ``parse``."""
        if value is None:
            return None
        if isinstance(value, bool):
            return "true" if value else "false"
        return ",".join(value) if isinstance(value, list) else str(value)

    def _convert(self, value: object) -> Any:
        text = value.strip() if isinstance(value, str) else value
        if self.type is ConfigType.BOOLEAN:
            return self._boolean(text)
        if self.type is ConfigType.DOUBLE:
            return self._number(text, float)
        if self.type in _WHOLE_RANGES:
            number = self._number(text, int)
            limit = _WHOLE_RANGES[self.type]
            if not -limit - 1 <= number <= limit:
                raise ConfigError(self.name, f"{number} is outside the range of {self.type.name.lower()}")
            return number
        if self.type is ConfigType.LIST:
            items = text.split(",") if isinstance(text, str) else text
            if not isinstance(items, list | tuple) or not all(isinstance(item, str) for item in items):
                raise ConfigError(self.name, f"{value!r} is not a list")
            return [item.strip() for item in items if item.strip()]
        if not isinstance(text, str):
            raise ConfigError(self.name, f"{value!r} is not text")
        return text

    def _boolean(self, value: object) -> bool:
        if isinstance(value, bool):
            return value
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        raise ConfigError(self.name, f"{value!r} is neither true nor false")

    def _number(self, value: object, kind: Callable[[Any], int | float]) -> Any:
        wanted = "a whole number" if kind is int else "a number"
        if isinstance(value, bool) or not isinstance(value, str | int | float):
            raise ConfigError(self.name, f"{value!r} is not {wanted}")
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            raise ConfigError(self.name, f"{value!r} is not {wanted}") from None
        if number != number or (isinstance(value, float) and number != value):
            raise ConfigError(self.name, f"{value!r} is not {wanted}")
        return number


def declared(
    kind: ConfigType,
    default: Any,
    validator: Validator | None = None,
    update_mode: UpdateMode = UpdateMode.READ_ONLY,
    synonyms: tuple[Synonym, ...] = (),
    doc: str = "",
) -> Any:
    """The field of a class of keys that declares one key; the parameters are those of ``ConfigKey``.

    The key's name is the field's name with ``.`` for ``_``.
    """

    def key(name: str) -> ConfigKey:
        return ConfigKey(name, kind, default, validator, update_mode, synonyms, doc)

    metadata = {"key": key}
    if default is REQUIRED:
        return field(metadata=metadata)
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


V = TypeVar("V", bound="ConfigValues")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigValues:
    """A value for every key of a class of keys. The fields of a subclass are its keys (``declared``)."""

    @classmethod
    def all_keys(cls) -> list[ConfigKey]:
        """The declared keys, in their order."""
        return [f.metadata["key"](f.name.replace("_", ".")) for f in fields(cls)]

    @classmethod
    def of(cls: type[V], values: Mapping[str, Any]) -> V:
        """The values from parsed values by key. An absent key keeps its default; other keys are skipped."""
        named = {f.name: f.name.replace("_", ".") for f in fields(cls)}
        return cls(**{name: values[key] for name, key in named.items() if key in values})

    def by_key(self) -> dict[str, Any]:
        """The values by key."""
        return {f.name.replace("_", "."): getattr(self, f.name) for f in fields(self)}


def of_key(table: ConfigDef, name: str, factor: float = 1) -> Any:
    """A field of a class that takes some keys of a table, in other names or units: the key's value times ``factor``.

    The default is the key's. ``values_of_keys`` has the fields' values.
    """
    default = table[name].default
    default = MISSING if default is REQUIRED else default if factor == 1 else default * factor
    return field(default=default, metadata={"key": name, "factor": factor})


def values_of_keys(cls: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of ``cls`` that ``of_key`` declares, from parsed values by key; absent keys are skipped."""
    taken = {f.name: (f.metadata["key"], f.metadata["factor"]) for f in fields(cls) if "key" in f.metadata}
    return {
        field_name: values[key] if factor == 1 else values[key] * factor
        for field_name, (key, factor) in taken.items()
        if key in values
    }


class ConfigDef:
    """A table of keys. ``kind`` names it in errors: "topic", "broker", "controller"."""

    __slots__ = ("_keys", "kind")

    def __init__(self, kind: str, keys: Iterable[ConfigKey]) -> None:
        self.kind = kind
        self._keys: dict[str, ConfigKey] = {}
        for key in keys:
            if key.name in self._keys:
                raise ValueError(f"{kind} config key {key.name} is declared twice")
            self._keys[key.name] = key

    def __contains__(self, name: object) -> bool:
        return name in self._keys

    def __iter__(self) -> Iterator[ConfigKey]:
        return iter(self._keys.values())

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, name: str) -> ConfigKey:
        """The key of this name. If there is none, raises ``ConfigError``, which names the nearest key."""
        key = self._keys.get(name)
        if key is None:
            near = difflib.get_close_matches(name, self._keys, n=1)
            raise ConfigError(name, f"no such {self.kind} config key" + (f"; did you mean {near[0]}?" if near else ""))
        return key

    def get(self, name: str) -> ConfigKey | None:
        return self._keys.get(name)

    def parse_given(self, given: Mapping[str, object]) -> dict[str, Any]:
        """The given keys, parsed and checked, without defaults. Raises ``ConfigError``."""
        return {name: self[name].parse(value) for name, value in given.items()}

    def parse(self, given: Mapping[str, object]) -> dict[str, Any]:
        """Every key of the table, given or default.

        Raises ``ConfigError`` for an unknown key, a bad value, or a required key that is missing.
        """
        parsed = self.parse_given(given)
        for key in self:
            if key.name not in parsed:
                if key.default is REQUIRED:
                    raise ConfigError(key.name, f"the {self.kind} needs this key")
                parsed[key.name] = list(key.default) if isinstance(key.default, list) else key.default
        return parsed


def parse_properties(text: str, where: str = "") -> dict[str, str]:
    """A ``server.properties`` file: ``key=value`` lines, ``#`` and ``!`` comments.

    A trailing backslash continues a line. The last of several lines for one key counts. Raises ``ConfigError`` for a
    line without a separator.
    """
    found: dict[str, str] = {}
    pending = ""
    for number, raw in enumerate(text.splitlines(), 1):
        line = pending + raw.strip()
        pending = ""
        if not line or line[0] in "#!":
            continue
        if line.endswith("\\") and not line.endswith("\\\\"):
            pending = line[:-1]
            continue
        separator = re.search(r"[=:]", line)
        if separator is None:
            raise ConfigError(line, f"line {number}{f' of {where}' if where else ''} is not key=value")
        found[line[: separator.start()].strip()] = line[separator.end() :].strip()
    return found
