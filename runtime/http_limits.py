"""How much one client of ``metrics.listener`` may ask for, by the keys ``metrics.http.*``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Defaults as in the configuration."""

    connections: int = 16
    head_bytes: int = 8192
    """Of one request: its first line and its headers."""
    requests: int = 1000
    """Of one connection; it is closed then."""
    timeout_s: float = 5.0
    """How long a client may take to ask, and to read the answer."""
    idle_timeout_s: float = 75.0
    """How long a connection may be quiet between two requests: longer than a usual interval of scrapes."""
