"""Records every commit of a consumer for a history: the user's commits, and the consumer's own after a flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from anabranch.client.consumer.consumer import Consumer
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.protocol.types import TopicPartition
from tests.history.events import Committed, Outcome


def record_commits(
    consumer: Consumer, member: str, now_ms: Callable[[], float], record: Callable[[Committed], None]
) -> None:
    """Call ``record`` for each offset once the commit's request has ended. Only the outcome ``ok`` means success."""
    link = consumer._link
    assert link is not None
    commit, group = link.commit_offsets, link.group_id

    async def commit_offsets(
        offsets: Mapping[TopicPartition, OffsetAndMetadata], timeout_ms: float, **of_member: Any
    ) -> set[TopicPartition]:
        asked_ms = now_ms()
        outcome: Outcome = "unknown"
        try:
            reported: set[TopicPartition] = await commit(offsets, timeout_ms, **of_member)
            outcome = "ok"
            return reported
        finally:
            generation = of_member.get("generation_id", -1)
            for tp, offset in offsets.items():
                attempt = offset.offset, outcome, asked_ms, offset.incarnation
                record(Committed(now_ms(), group, member, generation, tp, *attempt))

    link.commit_offsets = commit_offsets  # type: ignore[method-assign]
