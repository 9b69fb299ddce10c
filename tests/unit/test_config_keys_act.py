"""A config key that is accepted does something: code reads it by its name, or as the default of a topic key."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.config import without_ignored
from broker.log.log_config import LogConfig
from controller.config import CONTROLLER_CONFIGS
from zk_schemas.config_def import ConfigKey
from zk_schemas.config_keys import BROKER_CONFIGS, IGNORED_BROKER_KEYS, TOPIC_CONFIGS

ROOT = Path(__file__).resolve().parents[2]
READERS = "\n".join(
    path.read_text() for package in ("broker", "controller") for path in sorted((ROOT / package).rglob("*.py"))
)
LOG_KEYS = {name.replace("_", ".") for name in LogConfig.__slots__}
TOPIC_DEFAULTS = {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}


@pytest.mark.parametrize("key", [*BROKER_CONFIGS, *CONTROLLER_CONFIGS], ids=lambda key: key.name)
def test_a_broker_or_controller_key_is_read(key: ConfigKey) -> None:
    assert f'"{key.name}"' in READERS or key.name in TOPIC_DEFAULTS


@pytest.mark.parametrize("key", list(TOPIC_CONFIGS), ids=lambda key: key.name)
def test_a_topic_key_is_read(key: ConfigKey) -> None:
    assert f'"{key.name}"' in READERS or key.name in LOG_KEYS


def test_keys_of_a_stock_properties_file_that_cannot_act_are_named() -> None:
    kept, warnings = without_ignored({"broker.id": "1", "num.network.threads": "3"})
    assert kept == {"broker.id": "1"}
    assert len(warnings) == 1
    assert warnings[0].startswith("num.network.threads has no effect: ")


def test_no_key_is_both_read_and_ignored() -> None:
    assert [name for name in IGNORED_BROKER_KEYS if name in BROKER_CONFIGS] == []
