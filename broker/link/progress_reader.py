"""A broker's ``ProgressReader``: it finds the addresses of brokers in the metadata."""

from __future__ import annotations

from anabranch.broker.config import BrokerConfig
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.runtime.env import Env
from anabranch.runtime.progress_reader import ProgressReader


def progress_reader(
    env: Env, metadata: MetadataCache, config: BrokerConfig, purpose: str, timeout_s: float
) -> ProgressReader:
    """``purpose`` is a part of the client id."""
    client_id = f"broker-{config.broker_id}-{purpose}"
    return ProgressReader(env, client_id, lambda id: metadata.endpoint(id, config.inter_broker_listener), timeout_s)
