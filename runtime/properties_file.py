"""The file that ``--config`` names."""

from __future__ import annotations

from pathlib import Path

from anabranch.zk_schemas.config_def import ConfigError


def read_properties(path: Path) -> str:
    """The text of a properties file. Raises ``ConfigError`` that names the file."""
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError(str(path), f"line {line} is not UTF-8") from error
    except OSError as error:
        raise ConfigError(str(path), error.strerror or str(error)) from error
