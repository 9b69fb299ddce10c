"""Logs answered requests at DEBUG, as Kafka's ``kafka.request.logger`` does."""

from __future__ import annotations

import logging
from functools import partial
from typing import Protocol

import structlog

from anabranch.protocol.api_keys import ApiKey

logger = structlog.get_logger(__name__)
_level = logging.getLogger(__name__)


class Answered(Protocol):
    """The facts about a request that are logged."""

    api_key: int
    api_version: int
    client_id: str | None
    correlation_id: int


is_on = partial(_level.isEnabledFor, logging.DEBUG)
"""Whether requests are logged."""


def answered(
    request: Answered, client: str, arrived: float, begun: float, handled: float, filled: float, sent: float
) -> None:
    """Log a request. The times, in seconds, are those of ``RequestMetrics.answered``."""
    logger.debug(
        "request.answered",
        api=ApiKey(request.api_key).name,
        version=request.api_version,
        client=client,
        client_id=request.client_id,
        correlation_id=request.correlation_id,
        queue_ms=_ms(begun - arrived),
        local_ms=_ms(handled - begun),
        remote_ms=_ms(filled - handled),
        send_ms=_ms(sent - filled),
    )


def _ms(duration_s: float) -> float:
    return round(duration_s * 1000, 3)
