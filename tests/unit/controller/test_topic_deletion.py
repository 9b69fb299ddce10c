"""The deletion of a topic: requests, the effects that begin it, and the removal of the znodes."""

from __future__ import annotations

import dataclasses
import uuid

import pytest

from anabranch.controller.carry_out import carry_out
from anabranch.controller.deletion import decide_deletion, on_deletions_changed, remove_znodes
from anabranch.controller.effects import Effects, TopicDeletion
from anabranch.controller.events import DeletionsChanged, RemovalDue
from anabranch.controller.image import ClusterImage
from anabranch.controller.reads.deletion_requests import FoundDeletions, FoundRequest, FoundZnodes
from anabranch.controller.reads.topics import FoundTopic, FoundTopics
from anabranch.controller.states import PartitionStatus, ReplicaStatus
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.runtime.env import DeleteOp, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.first_leader_epoch import FirstLeaderEpoch
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.decisions import CONFIG, T0, T1, cluster, context_of, decided, state

STARTED, INELIGIBLE = ReplicaStatus.DELETION_STARTED, ReplicaStatus.DELETION_INELIGIBLE


def test_every_live_broker_deletes_its_replicas_and_the_others_are_waited_for() -> None:
    image = cluster(state(1, [1, 3]), None, replicas=[[1, 3], [3, 2]], brokers=[1, 2])
    replicas = {(0, 1): STARTED, (0, 3): INELIGIBLE, (1, 3): INELIGIBLE, (1, 2): STARTED}
    assert decide_deletion(image, image.topics["t"], 70) == Effects(
        "t", deletion=TopicDeletion(70, replicas), stops=[(1, T0), (2, T1)], metadata=[T0, T1]
    )
    assert image == cluster(state(1, [1, 3]), None, replicas=[[1, 3], [3, 2]], brokers=[1, 2]), "nothing is changed"


@pytest.mark.trio
async def test_a_topic_is_offline_once_its_deletion_begins() -> None:
    image = cluster(state(1, [1, 2]), replicas=[[1, 2]], brokers=[1])
    context, topic = context_of(image), image.topics["t"]
    effects = decide_deletion(image, topic, 70)
    await carry_out(context, effects)
    assert context.store.multis == []
    assert (topic.deletion_zxid, topic.partitions[0].status) == (70, PartitionStatus.OFFLINE)
    assert image.deletions == {"t": {(0, 1): STARTED, (0, 2): INELIGIBLE}}
    (stop,) = [request for request in context.batch.build()[1] if isinstance(request, StopReplicaRequest)]
    assert [(t.topic_name, [p.delete_partition for p in t.partition_states]) for t in stop.topic_states] == [
        ("t", [True])
    ]


# ---------------------------------------------------------------- requests


def requested(image: ClusterImage, zxid: int | None, *znodes: str, enabled: bool = True) -> list[Effects]:
    """The effects of a new request to delete the topic ``t``. ``znodes`` are the topic's znodes that exist."""
    context = context_of(image)
    context.config = dataclasses.replace(CONFIG, delete_topic_enable=enabled)
    effects = decided(on_deletions_changed(context, FoundDeletions({"t": FoundRequest(zxid, set(znodes))}, None)))
    return [each for each in effects if each != Effects(groups=[])]


def test_a_requested_deletion_begins() -> None:
    image = cluster(state(1, [1]), replicas=[[1]])
    assert requested(image, 70, paths.topic("t")) == [decide_deletion(image, image.topics["t"], 70)]


def test_a_request_that_was_withdrawn_begins_nothing() -> None:
    assert requested(cluster(state(1, [1]), replicas=[[1]]), None, paths.topic("t")) == []


def test_requests_are_read_again_after_a_topic_was_loaded() -> None:
    """Loading may write. Meanwhile a request may be withdrawn, or its topic may be created again."""
    context = context_of(cluster(state(1, [1]), replicas=[[1]]))
    znode = Znode(TopicZnode.new(uuid.UUID(int=2), {0: [1]}).encode(), 0, 80, 80, 0)
    new = FoundTopic("u", znode, TopicZnode.decode(paths.topic("u"), znode.data), None)
    requests = {"t": FoundRequest(70, {paths.topic("t")}), "u": FoundRequest(81, {paths.topic("u")})}
    effects = decided(on_deletions_changed(context, FoundDeletions(requests, FoundTopics(["t", "u"], [new]))))
    assert (list(context.image.topics), [each.topic for each in effects if each.deletion]) == (["t", "u"], [])
    assert DeletionsChanged() in context.events.puts


def test_requests_for_topics_that_cannot_be_loaded_are_not_read_again() -> None:
    context = context_of(cluster(state(1, [1]), replicas=[[1]]))
    requests = {"t": FoundRequest(70, {paths.topic("t")}), "u": FoundRequest(81, {paths.topic("u")})}
    effects = decided(on_deletions_changed(context, FoundDeletions(requests, FoundTopics(["t", "u"], []))))
    assert [each.topic for each in effects if each.deletion] == ["t"]
    assert DeletionsChanged() not in context.events.puts


def test_a_request_is_removed_while_deletions_are_disabled() -> None:
    image = cluster(state(1, [1]), replicas=[[1]])
    (effects,) = requested(image, 70, paths.topic("t"), enabled=False)
    assert effects == Effects(groups=[[DeleteOp(paths.delete_topic("t"))]])


def test_the_config_and_the_request_of_a_topic_without_a_znode_are_removed() -> None:
    image = cluster()
    image.topics.clear()
    existing = (paths.topic_config("t"), paths.delete_topic("t"))
    assert requested(image, 70, *existing) == [Effects(groups=[[DeleteOp(path) for path in existing]])]
    assert requested(image, 70, existing[1]) == [Effects(groups=[[DeleteOp(existing[1])]])]


def test_a_topic_that_could_not_be_loaded_keeps_its_request() -> None:
    image = cluster()
    image.topics.clear()
    assert requested(image, 70, paths.topic("t"), paths.delete_topic("t")) == []


# ---------------------------------------------------------------- removal


def removed(image: ClusterImage, found: FoundZnodes | None) -> list[Effects]:
    context = context_of(image)
    context.events.forget_watch = lambda _: None
    return decided(remove_znodes(context, RemovalDue("t"), found))


def deleted_everywhere() -> ClusterImage:
    image = cluster(state(1, [1]), replicas=[[1]])
    image.deletions["t"] = {(0, 1): ReplicaStatus.DELETION_SUCCESSFUL}
    for partition in image.topics["t"].partitions.values():
        partition.status = PartitionStatus.OFFLINE
    return image


def test_a_deleted_topic_loses_its_znodes_from_the_leaves_up() -> None:
    image, partition = deleted_everywhere(), paths.partition("t", 0)
    others = (paths.partitions("t"), paths.topic("t"), paths.delete_topic("t"))
    raised, effects = removed(image, FoundZnodes({"0": ["state", "kafka"]}, True, others))
    assert [op.path for op in raised.writes] == [paths.FIRST_LEADER_EPOCH], "before any state is gone"
    of_partition = [DeleteOp(f"{partition}/state"), DeleteOp(f"{partition}/kafka"), DeleteOp(partition)]
    assert effects == Effects(groups=[of_partition, [DeleteOp(path) for path in others]])
    assert (image.topics, image.deletions) == ({}, {})


def test_the_topic_stays_while_partition_znodes_are_left() -> None:
    image = deleted_everywhere()
    image.first_leader_epoch = FirstLeaderEpoch(3)
    (effects,) = removed(image, FoundZnodes({"0": []}, False, ()))
    assert effects == Effects(groups=[[DeleteOp(paths.partition("t", 0))]], events=(RemovalDue("t"),))
    assert list(image.topics) == list(image.deletions) == ["t"]


def test_nothing_is_removed_if_the_deletion_began_again() -> None:
    assert removed(deleted_everywhere(), None) == []
