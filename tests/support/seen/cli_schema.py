"""Validates the output of commands with ``--json`` by ``docs/cli.schema.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = json.loads((Path(__file__).resolve().parents[3] / "docs" / "cli.schema.json").read_text())


def valid_json(command: str, output: str | bytes) -> Any:
    """The value that ``command``, such as ``topics create``, printed. Raises ``ValidationError``."""
    found = json.loads(output)
    jsonschema.validate(found, {**SCHEMA, "$ref": f"#/$defs/{command.replace(' ', '%20')}"})
    return found
