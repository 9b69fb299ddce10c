"""How much one client of ``metrics.listener`` may ask for, by the keys ``metrics.http.*``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


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

    @classmethod
    def of_config(cls, values: Mapping[str, Any]) -> HttpLimits:
        """By the keys of a broker or controller."""
        return cls(
            connections=values["metrics.http.max.connections"],
            head_bytes=values["metrics.http.max.head.bytes"],
            requests=values["metrics.http.max.requests"],
            timeout_s=values["metrics.http.timeout.ms"] / 1000,
            idle_timeout_s=values["metrics.http.idle.timeout.ms"] / 1000,
        )
