"""A fetch that waits for ``min_bytes``."""

from __future__ import annotations

from typing import Protocol

from anabranch.broker.deferred import Deferred
from anabranch.broker.replication.fetch_session import FetchTarget
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.protocol.generated.fetch import FetchResponse


class Read(Protocol):
    """A fetch that can be run again."""

    target: FetchTarget
    size_bytes: int
    must_answer: bool

    def run(self) -> None: ...
    def response(self) -> FetchResponse: ...


class DelayedFetch(DelayedOperation):
    """Answers when enough bytes are available, when a partition fails, or when ``max_wait_ms`` is over."""

    __slots__ = ("_answer", "_min_bytes", "_read")

    def __init__(self, deadline: float, read: Read, min_bytes: int) -> None:
        super().__init__(deadline)
        self._read = read
        self._min_bytes = min_bytes
        self._answer: Deferred[FetchResponse] = Deferred()

    @classmethod
    def park(cls, purgatory: Purgatory, deadline: float, read: Read, min_bytes: int) -> Deferred[FetchResponse]:
        """Wait for the read's partitions to change."""
        operation = cls(deadline, read, min_bytes)
        read.target.delayed = operation
        purgatory.park(operation)
        return operation._answer

    def try_complete(self) -> None:
        self._read.run()
        if self._read.must_answer or self._read.size_bytes >= self._min_bytes:
            self.expire()

    def expire(self) -> None:
        self.completed = True
        self._answer.fill(self._read.response())


class DelayedRefusal(DelayedFetch):
    """A fetch that has nothing but errors to answer. It waits for its deadline, or until another partition has records.

    Some clients repeat a fetch as soon as it is answered with an error.
    """

    __slots__ = ()

    def try_complete(self) -> None:
        self._read.run()
        if self._read.size_bytes >= self._min_bytes:
            self.expire()
