"""The client's half of incremental fetch sessions (KIP-227): changes since the last request. No IO.

The broker remembers the partitions of a session. A request names only partitions that were added, moved or dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from anabranch.client.errors import ErrorCode
from anabranch.protocol.sentinels import INITIAL_SESSION_EPOCH, INVALID_SESSION_ID
from anabranch.protocol.types import TopicPartition

_INT_MAX = 2**31 - 1


class FetchPosition(NamedTuple):
    """The offset and the number of bytes to fetch of one partition."""

    offset: int
    current_leader_epoch: int
    last_fetched_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """The session part of a fetch request."""

    session_id: int
    epoch: int
    send: dict[TopicPartition, FetchPosition]
    forget: list[TopicPartition]
    number: int
    """The number of the client's session. A response may arrive after the next session began."""
    is_urgent: bool = False
    """Whether the broker should answer at once. While the broker parks the request, no partition can be added."""


class ConsumerFetchSession:
    """The session with one broker. Call ``on_response`` for each ``next_request``, in order.

    After ``reset``, responses to earlier requests are ignored. Once the session exists, a second request may be sent
    before the first is answered.
    """

    __slots__ = ("_number", "_was_refused", "epoch", "partitions", "session_id")

    def __init__(self) -> None:
        self.session_id = INVALID_SESSION_ID
        self.epoch = INITIAL_SESSION_EPOCH
        """The session epoch of the next request."""
        self.partitions: dict[TopicPartition, FetchPosition | None] = {}
        """The session's partitions after the last built request. None: the next request must name or forget it."""
        self._number = 0
        self._was_refused = False
        """Whether the broker kept no session or lost the session last time. Then the next request is not urgent."""

    @property
    def takes_more(self) -> bool:
        """Whether another request may be sent before the last one is answered."""
        return self.epoch != INITIAL_SESSION_EPOCH

    def next_request(self, wanted: Mapping[TopicPartition, FetchPosition]) -> SessionRequest:
        """The request that makes the session fetch exactly ``wanted``, in this order."""
        if self.epoch == INITIAL_SESSION_EPOCH:
            self._number += 1
            self.partitions = dict(wanted)
            return SessionRequest(
                self.session_id, INITIAL_SESSION_EPOCH, dict(wanted), [], self._number, is_urgent=not self._was_refused
            )
        send = {tp: position for tp, position in wanted.items() if self.partitions.get(tp) != position}
        forget = [tp for tp in self.partitions if tp not in wanted]
        self.partitions = dict(wanted)
        request = SessionRequest(self.session_id, self.epoch, send, forget, self._number)
        self.epoch = 1 if self.epoch == _INT_MAX else self.epoch + 1
        return request

    def on_response(self, request: SessionRequest, error: ErrorCode, session_id: int) -> bool:
        """Process a response. Returns False if the session is over and the fetch must be sent again."""
        if request.number != self._number:
            return error is ErrorCode.NONE  # the response belongs to a session that was given up
        if error is not ErrorCode.NONE:
            self.reset()
            self._was_refused = True
            return False
        self._was_refused = session_id == INVALID_SESSION_ID
        if session_id == INVALID_SESSION_ID:
            # The broker keeps no session, so every fetch is a full one.
            self.session_id, self.epoch = INVALID_SESSION_ID, INITIAL_SESSION_EPOCH
        elif request.epoch == INITIAL_SESSION_EPOCH:
            self.session_id, self.epoch = session_id, 1
        return True

    def refused(self, tp: TopicPartition) -> None:
        """Note an error for a partition, so that the next request names or forgets the partition.

        The partition stays in the broker's session. If the next request does not name it, the broker may park the
        request until the partition changes. If an unwanted partition is not forgotten, each response repeats the
        partition's error.
        """
        if tp in self.partitions:
            self.partitions[tp] = None

    def reset(self) -> None:
        """Begin again with a full fetch, because the connection broke or the broker lost the session."""
        self._number += 1
        self.session_id, self.epoch = INVALID_SESSION_ID, INITIAL_SESSION_EPOCH
        self.partitions = {}
        self._was_refused = False
