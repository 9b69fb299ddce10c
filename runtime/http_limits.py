"""The limits for one client of ``metrics.listener``, by the keys ``metrics.http.*``."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.config_def import ConfigDef, of_key, values_of_keys
from anabranch.zk_schemas.process_keys import ProcessKeys

_KEYS = ConfigDef("process", ProcessKeys.all_keys())


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """The limits, with the configuration's defaults."""

    connections: int = of_key(_KEYS, "metrics.http.max.connections")
    head_bytes: int = of_key(_KEYS, "metrics.http.max.head.bytes")
    """The first line and the headers of one request."""
    requests: int = of_key(_KEYS, "metrics.http.max.requests")
    """The number of requests after which a connection is closed."""
    timeout_s: float = of_key(_KEYS, "metrics.http.timeout.ms", 0.001)
    """The time a client has to send a request, and again to read the response."""
    idle_timeout_s: float = of_key(_KEYS, "metrics.http.idle.timeout.ms", 0.001)
    """The time a connection may be idle between two requests: longer than a usual scrape interval."""

    @classmethod
    def of(cls, values: ProcessKeys) -> HttpLimits:
        """Build it from a process's values."""
        return cls(**values_of_keys(cls, values.by_key()))
