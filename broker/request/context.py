"""The context of a request, and the forms of an answer to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from anabranch.broker.deferred import Deferred
from anabranch.broker.node import Node
from anabranch.broker.request.large_batches import NONE, LargeBatches
from anabranch.broker.stock.client_session import ClientSession
from anabranch.protocol.message import Message
from anabranch.protocol.named_items import Repeated

Answer: TypeAlias = Message | Deferred[Any] | None
"""A response, a response that is filled in later, or None if the request gets no response (acks=0)."""

_NOTHING: Repeated = set()


def keep_nothing() -> int:
    """Free nothing: no decoded request counts."""
    return 0


Handler: TypeAlias = Callable[["RequestContext", Any], Answer]


class CloseConnectionError(Exception):
    """Raised by a handler when the only answer is to close the connection."""


class RequestContext:
    """The client and version of a request. ``node`` is this broker, ``session`` the state of the connection."""

    __slots__ = (
        "api_key",
        "api_version",
        "arrived",
        "asks_for_own_tags",
        "begun",
        "client_host",
        "client_id",
        "correlation_id",
        "free_request",
        "is_follower",
        "keeps_request",
        "large_batches",
        "listener",
        "node",
        "repeated",
        "request_bytes",
        "session",
    )

    def __init__(
        self,
        node: Node,
        listener: str,
        client_host: str,
        client_id: str | None,
        api_key: int,
        api_version: int,
        correlation_id: int,
        session: ClientSession,
        asks_for_own_tags: bool = False,
    ) -> None:
        self.node = node
        self.listener = listener
        self.client_host = client_host
        self.client_id = client_id
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.session = session
        self.asks_for_own_tags = asks_for_own_tags
        """Whether the client gets tagged fields that are not Kafka's."""
        self.request_bytes = 0
        self.arrived = self.begun = 0.0
        """The time when the request had arrived, and the time when its handling began."""
        self.keeps_request = False
        """Whether the answer, which comes later, still needs the decoded request of an API that else keeps nothing."""
        self.free_request: Callable[[], int] = keep_nothing
        """The work calls it when the decoded request need not count any more. Returns the bytes that counted."""
        self.is_follower = False
        """Whether the request is a fetch of another broker."""
        self.repeated: Repeated = _NOTHING
        """The topics and partitions that the request names more than once, if its API refuses them."""
        self.large_batches: LargeBatches = NONE
        """The records that were read from the request's large batches."""

    @property
    def keeps_order(self) -> bool:
        """Whether the client, if it is a consumer, keeps the order of keys itself, as this project's clients do."""
        return self.session.is_ours
