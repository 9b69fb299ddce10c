"""The limits for one client of ``metrics.listener``, by the keys ``metrics.http.*``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits, with the configuration's defaults."""

    connections: int = 16
    head_bytes: int = 8192
    """The first line and the headers of one request."""
    requests: int = 1000
    """The number of requests after which a connection is closed."""
    timeout_s: float = 5.0
    """The time a client has to send a request, and again to read the response."""
    idle_timeout_s: float = 75.0
    """The time a connection may be idle between two requests: longer than a usual scrape interval."""
