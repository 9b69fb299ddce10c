"""Keys in a process's own file that cannot act there."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.zk_schemas.config_def import ConfigDef, UpdateMode
from anabranch.zk_schemas.config_keys import BROKER_CONFIGS
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.kafka_keys import is_kafka_key, why_without_effect


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
