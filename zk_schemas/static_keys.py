"""The keys that a process is started with: where they come from, and which cannot act in its file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from anabranch.zk_schemas.config_def import ConfigDef, ConfigError, UpdateMode, parse_properties
from anabranch.zk_schemas.config_keys import BROKER_CONFIGS
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.kafka_keys import is_kafka_key, why_without_effect

ENVIRONMENT_PREFIXES = ("KAFKA_", "ANABRANCH_")
"""``KAFKA_LOG_DIRS`` is ``log.dirs``. Ours wins over Kafka's; a name that is no key belongs to another program."""


def gather(
    table: ConfigDef, properties: str | None, where: str, environ: Mapping[str, str], settings: Iterable[str]
) -> dict[str, str]:
    """The keys that are set, later sources winning: file, environment, ``--set key=value``. Raises ``ConfigError``.

    ``where`` names the file. The environment sets keys of ``table`` alone; parsing refuses others of the file.
    """
    given = parse_properties(properties, where) if properties is not None else {}
    names = {key.name.replace(".", "_").upper(): key.name for key in table}
    for prefix in ENVIRONMENT_PREFIXES:
        for variable, value in environ.items():
            name = names.get(variable.removeprefix(prefix)) if variable.startswith(prefix) else None
            if name is not None:
                given[name] = value
    for setting in settings:
        key, separator, value = setting.partition("=")
        if not separator:
            raise ConfigError(setting, "--set needs key=value")
        given[key.strip()] = value.strip()
    return given


def for_broker(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """``given`` without what does nothing in a broker's file, and a warning for each such key.

    That is what the controller acts by, and what only Kafka has. A key that nothing has stays: parsing refuses it.
    """
    return _split(given, BROKER_CONFIGS, CONTROLLER_CONFIGS)


def for_controller(given: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """The same for a controller's file."""
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
        return f"it acts in a {other.kind}'s file, not in a {table.kind}'s"
    return why_without_effect(name) if is_kafka_key(name) else None
