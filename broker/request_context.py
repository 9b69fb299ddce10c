"""What a handler knows besides the request, and how it answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from broker.deferred import Deferred
from protocol.primitives import Message

if TYPE_CHECKING:
    from broker.node import Node

Answer: TypeAlias = Message | Deferred[Any] | None
"""A response, one that is filled in later, or None: the request is not answered (acks=0)."""

Handler: TypeAlias = Callable[["RequestContext", Any], Answer]


class CloseConnectionError(Exception):
    """Raised by a handler when the only answer is to close the connection."""


class RequestContext:
    """Who asks and in which version; ``node`` is this broker."""

    __slots__ = ("api_key", "api_version", "client_host", "client_id", "correlation_id", "listener", "node")

    def __init__(
        self,
        node: Node,
        listener: str,
        client_host: str,
        client_id: str | None,
        api_key: int,
        api_version: int,
        correlation_id: int,
    ) -> None:
        self.node = node
        self.listener = listener
        self.client_host = client_host
        self.client_id = client_id
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
