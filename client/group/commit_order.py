"""Which offsets of a commit may still go out. No IO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from anabranch.protocol.types import TopicPartition

T = TypeVar("T")


class CommitOrder:
    """The commits of one consumer, in the order in which they were called.

    Once offsets of a later call have gone out for a partition, those of earlier calls must not follow, whether they
    waited for their turn or are tried again. It makes no difference which offset is lower: a later call for a lower
    offset is what the program wants.
    """

    def __init__(self) -> None:
        self._calls = 0
        self._last_sent: dict[TopicPartition, int] = {}
        """The number of the latest call that has gone out for each partition."""
        self._sent = 0
        self._sent_at: dict[TopicPartition, int] = {}
        """For each partition, the value of ``_sent``, the count of commits that went out, at the latest one."""

    def call(self) -> int:
        """The number of a commit that is called now."""
        self._calls += 1
        return self._calls

    def before_unsent(self) -> int:
        """The number of a commit that comes before every call that has not gone out, whenever that was called.

        It is for offsets that the program did not choose: where the group begins. It is not positive.
        """
        return -self._sent

    def is_replaced(self, call: int, tp: TopicPartition) -> bool:
        """Whether offsets of a later call have gone out for the partition."""
        return self._sent_at.get(tp, 0) > -call if call <= 0 else self._last_sent.get(tp, 0) > call

    def going_out(self, call: int, offsets: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
        """Note that the commit goes out now, and return its offsets but for those that later calls have replaced."""
        left = {tp: offset for tp, offset in offsets.items() if not self.is_replaced(call, tp)}
        if call > 0:
            self._sent += 1
            self._last_sent |= dict.fromkeys(left, call)
            self._sent_at |= dict.fromkeys(left, self._sent)
        return left
