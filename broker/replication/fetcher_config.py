"""The settings of the fetchers that follow other brokers."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS, BrokerKeys
from anabranch.zk_schemas.config_def import of_key, values_of_keys


@dataclass(frozen=True, slots=True)
class FetcherConfig:
    """Kafka's ``replica.fetch.*`` and ``replica.socket.timeout.ms``."""

    broker_id: int
    max_bytes: int = of_key(BROKER_CONFIGS, "replica.fetch.max.bytes")
    min_bytes: int = of_key(BROKER_CONFIGS, "replica.fetch.min.bytes")
    response_max_bytes: int = of_key(BROKER_CONFIGS, "replica.fetch.response.max.bytes")
    wait_max_ms: int = of_key(BROKER_CONFIGS, "replica.fetch.wait.max.ms")
    backoff_s: float = of_key(BROKER_CONFIGS, "replica.fetch.backoff.ms", 0.001)
    socket_timeout_s: float = of_key(BROKER_CONFIGS, "replica.socket.timeout.ms", 0.001)
    flushes: bool = False
    """Whether fetched records are on disk before the next fetch reports them (``log.flush=ack``)."""

    @classmethod
    def of(cls, values: BrokerKeys) -> FetcherConfig:
        """Build it from a broker's values."""
        taken = values_of_keys(cls, values.by_key())
        return cls(values.broker_id, flushes=values.log_flush == "ack", **taken)
