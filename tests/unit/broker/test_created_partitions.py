"""A broker finds the partitions that a resize created. There, groups of held consumers begin at the base offset."""

from __future__ import annotations

from anabranch.broker.coordinator.counted import REMEMBERED_MS, Creation, RecentCreations
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.protocol.sentinels import LEADER_DURING_DELETE
from anabranch.protocol.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def created_by(
    cache: MetadataCache, version: int, *partitions: tuple[int, int], base: int = -1, topic: int = 5, leader: int = 1
) -> dict[TopicPartition, Creation]:
    """Return the partitions created by a resize, from an update with these partitions and incarnations."""
    states = [
        UpdateMetadataPartitionState(partition_index=index, leader=leader, incarnation=incarnation, base_offset=base)
        for index, incarnation in partitions
    ]
    state = UpdateMetadataTopicState(
        topic_name="t", topic_incarnation=topic, layout_version=version, partition_states=states
    )
    cache.update(UpdateMetadataRequest(topic_states=[state]))
    return cache.take_created()


def test_partitions_of_a_new_topic_were_not_created_by_a_resize() -> None:
    """A broker that has just started cannot distinguish created partitions from older partitions."""
    assert created_by(MetadataCache(), 2, (0, 7), (1, 8)) == {}


def test_an_unknown_partition_of_a_resized_topic_was_created_by_the_resize() -> None:
    cache = MetadataCache()
    created_by(cache, 0, (0, 7))
    assert created_by(cache, 1, (0, 7), (1, 8)) == {T1: Creation(0, 8)}
    assert created_by(cache, 1, (1, 8)) == {}, "a creation is reported once"


def test_a_partition_that_was_removed_and_created_again_begins_at_its_base_offset() -> None:
    cache = MetadataCache()
    created_by(cache, 1, (0, 7), (1, 8))
    created_by(cache, 2, (1, 8), leader=LEADER_DURING_DELETE)
    assert created_by(cache, 3, (1, 9), base=40) == {T1: Creation(40, 9)}
    assert created_by(cache, 5, (1, 11), base=60) == {T1: Creation(60, 11)}, "although the broker missed its removal"


def test_a_revived_partition_was_not_created_by_a_resize() -> None:
    cache = MetadataCache()
    created_by(cache, 1, (0, 7), (1, 8))
    assert created_by(cache, 2, (0, 7), (1, 8)) == {} == created_by(cache, 3, (0, 7), (1, 8))


def test_partitions_of_another_topic_of_the_same_name_were_not_created_by_a_resize() -> None:
    cache = MetadataCache()
    created_by(cache, 1, (0, 7))
    assert created_by(cache, 1, (0, 17), (1, 18), topic=16) == {}


def test_a_topic_counts_as_resized_from_layout_version_1() -> None:
    cache = MetadataCache()
    assert not cache.is_resized("t")
    created_by(cache, 0, (0, 7))
    assert not cache.is_resized("t")
    created_by(cache, 1, (0, 7))
    assert cache.is_resized("t")


def test_a_creation_is_remembered_for_a_while() -> None:
    recent = RecentCreations()
    recent.add({T0: Creation(0, 1)}, 0)
    recent.add({T1: Creation(0, 2)}, 1)
    assert set(recent.as_of(REMEMBERED_MS - 1)) == {T0, T1}
    assert set(recent.as_of(REMEMBERED_MS)) == {T1}
