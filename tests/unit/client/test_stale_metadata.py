"""Metadata that goes backwards: lagging brokers must not return a client to an earlier layout."""

from __future__ import annotations

import uuid

import pytest

from anabranch.client.cluster import Cluster, TopicInfo
from anabranch.client.errors import ErrorCode
from anabranch.protocol.generated.metadata import MetadataResponse
from anabranch.protocol.types import TopicPartition
from tests.support.protocol.messages import by_partition

INCARNATION, NEXT_INCARNATION = 100, 900
ID_BEFORE, ID_AFTER = uuid.UUID(int=1), uuid.UUID(int=2)


def described(
    version: int,
    undeleted: int,
    *,
    total: int | None = None,
    incarnation: int = INCARNATION,
    topic_id: uuid.UUID = ID_BEFORE,
    epoch: int = 0,
    leader: int = 1,
    error: ErrorCode = ErrorCode.NONE,
) -> MetadataResponse:
    partitions = {
        p: {"leader_id": leader, "leader_epoch": epoch, "incarnation": incarnation + p if incarnation > 0 else -1}
        for p in range(0 if error else total or undeleted)
    }
    brokers = [{"node_id": n, "host": "h", "port": n} for n in (1, 2)]
    response = by_partition(MetadataResponse, {"t": partitions}, brokers=brokers)
    (topic,) = response.topics
    topic.topic_id, topic.topic_incarnation, topic.error_code, topic.ordered_delivery = topic_id, incarnation, error, 1
    topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version = 2, undeleted, version
    return response


def seen(*responses: MetadataResponse) -> TopicInfo:
    cluster = Cluster()
    for response in responses:
        cluster = cluster.merge(response, {"t"})
    return cluster.topics["t"]


def test_an_older_layout_does_not_replace_a_newer_one() -> None:
    info = seen(described(1, 4), described(0, 2))
    assert (info.layout_version, info.layout, list(info.partitions)) == (1, (2, 4), [0, 1, 2, 3])


def test_a_count_may_come_back_but_a_layout_version_may_not() -> None:
    """Hole 10: 2 -> 4 -> 2 has the first count again, under another version."""
    info = seen(described(0, 2), described(1, 4), described(2, 2, total=4), described(0, 2))
    assert (info.layout_version, len(info.partitions)) == (2, 4)


def test_a_topic_created_again_starts_from_its_own_layout() -> None:
    """Hole 20: the incarnation distinguishes the topic from the earlier topic, whichever response arrives last."""
    again = described(0, 2, incarnation=NEXT_INCARNATION, topic_id=ID_AFTER)
    assert seen(described(3, 6), again).layout_version == 0
    assert seen(described(3, 6), again, described(3, 6)).incarnation == NEXT_INCARNATION


def test_a_changed_topic_id_after_a_removal_does_not_allow_an_older_layout() -> None:
    removed = described(2, 2, topic_id=ID_AFTER)
    assert seen(removed, described(1, 4)).layout_version == 2
    assert len(seen(described(2, 2, total=4), removed, described(2, 2, total=4)).partitions) == 2, (
        "the partitions stay removed"
    )


def test_within_a_layout_partitions_in_use_are_created_and_marked_ones_removed() -> None:
    """The order of responses does not matter.

    Metadata shows a resize before the first partition that gains keys is created.
    """
    begun, done = described(1, 6, total=4), described(1, 6)
    assert len(seen(begun, done).partitions) == len(seen(done, begun).partitions) == 6
    merged, removed = described(2, 4, total=6), described(2, 4, total=5)
    assert len(seen(merged, removed).partitions) == len(seen(removed, merged).partitions) == 5


def test_a_cancelled_resize_has_a_newer_layout_with_the_earlier_count() -> None:
    """The version rises by two; no producer needs to know the layout in between."""
    before, cancelled = described(1, 4), described(3, 4)
    assert seen(before, cancelled).layout_version == seen(cancelled, before, described(2, 6)).layout_version == 3


def test_an_unknown_topic_error_does_not_make_the_layout_forgotten() -> None:
    unknown = described(-1, -1, error=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    assert not seen(described(1, 4), unknown).partitions
    assert not seen(described(1, 4), unknown, described(0, 2)).partitions, "no metadata is better than older metadata"
    assert len(seen(described(1, 4), unknown, described(0, 2), described(1, 4)).partitions) == 4


@pytest.mark.parametrize(("version", "undeleted"), [(0, 2), (1, 4)])
def test_a_newer_leader_epoch_counts_even_beside_an_older_layout(version: int, undeleted: int) -> None:
    cluster = Cluster().merge(described(1, 4, epoch=5), {"t"})
    cluster = cluster.merge(described(version, undeleted, epoch=6, leader=2), {"t"})
    assert cluster.leader(TopicPartition("t", 1)) == 2
    cluster = cluster.merge(described(1, 4, epoch=5), {"t"})
    assert cluster.leader(TopicPartition("t", 1)) == 2


def test_a_plain_kafka_broker_sends_no_layout() -> None:
    def plain(count: int, topic_id: uuid.UUID) -> MetadataResponse:
        response = described(-1, -1, total=count, incarnation=-1, topic_id=topic_id)
        response.topics[0].initial_partition_count = -1
        return response

    assert seen(plain(3, ID_BEFORE), plain(6, ID_BEFORE)).layout == (6, 6)
    assert seen(plain(6, ID_BEFORE), plain(3, ID_AFTER)).layout == (3, 3)
