"""A fetch that waits for ``min_bytes``."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from anabranch.broker.deferred import Deferred
from anabranch.broker.replication.fetch_session import FetchTarget
from anabranch.broker.replication.purgatory import DelayedOperation, Purgatory
from anabranch.broker.replication.waiting_fetches import WaitingFetches
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.sentinels import INVALID_SESSION_ID


class Read(Protocol):
    """A fetch that can be run again."""

    target: FetchTarget
    size_bytes: int
    must_answer: bool

    def run(self) -> None: ...
    def response(self) -> FetchResponse: ...


class DelayedFetch(DelayedOperation):
    """Answers when enough bytes are available, when a partition fails, or when ``max_wait_ms`` is over."""

    __slots__ = ("_answer", "_is_large", "_kept", "_min_bytes", "_read")

    def __init__(self, deadline: float, read: Read, min_bytes: int) -> None:
        super().__init__(deadline)
        self._read: Read | None = read
        """None when it is answered: the purgatory keeps the operation up to its deadline."""
        self._min_bytes = min_bytes
        self._kept: WaitingFetches[DelayedFetch] | None = None
        self._is_large = False
        self._answer: Deferred[FetchResponse | None] = Deferred()

    @classmethod
    def park(
        cls,
        purgatory: Purgatory,
        deadline: float,
        read: Read,
        min_bytes: int,
        kept: WaitingFetches[DelayedFetch] | None = None,
        client: Hashable = None,
        *,
        is_large: bool = False,
    ) -> Deferred[FetchResponse | None]:
        """Wait for the read's partitions to change. A fetch without a session counts in ``kept`` meanwhile.

        ``client`` stands for the connection of the fetch. If ``is_large``, the answer is None when the wait is over,
        and the caller makes the response, in steps.
        """
        operation = cls(deadline, read, min_bytes)
        operation._is_large = is_large
        read.target.delayed = operation
        purgatory.park(operation)
        if kept is not None and read.target.session_id == INVALID_SESSION_ID:
            operation._kept = kept
            for ended in kept.add(operation, len(read.target.partitions), client):
                purgatory.end(ended)
        return operation._answer

    @property
    def items(self) -> int:
        return 1 if self._read is None else max(1, len(self._read.target.partitions))

    def try_complete(self) -> None:
        read = self._read
        if read is None:
            return
        read.run()
        if self._is_ready(read):
            self._finish(read)

    def _is_ready(self, read: Read) -> bool:
        return read.must_answer or read.size_bytes >= self._min_bytes

    def expire(self) -> None:
        read = self._read
        if read is None:
            return
        if read.target.has_changed:
            read.run()
        self._finish(read)

    def _finish(self, read: Read) -> None:
        self.drop()
        self.completed = True
        self._answer.fill(None if self._is_large else read.response())

    def drop(self) -> None:
        read, self._read = self._read, None
        if read is None:
            return
        read.target.delayed = None
        if self._kept is not None:
            self._kept.remove(self)


class DelayedRefusal(DelayedFetch):
    """A fetch that has nothing but errors to answer. It waits for its deadline, or until another partition has records.

    Some clients repeat a fetch as soon as it is answered with an error.
    """

    __slots__ = ()

    def _is_ready(self, read: Read) -> bool:
        return read.size_bytes >= self._min_bytes
