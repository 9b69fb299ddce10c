"""The keys with which a process is started: where each key is set, and which keys have no effect in the file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import ConfigDef, ConfigError, UpdateMode, parse_properties
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.kafka_keys import is_kafka_key, why_without_effect

ENVIRONMENT_PREFIXES = ("KAFKA_", "ANABRANCH_")
"""``KAFKA_LOG_DIRS`` sets ``log.dirs``. ``ANABRANCH_`` overrides ``KAFKA_``. Names that are no keys are ignored."""


class Given(NamedTuple):
    """The keys that are set, and where each was set last."""

    values: dict[str, str]
    file: str
    """The name of the file; empty without one."""
    other_sources: dict[str, str]
    """By key, the environment variable or the command line that set the key last."""

    def named(self, error: ConfigError) -> ConfigError:
        """The error with the source of its key. If the key is not set, this is the file that lacks the key."""
        source = self.other_sources.get(error.key) or (f"in {self.file}" if self.file else "")
        return ConfigError(error.key, f"{error.detail} ({source})") if source else error


def gather(
    table: ConfigDef, properties: str | None, where: str, environ: Mapping[str, str], settings: Iterable[str]
) -> Given:
    """The keys that are set. Later sources override: file, environment, ``--set key=value``. Raises ``ConfigError``.

    ``where`` names the file. The environment sets only keys of ``table``; parsing refuses other keys of the file.
    """
    given = parse_properties(properties, where) if properties is not None else {}
    sources = {}
    names = {key.name.replace(".", "_").upper(): key.name for key in table}
    for prefix in ENVIRONMENT_PREFIXES:
        for variable, value in environ.items():
            name = names.get(variable.removeprefix(prefix)) if variable.startswith(prefix) else None
            if name is not None:
                given[name], sources[name] = value, f"in the environment variable {variable}"
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(setting, "--set needs key=value")
        given[key.strip()], sources[key.strip()] = value.strip(), "on the command line"
    return Given(given, where, sources)


def for_broker(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``given`` without the keys that have no effect in a broker's file, and a warning for each such key.

    These are keys that only the controller uses, and keys that only Kafka has. An unknown key stays: parsing refuses
    it.
    """
    return _split(given, BROKER_CONFIGS, CONTROLLER_CONFIGS)


def for_controller(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``given`` without the keys that have no effect in a controller's file, and a warning for each such key."""
    return _split(given, CONTROLLER_CONFIGS, BROKER_CONFIGS)


def _split(given: Mapping[str, str], table: ConfigDef, other: ConfigDef) -> tuple[dict[str, str], list[str]]:
    kept, warnings = {}, []
    for name, value in given.items():
        why = _why_without_effect(name, table, other)
        if why is None:
            kept[name] = value
        else:
            warnings.append(f"{name} has no effect: {why}")
    return kept, warnings


def _why_without_effect(name: str, table: ConfigDef, other: ConfigDef) -> str | None:
    key = table.get(name)
    if key is not None and (table is CONTROLLER_CONFIGS or key.update_mode is not UpdateMode.ALL_BROKERS):
        return None
    if name in other:
        return f"it is read from a {other.kind}'s file, not from a {table.kind}'s"
    return why_without_effect(name) if is_kafka_key(name) else None
