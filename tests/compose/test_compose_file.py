"""``docker-compose.yml`` is valid by the Compose specification, which every Compose v2 follows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.compose.deployment import ROOT

COMPOSE_FILE = ROOT / "docker-compose.yml"


def validate(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, text=True)


def test_the_file_fits_the_compose_specification() -> None:
    done = validate(COMPOSE_FILE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_schema_refuses_a_key_that_is_not_in_the_specification(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    wrong.write_text(COMPOSE_FILE.read_text().replace("stop_grace_period:", "stop_grace_time:"))
    assert "stop_grace_time" in validate(wrong).stdout
