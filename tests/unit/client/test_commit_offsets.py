"""Commits against a scripted coordinator: repeated offsets, dropped offsets, and the time of an error."""

from __future__ import annotations

from typing import Any

import pytest

from anabranch.client.cluster import Cluster, Node
from anabranch.client.errors import ErrorCode, KafkaError
from anabranch.client.group.coordinator_link import CoordinatorLink, OffsetAndMetadata
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.generated.offset_commit import OffsetCommitResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_anyio import client_env
from tests.support.protocol.messages import answered
from tests.support.resize.layouts import tp
from tests.unit.client.test_stale_metadata import INCARNATION, described

NEXT_INCARNATION = INCARNATION + 50


class Brokers:
    """A coordinator that refuses the offsets of ``unknown`` incarnations."""

    def __init__(self, unknown: set[tuple[int, int]]) -> None:
        self.unknown = unknown
        self.commits: list[dict[int, int]] = []

    async def request(self, _node: Any, body: Any, **_: Any) -> Any:
        if isinstance(body, FindCoordinatorRequest):
            return FindCoordinatorResponse(node_id=1, host="h", port=1)
        self.commits.append({p.partition_index: p.committed_offset for topic in body.topics for p in topic.partitions})
        return answered(
            OffsetCommitResponse, body, lambda _, n, p: {"error_code": self.error_of(p), "is_reported": p.is_processed}
        )

    def error_of(self, p: Any) -> int:
        known = (p.partition_index, p.incarnation) not in self.unknown
        return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


class ScriptedMetadata:
    """Returns the earlier topic until an update is requested."""

    def __init__(self, before: MetadataResponse, after: MetadataResponse) -> None:
        self.cluster = Cluster().merge(before, {"t"})
        self.after = after

    def any_node(self) -> Node:
        return Node(1, "h", 1)

    def hurry_update(self) -> None:
        self.cluster = self.cluster.merge(self.after, {"t"})

    async def wait_update(self, _timeout_s: float | None = None) -> None:
        """Return at once, because ``hurry_update`` has already updated the cluster."""


def committing(brokers: Brokers, after: MetadataResponse) -> CoordinatorLink:
    metadata: Any = ScriptedMetadata(described(1, 4), after)
    connections: Any = brokers
    return CoordinatorLink(client_env(), "g", metadata, connections, retry_backoff_ms=1, retry_backoff_max_ms=1)


def offset(value: int, incarnation: int) -> OffsetAndMetadata:
    return OffsetAndMetadata(value, "", 0, incarnation)


@pytest.mark.parametrize(
    "after", [described(2, 2), described(3, 4, incarnation=NEXT_INCARNATION)], ids=["removed", "created again"]
)
async def test_offsets_of_a_removed_partition_are_dropped_and_hold_up_no_others(after: MetadataResponse) -> None:
    """A member commits as it joins again. Retries of refused offsets would delay this member."""
    brokers = Brokers({(3, INCARNATION + 3)})
    link = committing(brokers, after)
    await link.commit_offsets({tp(0): offset(7, INCARNATION), tp(3): offset(9, INCARNATION + 3)}, 1_000)
    assert brokers.commits == [{0: 7, 3: 9}]


async def test_only_refused_offsets_are_committed_again() -> None:
    """The coordinator's broker does not know a new partition yet, so the coordinator refuses the partition's offset."""
    brokers = Brokers({(3, INCARNATION + 3)})
    link = committing(brokers, described(1, 4))
    with pytest.raises(KafkaError) as refused:
        await link.commit_offsets({tp(0): offset(7, INCARNATION), tp(3): offset(9, INCARNATION + 3)}, 1_000)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert brokers.commits[0] == {0: 7, 3: 9} and brokers.commits[1:] == [{3: 9}] * (len(brokers.commits) - 1)
    assert len(brokers.commits) > 1
    brokers.unknown.clear()
    brokers.commits.clear()
    await link.commit_offsets({tp(3): offset(9, INCARNATION + 3)}, 1_000)
    assert brokers.commits == [{3: 9}]


async def test_only_the_last_response_shows_which_offsets_were_reported() -> None:
    """The previous response may come from an earlier coordinator, and reports to that coordinator are lost."""
    brokers = Brokers({(3, INCARNATION + 3)})
    link = committing(brokers, described(1, 4))
    refused = brokers.error_of

    def once(p: Any) -> int:
        error = refused(p)
        brokers.unknown.clear()
        return error

    brokers.error_of = once  # type: ignore[method-assign]
    offsets = {tp(3): offset(9, INCARNATION + 3), tp(0): offset(7, INCARNATION)}
    assert await link.commit_offsets(offsets, 1_000, is_processed=True) == {tp(3)}
    assert brokers.commits == [{3: 9, 0: 7}, {3: 9}]
    assert await link.commit_offsets(offsets, 1_000) == set()


async def test_a_commit_for_a_partition_that_never_existed_is_an_error() -> None:
    """The user named the partition, so the offset must not look committed."""
    brokers = Brokers({(40, -1)})
    link = committing(brokers, described(2, 2))
    with pytest.raises(KafkaError) as refused:
        await link.commit_offsets({TopicPartition("t", 40): OffsetAndMetadata(1)}, 1_000)
    assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
