"""The settings of the fetchers that follow other brokers."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.broker_keys import BrokerKeys


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
    def of(cls, values: BrokerKeys) -> FetcherConfig:
        """Build it from a broker's values."""
        return cls(
            broker_id=values.broker_id,
            max_bytes=values.replica_fetch_max_bytes,
            min_bytes=values.replica_fetch_min_bytes,
            response_max_bytes=values.replica_fetch_response_max_bytes,
            wait_max_ms=values.replica_fetch_wait_max_ms,
            backoff_s=values.replica_fetch_backoff_ms / 1000,
            socket_timeout_s=values.replica_socket_timeout_ms / 1000,
            flushes=values.log_flush == "ack",
        )
