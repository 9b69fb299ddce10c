"""What a handler knows besides the request, and how it answers."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from anabranch.broker.awaited_batches import AwaitedBatches
from anabranch.broker.deferred import Deferred
from anabranch.broker.large_batches import NONE, LargeBatches
from anabranch.broker.log.producer_state import HALF_OF_ALL_SEQUENCES, NO_EPOCH, NO_SEQUENCE
from anabranch.broker.retry_order import RetryOrder
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.primitives import Message
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.types import TopicPartition

if TYPE_CHECKING:
    from anabranch.broker.node import Node

Answer: TypeAlias = Message | Deferred[Any] | None
"""A response, one that is filled in later, or None: the request is not answered (acks=0)."""

Handler: TypeAlias = Callable[["RequestContext", Any], Answer]


class CloseConnectionError(Exception):
    """Raised by a handler when the only answer is to close the connection."""


OUR_SOFTWARE = "anabranch"
"""How the names begin that our own clients and tools have in ApiVersions (KIP-511)."""
_FAILS_WITHOUT_LEADER = frozenset({"sarama"})
"""Libraries that fail a record whose partition has no leader for less than a second, and meanwhile send nothing."""
IN_FLIGHT_S = 0.05
"""What an idempotent producer had in flight when it was sent for metadata comes within this time. It is refused like
the first, which is kinder than OUT_OF_ORDER_SEQUENCE_NUMBER. No library repeats a batch so soon."""


_REFRESHES_SELDOM = frozenset({"kgo"})
"""Libraries that ask for metadata every five seconds at most, and write nothing to a partition whose leader is in
question until then: franz-go."""


class ClientSession:
    """What is known of the client at the other end of one connection."""

    __slots__ = ("__weakref__", "_furthest", "_max_retried", "_refreshes", "awaited", "retry_orders", "software_name")

    def __init__(self, max_retried: int) -> None:
        self._max_retried = max_retried
        """Of so many topics, and partitions with a producer, it is remembered what the client is to do or has done."""
        self.software_name = ""
        """As ApiVersions says; empty where it does not."""
        self.retry_orders: dict[TopicPartition, RetryOrder] = {}
        """Of partitions where a producer without idempotence is to repeat something."""
        self.awaited = AwaitedBatches()
        """What idempotent producers are to repeat."""
        self._refreshes: dict[str, tuple[uuid.UUID | None, int, float]] = {}
        self._furthest: dict[tuple[TopicPartition, int], tuple[int, int]] = {}

    @property
    def is_ours(self) -> bool:
        """Whether the client is Anabranch's, which knows what a resize asks of it."""
        return self.software_name.startswith(OUR_SOFTWARE)

    @property
    def waits_for_leaders(self) -> bool:
        """Whether a split is announced to the client: it is a stock one, and keeps what it has for new partitions."""
        return not self.is_ours and self.software_name not in _FAILS_WITHOUT_LEADER

    @property
    def refreshes_seldom(self) -> bool:
        """Whether a doubling must not depend on metadata that the client asks for: it goes on writing until it has."""
        return self.software_name in _REFRESHES_SELDOM

    @property
    def repeat_code(self) -> ErrorCode:
        """The error for which the client asks for metadata as soon as it does, and repeats a batch."""
        return ErrorCode.REQUEST_TIMED_OUT if self.refreshes_seldom else ErrorCode.NOT_LEADER_OR_FOLLOWER

    def refresh(
        self, topic: str, topic_id: uuid.UUID | None, layout_version: int, now: float, again_s: float = math.inf
    ) -> bool:
        """Note that the client is sent for a topic's metadata; False: it was before, for this layout or a later one.

        It is sent again after ``again_s``.

        A topic that was deleted and created again has another id, and its layout versions begin anew.
        """
        before = self._refreshes.get(topic)
        is_known = before is not None and before[0] == topic_id and before[1] >= layout_version
        if before is not None and is_known and now - before[2] < again_s:
            return False
        _remember(self._refreshes, topic, (topic_id, layout_version, now), self._max_retried)
        return True

    def is_refreshing(self, topic: str, topic_id: uuid.UUID | None, layout_version: int, now: float) -> bool:
        """Whether a batch that comes now may have been in flight when the client was sent for metadata."""
        before = self._refreshes.get(topic)
        return before is not None and before[:2] == (topic_id, layout_version) and now - before[2] < IN_FLIGHT_S

    def is_furthest(self, key: TopicPartition, batch: RecordBatch) -> bool:
        """Note a batch of an idempotent producer; whether none behind it came yet, so that none is to be repeated."""
        named = (key, batch.producer_id)
        epoch, sequence = self._furthest.get(named, (NO_EPOCH, NO_SEQUENCE))
        if epoch == batch.producer_epoch and 0 < sequence - batch.base_sequence < HALF_OF_ALL_SEQUENCES:
            return False
        _remember(self._furthest, named, (batch.producer_epoch, batch.base_sequence), self._max_retried)
        return True


K = TypeVar("K")
V = TypeVar("V")


def _remember(known: dict[K, V], key: K, value: V, most: int) -> None:
    """Set a value; of more than ``most`` the one that was set least recently goes."""
    known.pop(key, None)
    known[key] = value
    if len(known) > most:
        del known[next(iter(known))]


class RequestContext:
    """Who asks and in which version; ``node`` is this broker, ``session`` the connection's."""

    __slots__ = (
        "api_key",
        "api_version",
        "arrived",
        "begun",
        "client_host",
        "client_id",
        "correlation_id",
        "is_follower",
        "large_batches",
        "listener",
        "node",
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
    ) -> None:
        self.node = node
        self.listener = listener
        self.client_host = client_host
        self.client_id = client_id
        self.api_key = api_key
        self.api_version = api_version
        self.correlation_id = correlation_id
        self.session = session
        self.request_bytes = 0
        self.arrived = self.begun = 0.0
        """When the request had arrived, and when it was looked at."""
        self.is_follower = False
        """Whether it is a fetch of another broker."""
        self.large_batches: LargeBatches = NONE
        """What was read of the request's largest batches."""

    @property
    def keeps_order(self) -> bool:
        """Whether a consumer at the other end keeps the order of keys itself: it is ours."""
        return self.session.is_ours
