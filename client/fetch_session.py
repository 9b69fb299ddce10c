"""Incremental fetch sessions (KIP-227), the client's half: what changed since the last request. No IO.

The broker remembers the partitions of a session; a request names only those added, moved or dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from client.errors import ErrorCode
from protocol.types import TopicPartition

INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_INT_MAX = 2**31 - 1


Layout = tuple[int, int]
"""Undeleted partition count and layout version."""


class FetchPosition(NamedTuple):
    """Where and how much to fetch of one partition."""

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


class FetchSession:
    """One broker's session. Ask ``next_request``, then report with ``on_response`` or ``reset``."""

    __slots__ = ("_layouts", "epoch", "partitions", "session_id")

    def __init__(self) -> None:
        self.session_id = 0
        self.epoch = INITIAL_EPOCH
        self.partitions: dict[TopicPartition, FetchPosition] = {}
        """What the broker fetches after the request last built."""
        self._layouts: dict[str, Layout] = {}

    def next_request(
        self, wanted: Mapping[TopicPartition, FetchPosition], layouts: Mapping[str, Layout] | None = None
    ) -> SessionRequest:
        """The request that makes the session fetch exactly ``wanted``, in its order.

        ``layouts`` are the topics' layouts as the client knows them. A session keeps those it began with: where one
        has changed since, this begins another (KIP-253).
        """
        layouts = layouts or {}
        if any(self._layouts.get(name, layout) != layout for name, layout in layouts.items()):
            self.epoch = INITIAL_EPOCH
        self._layouts = {**(self._layouts if self.epoch != INITIAL_EPOCH else {}), **layouts}
        if self.epoch == INITIAL_EPOCH:
            self.partitions = dict(wanted)
            return SessionRequest(self.session_id, INITIAL_EPOCH, dict(wanted), [])
        send = {tp: position for tp, position in wanted.items() if self.partitions.get(tp) != position}
        forget = [tp for tp in self.partitions if tp not in wanted]
        self.partitions = dict(wanted)
        return SessionRequest(self.session_id, self.epoch, send, forget)

    def on_response(self, error: ErrorCode, session_id: int) -> bool:
        """Take note of an answer; False when it says that the session is over and the fetch must be sent again."""
        if error is not ErrorCode.NONE:
            self.reset()
            return False
        if session_id == 0:
            self.session_id, self.epoch = 0, INITIAL_EPOCH  # the broker keeps no session: full fetches
        elif self.epoch == INITIAL_EPOCH:
            self.session_id, self.epoch = session_id, 1
        else:
            self.epoch = 1 if self.epoch == _INT_MAX else self.epoch + 1
        return True

    def reset(self) -> None:
        """Begin anew with a full fetch: the connection broke or the broker lost the session."""
        self.session_id, self.epoch = 0, INITIAL_EPOCH
        self.partitions = {}
