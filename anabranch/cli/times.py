"""Times as a user gives them."""

from __future__ import annotations

from datetime import datetime

from anabranch.command_error import UsageError


def milliseconds(option: str, text: str) -> int:
    """Milliseconds since 1970, of such a number or of a time in ISO 8601; local time when it has no zone."""
    if text.isdecimal() and len(text) < 19:
        return int(text)
    try:
        when = datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        when = -1.0
    if when < 0:
        raise UsageError(f"{option} {text}: expected a time as 2026-01-31T12:00:00Z, or milliseconds since 1970")
    return int(when * 1000)
