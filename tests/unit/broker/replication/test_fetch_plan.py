"""The partitions that a follower names in its fetches."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from anabranch.broker.replication.fetch_plan import FetchPlan
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition

KEYS = [TopicPartition("t", 0), TopicPartition("t", 1)]
LOG = SimpleNamespace(log_end_offset=5, leader_epoch_cache=SimpleNamespace(latest_epoch=0), log_start_offset=0)
FOLLOWED: Any = {key: SimpleNamespace(partition=SimpleNamespace(log=LOG), leader_epoch=0) for key in KEYS}
CONFIG: Any = SimpleNamespace(broker_id=2, max_bytes=1, min_bytes=1, response_max_bytes=1)
SESSION_ID = 7


def named(plan: FetchPlan, broker_epoch: int) -> list[int]:
    """Return the partitions of the next request, and mark the request as answered."""
    request = plan.request(FOLLOWED, CONFIG, broker_epoch, 0)
    plan.answered(ErrorCode.NONE, SESSION_ID, FOLLOWED)
    return [asked.partition for topic in request.topics for asked in topic.partitions]


def test_a_fetch_in_a_session_names_only_changed_partitions() -> None:
    plan = FetchPlan()
    for key in KEYS:
        plan.want(key)
    assert named(plan, broker_epoch=10) == [0, 1]
    assert named(plan, broker_epoch=10) == []
    plan.want(KEYS[1])
    assert named(plan, broker_epoch=10) == [1]


def test_a_follower_names_every_partition_again_after_a_new_registration() -> None:
    """KIP-903: after a new registration a follower names every partition again.

    A leader proposes a replica for the ISR with the broker epoch of the replica's last fetch. Without a new fetch the
    controller would refuse the replica of an idle partition.
    """
    plan = FetchPlan()
    for key in KEYS:
        plan.want(key)
    assert named(plan, broker_epoch=10) == [0, 1]
    assert named(plan, broker_epoch=11) == [0, 1]
    assert named(plan, broker_epoch=11) == []
