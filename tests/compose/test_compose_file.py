"""``docker-compose.yml`` is valid by the Compose specification, which every Compose v2 follows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from tests.compose.deployment import BROKERS, ROOT

COMPOSE_FILE = ROOT / "docker-compose.yml"


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_file_fits_the_compose_specification() -> None:
    done = validate(COMPOSE_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE_FILE.read_text())["services"]


def test_every_service_has_a_limit_of_memory_and_of_its_log() -> None:
    for name, service in services().items():
        assert re.fullmatch(r"\$\{\w+_MEMORY:-\w+\}", service["mem_limit"]), name
        assert service["logging"]["driver"] == "json-file" and len(service["logging"]["options"]) == 2, name


def test_the_console_needs_no_certain_broker_to_be_healthy() -> None:
    waited = services()["console"]["depends_on"]
    assert waited == {broker: {"condition": "service_started"} for broker in BROKERS}


def test_the_override_with_three_zookeepers_fits(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "containers.md").read_text()
    (text,) = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "zookeeper-3" in block]
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(text)
    assert validate(override).returncode == 0, validate(override).stdout
    added = yaml.safe_load(text)["services"]
    assert services().keys() - added.keys() == {"console"}
    connects = [
        one["environment"].get("ANABRANCH_ZOOKEEPER_CONNECT") for name, one in added.items() if "zoo" not in name
    ]
    assert connects == ["zookeeper:2181,zookeeper-2:2181,zookeeper-3:2181"] * 5


def test_the_schema_refuses_a_key_that_is_not_in_the_specification(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("stop_grace_period:", "stop_grace_time:"))
    assert "stop_grace_time" in validate(wrong).stdout
