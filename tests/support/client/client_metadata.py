"""Client metadata over a fake of the connections to brokers."""

from __future__ import annotations

from typing import Any

from anabranch.client.net.metadata import Metadata
from anabranch.runtime.real_anyio import client_env


def metadata_over(brokers: Any, bootstrap: tuple[str, int] = ("h", 1), topic_idle_ms: float = float("inf")) -> Metadata:
    """Metadata over ``brokers``, which has the methods of ``Connections`` that ``Metadata`` uses."""
    return Metadata(
        client_env(),
        brokers,
        [bootstrap],
        max_age_ms=300_000,
        layout_backoff_ms=5,
        retry_backoff_ms=100,
        retry_backoff_max_ms=1_000,
        allow_auto_create=False,
        topic_idle_ms=topic_idle_ms,
    )
