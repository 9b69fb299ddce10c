"""The settings of the fetchers that follow other brokers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """Kafka's ``replica.fetch.*`` and ``replica.socket.timeout.ms``."""

    broker_id: int
    max_bytes: int
    min_bytes: int
    response_max_bytes: int
    wait_max_ms: int
    backoff_s: float
    socket_timeout_s: float
    flushes: bool
    """Whether fetched records are on disk before the next fetch reports them (``log.flush=ack``)."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> FetcherConfig:
        """Build it from parsed broker values by Kafka key."""
        return cls(
            broker_id=values["broker.id"],
            max_bytes=values["replica.fetch.max.bytes"],
            min_bytes=values["replica.fetch.min.bytes"],
            response_max_bytes=values["replica.fetch.response.max.bytes"],
            wait_max_ms=values["replica.fetch.wait.max.ms"],
            backoff_s=values["replica.fetch.backoff.ms"] / 1000,
            socket_timeout_s=values["replica.socket.timeout.ms"] / 1000,
            flushes=values["log.flush"] == "ack",
        )
