"""UpdateMetadata with leader -2 removes partitions from a broker's metadata. The group coordinator is told which."""

from __future__ import annotations

import uuid

import pytest

from anabranch.broker import metadata_cache
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.protocol.sentinels import LEADER_DURING_DELETE
from anabranch.protocol.types import TopicPartition

T0 = TopicPartition("t", 0)


def update(cache: MetadataCache, leader: int, incarnation: int) -> dict[TopicPartition, int]:
    states = [UpdateMetadataPartitionState(partition_index=0, leader=leader, incarnation=incarnation)]
    topics = [UpdateMetadataTopicState(topic_name="t", partition_states=states)]
    return cache.update(UpdateMetadataRequest(topic_states=topics))


@pytest.fixture
def cache() -> MetadataCache:
    return MetadataCache()


def test_the_removal_of_a_partition_is_reported_with_its_incarnation(cache: MetadataCache) -> None:
    assert update(cache, 1, 7) == {}
    assert cache.incarnation("t", 0) == 7
    assert update(cache, LEADER_DURING_DELETE, -1) == {T0: 7}
    assert not cache.contains("t", 0)
    assert cache.incarnation("t", 0) == -1


def test_the_removal_of_an_unknown_partition_is_reported() -> None:
    assert update(MetadataCache(), LEADER_DURING_DELETE, 7) == {T0: 7}


def test_a_partition_counts_as_merged_away_only_while_it_is_removed(cache: MetadataCache) -> None:
    """A partition counts as merged away from its removal until it is created again.

    A partition that the broker does not know may be new, so clients ask again (hole 28).
    """

    def deliver(partition: int, leader: int, incarnation: int) -> None:
        states = [UpdateMetadataPartitionState(partition_index=partition, leader=leader, incarnation=incarnation)]
        topics = [UpdateMetadataTopicState(topic_name="t", layout_version=2, partition_states=states)]
        cache.update(UpdateMetadataRequest(topic_states=topics))

    deliver(0, 1, 7)
    assert not cache.merged_away("t", 1) and not cache.merged_away("u", 0)
    deliver(1, 1, 8)
    deliver(1, LEADER_DURING_DELETE, 8)
    assert cache.merged_away("t", 1) and not cache.merged_away("t", 0)
    deliver(1, 1, 9)
    assert not cache.merged_away("t", 1)


def test_a_broker_learns_of_a_merge_that_it_missed(cache: MetadataCache) -> None:
    """The broker reports no offsets for deletion: existing offsets may belong to a partition that was created again."""
    states = [
        UpdateMetadataPartitionState(partition_index=0, leader=1, incarnation=7),
        UpdateMetadataPartitionState(partition_index=1, leader=LEADER_DURING_DELETE),
    ]
    topics = [UpdateMetadataTopicState(topic_name="t", layout_version=2, partition_states=states)]
    assert cache.update(UpdateMetadataRequest(topic_states=topics)) == {}
    assert cache.merged_away("t", 1)
    assert not cache.merged_away("t", 0) and not cache.merged_away("t", 2)


def test_hole_20_a_late_removal_keeps_the_partition_that_was_created_again(cache: MetadataCache) -> None:
    update(cache, 1, 9)
    assert update(cache, LEADER_DURING_DELETE, 7) == {T0: 7}
    assert cache.incarnation("t", 0) == 9


def test_partitions_that_an_update_with_a_new_topic_id_omits_are_removed(cache: MetadataCache) -> None:
    """The broker missed the removal of partition 1, because the broker was not registered at that time."""

    def deliver(topic_id: int, *partitions: int) -> dict[TopicPartition, int]:
        states = [UpdateMetadataPartitionState(partition_index=p, leader=1, incarnation=10 + p) for p in partitions]
        state = UpdateMetadataTopicState(topic_name="t", topic_id=uuid.UUID(int=topic_id), partition_states=states)
        return cache.update(UpdateMetadataRequest(topic_states=[state]))

    deliver(1, 0, 1)
    assert deliver(1, 0) == {}, "this update names only some partitions"
    assert cache.contains("t", 1)
    assert deliver(2, 0) == {TopicPartition("t", 1): 11}
    assert not cache.contains("t", 1)


def test_committed_offsets_of_a_merged_partition_stay_until_its_topic_is_deleted(cache: MetadataCache) -> None:
    """The offsets of a merged partition stay until its topic is deleted.

    The deletion then also drops the offsets of partitions that were removed earlier.
    """

    def deliver(**leaders: int) -> dict[TopicPartition, int]:
        states = [
            UpdateMetadataPartitionState(partition_index=int(name[1]), leader=leader, incarnation=7 + int(name[1]))
            for name, leader in leaders.items()
        ]
        topics = [UpdateMetadataTopicState(topic_name="t", layout_version=2, partition_states=states)]
        return cache.update(UpdateMetadataRequest(topic_states=topics))

    deliver(p0=1, p1=1)
    assert deliver(p1=LEADER_DURING_DELETE) == {TopicPartition("t", 1): 8}
    assert cache.goes_on("t", 1)
    assert deliver(p0=LEADER_DURING_DELETE) == {T0: 7, TopicPartition("t", 1): -1}
    assert not cache.goes_on("t", 0) and not cache.goes_on("t", 1)


def test_committed_offsets_of_a_partition_created_again_survive_a_late_removal(cache: MetadataCache) -> None:
    states = [UpdateMetadataPartitionState(partition_index=0, leader=1, incarnation=9, base_offset=40)]
    cache.update(
        UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=states)])
    )
    assert update(cache, LEADER_DURING_DELETE, 7) == {T0: 7}
    assert cache.goes_on("t", 0) and cache.base_offset("t", 0) == 40


def test_a_topic_that_was_created_anew_has_no_merged_partitions(cache: MetadataCache) -> None:
    """The broker missed the deletion of the first topic.

    The new topic has fewer partitions, and its partition 0 has another incarnation.
    """

    def deliver(topic_id: int, topic_incarnation: int, *incarnations: int) -> dict[TopicPartition, int]:
        states = [
            UpdateMetadataPartitionState(partition_index=p, leader=1, incarnation=incarnation)
            for p, incarnation in enumerate(incarnations)
        ]
        topic = UpdateMetadataTopicState(topic_name="t", topic_id=uuid.UUID(int=topic_id), partition_states=states)
        topic.topic_incarnation = topic_incarnation
        return cache.update(UpdateMetadataRequest(topic_states=[topic]))

    deliver(1, 9, 10, 11)
    assert deliver(2, 9, 10) == {TopicPartition("t", 1): 11}, "the same topic has another id"
    assert cache.goes_on("t", 1)
    deliver(2, 9, 10, 12)
    assert deliver(3, 19, 20) == {TopicPartition("t", 1): 12}
    assert not cache.goes_on("t", 1)
    assert cache.topics["t"].incarnation == 19


def a_topic(topic: int, *epochs: int, leader: int = 1) -> UpdateMetadataRequest:
    """``topic``: the topic's id and incarnation. ``epochs``: the leader epochs of its partitions."""
    states = [
        UpdateMetadataPartitionState(partition_index=p, leader=leader, leader_epoch=epoch, incarnation=topic)
        for p, epoch in enumerate(epochs)
    ]
    described = UpdateMetadataTopicState(
        topic_name="t", topic_id=uuid.UUID(int=topic), topic_incarnation=topic, partition_states=states
    )
    return UpdateMetadataRequest(topic_states=[described])


@pytest.mark.parametrize("was_told", [True, False])
def test_leader_epochs_of_a_deleted_topic_are_told_from_those_of_the_present_one(
    cache: MetadataCache, was_told: bool
) -> None:
    cache.update(a_topic(1, 2, 4))
    assert not cache.is_of_deleted_topic(T0, 2)
    if was_told:
        cache.update(a_topic(1, 2, 4, leader=LEADER_DURING_DELETE))
    assert not cache.is_of_deleted_topic(T0, 2)
    cache.update(a_topic(9, 5))
    assert [cache.is_of_deleted_topic(T0, epoch) for epoch in (-1, 0, 4, 5, 6)] == [False, True, True, False, False]
    assert not cache.is_of_deleted_topic(TopicPartition("t", 1), 4), "there is no such partition"


def test_leader_epochs_that_do_not_begin_above_those_of_the_deleted_topic_tell_nothing(cache: MetadataCache) -> None:
    cache.update(a_topic(1, 4))
    cache.update(a_topic(9, 4))
    assert not cache.is_of_deleted_topic(T0, 4) and not cache.is_of_deleted_topic(T0, 3)


def test_leader_epochs_of_a_merged_partition_count_for_its_topic_once_it_is_deleted(cache: MetadataCache) -> None:
    cache.update(a_topic(1, 2, 4))
    cache.update(a_topic(1, 2))
    merged = UpdateMetadataPartitionState(partition_index=1, leader=LEADER_DURING_DELETE, incarnation=1)
    cache.update(
        UpdateMetadataRequest(topic_states=[UpdateMetadataTopicState(topic_name="t", partition_states=[merged])])
    )
    assert not cache.is_of_deleted_topic(T0, 2)
    cache.update(a_topic(9, 5))
    assert cache.is_of_deleted_topic(T0, 4)


def test_only_the_last_deleted_topics_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_cache, "DELETED_TOPICS", 0)
    cache = MetadataCache()
    cache.update(a_topic(1, 4))
    cache.update(a_topic(9, 5))
    assert not cache.is_of_deleted_topic(T0, 4)
