"""Parsing of times that a user gives."""

from __future__ import annotations

from datetime import datetime, tzinfo

from anabranch.command_error import UsageError


def milliseconds(option: str, text: str, zone: tzinfo | None = None) -> int:
    """Parse a number of milliseconds since 1970, or a time in ISO 8601, to milliseconds since 1970.

    A time without a zone is in ``zone``, or in this machine's zone when that is None. Raises ``UsageError``.
    """
    if text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
        when = (at if at.tzinfo or zone is None else at.replace(tzinfo=zone)).timestamp()
    except (ValueError, OverflowError):
        when = -1.0
    if when < 0:
        raise UsageError(f"{option} {text}: expected a time as 2026-01-31T12:00:00Z, or milliseconds since 1970")
    return int(when * 1000)
