"""Client metadata over a fake of the connections to brokers."""

from __future__ import annotations

from typing import Any

import trio

from anabranch.client.errors import ErrorCode, error_for
from anabranch.client.net.connections import Unanswered
from anabranch.client.net.metadata import Metadata
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.runtime.real_anyio import client_env


class MetadataBrokers:
    """Brokers that answer with ``answer``, refuse connections without it, or are silent."""

    def __init__(self, answer: MetadataResponse | None = None, *, silent: bool = False) -> None:
        self.answer = answer
        self.silent = silent
        self.answered_at = float("-inf")
        self.asked_at: list[float] = []
        """The times of the requests."""
        self.owed: Unanswered | None = None
        """An unanswered request that is not a metadata request."""

    def load(self, _node: Any, _purpose: str) -> tuple[int, int]:
        return (0, 0)

    def unanswered(self) -> Unanswered | None:
        return self.owed

    async def request(self, _node: Any, _body: Any) -> MetadataResponse:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.silent:
            await trio.sleep_forever()
        if self.answer is None:
            raise error_for(ErrorCode.NETWORK_EXCEPTION, "no connection to h:1: refused")
        self.answered_at = trio.current_time()
        return self.answer


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
