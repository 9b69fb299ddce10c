"""Configs as text for people."""

from __future__ import annotations

from anabranch.client.admin.types import ConfigSource


def source_name(number: int) -> str:
    try:
        return ConfigSource(number).name
    except ValueError:
        return str(number)
