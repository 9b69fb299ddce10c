"""How far one shrink may go: a survivor's bump and the maps of all that merges into it are one multi."""

from __future__ import annotations

import uuid

import pytest

from controller.image import PartitionImage, TopicImage
from controller.resize import checks, plan
from controller.states import PartitionStatus
from controller.store import MAX_BYTES
from runtime.env import SetOp
from runtime.zk_requests import operation_bytes
from zk_schemas import paths
from zk_schemas.partition_state import Layout, PartitionState
from zk_schemas.topic import TopicZnode

LAYOUT = Layout(4000, 2)


def grown(initial: int, undeleted: int) -> TopicImage:
    """A topic that was split until it had ``undeleted`` partitions, in several steps."""
    znode = TopicZnode(uuid.UUID(int=1), {index: [1, 2, 3] for index in range(undeleted)}, initial, undeleted, 2)
    topic = TopicImage("t", znode, 0, 0)
    for index in range(undeleted):
        state = PartitionState(1, 1, 7, [1, 2, 3], layout=LAYOUT, leader_epoch_after_creation={index // 2: 5})
        topic.partitions[index] = PartitionImage(PartitionStatus.ONLINE, state)
    return topic


def bytes_of_largest_bump(topic: TopicImage, count: int) -> int:
    """What the survivors' bumps of a shrink to ``count`` write, everything before them done."""
    for index in range(count, topic.znode.undeleted_partition_count):
        state = topic.state(index)
        assert state is not None
        topic.partitions[index].state = state.replace(sealed_offset=10**12)
    topic.znode = topic.znode.replace(undeleted_partition_count=count, layout_version=3)
    for change in plan.records_of_marked(topic, 1):
        topic.partitions[change.partition].state = change.state

    def written(index: int, state: PartitionState) -> int:
        return operation_bytes(SetOp(paths.partition_state("t", index), state.encode(), 1))

    return max(
        written(change.partition, change.state) + sum(written(*other) for other in change.with_it.items())
        for change in plan.bumps_of_survivors(topic, 1)
    )


@pytest.mark.parametrize("initial", [1, 2])
def test_the_smallest_count_that_fits_fits(initial: int) -> None:
    """ZooKeeper drops the connection at a request that is too large, and the controller would repeat it for ever."""
    smallest = checks.smallest_count(grown(initial, 4000), initial)
    assert smallest > initial
    assert bytes_of_largest_bump(grown(initial, 4000), smallest) <= MAX_BYTES
    assert bytes_of_largest_bump(grown(initial, 4000), initial) > MAX_BYTES


def test_an_ordinary_shrink_goes_as_far_as_is_asked() -> None:
    assert checks.smallest_count(grown(1, 600), 1) == 1
    assert checks.smallest_count(grown(64, 4000), 64) == 64
