"""Writes ``docs/configuration.md`` from the tables of keys: ``python -m anabranch.config_reference`` (``make gen``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from anabranch.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.config_def import REQUIRED, ConfigKey
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.kafka_keys import KAFKA_BROKER_KEYS, why_without_effect
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS

TARGET = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
INTRODUCTION = """# Configuration
Written by `make gen` from the tables in `zk_schemas/topic_keys.py`, `zk_schemas/process_keys.py`,
`zk_schemas/broker_keys.py`, `zk_schemas/controller_keys.py` and `client/config.py`.

A broker or controller reads its keys in this order; the last value counts:

1. the properties file (`--config FILE`)
2. the environment: `KAFKA_LOG_RETENTION_MS`, then `ANABRANCH_LOG_RETENTION_MS`, for `log.retention.ms`
3. `--set key=value`

An unknown key is an error that names the nearest key. The column "changes" shows how a key is altered. A `read-only`
key needs a restart. The other keys can be altered while the cluster runs, and take effect at once:

- `per-broker`: for one broker (`anabranch configs alter broker 1 --set k=v`)
- `all brokers`: for all brokers (`anabranch configs alter broker all --set k=v`)
- `cluster-wide`: for one broker or for all; the value for one broker overrides the value for all

A producer, consumer or admin client without `bootstrap_servers` takes them from the environment variable
`ANABRANCH_BOOTSTRAP_SERVER`, as the commands do.
"""
NO_EFFECT = """A `server.properties` file of Kafka may have these keys. A broker names each of them in a warning. With
`--strict` it does not start. The same is true for a controller key in a broker's file, and for a broker key in a
controller's file."""


def render() -> str:
    """The text of the whole page."""
    parts = [INTRODUCTION]
    parts += ["## Topic keys", "A topic key takes its default from the broker key in its row, if there is one.", ""]
    parts += _table(
        ["key", "type", "default", "broker key", "meaning"],
        (
            [key.name, key.type.name.lower(), _default(key), _synonyms(key), key.doc]
            for key in sorted(TOPIC_CONFIGS, key=lambda key: key.name)
        ),
    )
    for title, table in (("Broker keys", BROKER_CONFIGS), ("Controller keys", CONTROLLER_CONFIGS)):
        parts += [f"## {title}", ""]
        parts += _table(
            ["key", "type", "default", "changes", "meaning"],
            (
                [key.name, key.type.name.lower(), _default(key), key.update_mode.value, key.doc or _topic_key(key)]
                for key in sorted(table, key=lambda key: key.name)
            ),
        )
    parts += ["## Kafka's keys without effect", NO_EFFECT, ""]
    idle = sorted(name for name in KAFKA_BROKER_KEYS if name not in BROKER_CONFIGS and name not in CONTROLLER_CONFIGS)
    parts += _table(["key", "reason"], ([name, why_without_effect(name)] for name in idle))
    for title, config in (("Producer", ProducerConfig), ("Consumer", ConsumerConfig), ("Admin", AdminConfig)):
        parts += [f"## {title} keys", "The keys are keyword arguments: Kafka's names with underscores.", ""]
        parts += _table(
            ["key", "default"],
            sorted([field.name, _shown(field.default)] for field in dataclasses.fields(config)),
        )
    return "\n".join(parts).rstrip() + "\n"


def _table(columns: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| `" + row[0] + "` | " + " | ".join(cell.replace("|", "\\|") for cell in row[1:]) + " |" for row in rows]
    return [*lines, ""]


def _default(key: ConfigKey) -> str:
    if key.default is REQUIRED:
        return "must be given"
    return "" if key.default is None else f"`{key.format(key.default)}`"


def _synonyms(key: ConfigKey) -> str:
    return ", ".join(f"`{synonym.name}`" for synonym in key.synonyms)


def _topic_key(key: ConfigKey) -> str:
    """The text for a broker key without a description: it names the topic keys that have this key as their default."""
    topics = [topic.name for topic in TOPIC_CONFIGS if key.name in {synonym.name for synonym in topic.synonyms}]
    return "default of " + ", ".join(f"`{name}`" for name in topics) if topics else ""


def _shown(value: object) -> str:
    if value is dataclasses.MISSING:
        return ""
    return f"`{value}`" if value not in (None, "", ()) else ""


if __name__ == "__main__":
    TARGET.write_text(render())
