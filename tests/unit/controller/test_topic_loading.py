"""A topic that is read is taken into the image, with the effects that complete, convert or freeze it."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import pytest

from anabranch.controller import topics
from anabranch.controller.effects import Effects
from anabranch.controller.events import FirstLeadersDue, TopicChanged
from anabranch.controller.image import ClusterImage
from anabranch.controller.reads.topics import FoundChange, FoundTopic, FoundTopics
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import ImageStaleError
from anabranch.runtime.env import SetOp, ZkError, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import MalformedZnodeError
from tests.support.controller.decisions import T0, T1, cluster, context_of, decided, state

TOPIC_VERSION, STATE_VERSION, CZXID, MZXID = 4, 6, 11, 12
BAD = b"{"


def znode(data: bytes, version: int) -> Znode:
    return Znode(data, version, CZXID, MZXID, 0)


def found(
    topic: TopicZnode,
    states: Mapping[int, PartitionState | bytes | None],
    *,
    gone: Collection[int] = (),
    absent: Collection[int] = (),
) -> FoundTopic:
    """The znodes of the topic ``t``.

    A state is None if only its parent znode exists. A partition in ``absent`` has neither znode. The parent of a
    partition in ``gone`` was removed before the partitions were listed again.
    """
    data = {p: each.encode() if isinstance(each, PartitionState) else each for p, each in states.items()}
    present = {str(p) for p in states.keys() - set(absent)}
    return FoundTopic(
        "t",
        znode(topic.encode(), TOPIC_VERSION),
        topic,
        None,
        present,
        {p: None if each is None else znode(each, STATE_VERSION) for p, each in data.items()},
        present - {str(p) for p in gone},
    )


def new_topic(count: int) -> TopicZnode:
    return TopicZnode.new(uuid.UUID(int=1), {p: [1, 2] for p in range(count)})


def empty_cluster() -> ClusterImage:
    image = cluster()
    image.topics.clear()
    return image


@pytest.fixture
def context() -> Any:
    """Of a cluster without topics."""
    return context_of(empty_cluster())


def loaded(context: Any, topic: FoundTopic, **refused: Any) -> list[Effects]:
    """The effects of loading a topic that write or watch something."""
    effects = decided(topics.on_topic_list_changed(context, FoundTopics(["t"], [topic])), **refused)
    return [each for each in effects if each.groups or each.independent or each.watches]


def test_a_complete_topic_is_taken_as_it_is(context: Any) -> None:
    assert loaded(context, found(new_topic(2), {0: state(1, [1, 2]), 1: state(-1, [2])})) == []
    topic = context.image.topics["t"]
    assert (topic.version, topic.czxid, topic.unreadable) == (TOPIC_VERSION, CZXID, set())
    assert [found.status for found in topic.partitions.values()] == [PartitionStatus.ONLINE, PartitionStatus.OFFLINE]
    first = topic.partitions[0]
    assert (first.epoch, first.incarnation, first.mzxid) == (STATE_VERSION, CZXID, MZXID)


def test_a_topic_with_a_malformed_znode_is_noted_and_left_out(context: Any) -> None:
    error = MalformedZnodeError(paths.topic("t"), "", "no JSON")
    assert loaded(context, FoundTopic("t", znode(BAD, TOPIC_VERSION), error, None)) == []
    assert (context.image.topics, context.image.malformed) == ({}, {"t": MZXID})


def test_the_cluster_is_read_again_when_a_malformed_topic_is_repaired(context: Any) -> None:
    context.image.malformed["t"] = MZXID - 1
    with pytest.raises(ImageStaleError, match="/brokers/topics/t could not be loaded before"):
        loaded(context, found(new_topic(1), {0: state(1, [1])}))


def test_a_malformed_state_is_watched_and_its_partition_left_out(context: Any) -> None:
    assert loaded(context, found(new_topic(2), {0: BAD, 1: state(1, [1])})) == [Effects(watches=[(T0, STATE_VERSION)])]
    topic = context.image.topics["t"]
    assert (topic.unreadable, list(topic.partitions)) == ({0}, [1])


@pytest.mark.parametrize(("gone", "is_lost"), [([], True), ([0], False)])
def test_a_state_that_was_removed_alone_is_lost(context: Any, gone: list[int], is_lost: bool) -> None:
    """If the partition's parent znode is gone too, the controller of another release removed the partition."""
    loaded(context, found(new_topic(2), {0: None, 1: state(1, [1])}, gone=gone))
    topic = context.image.topics["t"]
    assert (topic.unreadable == {0}, 0 in topic.partitions) == (is_lost, not is_lost)


def test_a_partition_without_znodes_is_new_and_gets_a_leader(context: Any) -> None:
    (first,) = loaded(context, found(new_topic(2), {0: state(1, [1, 2])}))
    assert [(change.tp, change.create, change.state.leader) for change in first.independent] == [(T1, True, 1)]
    assert FirstLeadersDue() not in context.events.puts


def test_a_topic_that_zookeeper_refuses_to_complete_is_left_out(context: Any) -> None:
    topic = new_topic(1).replace(absent=frozenset({"layout_version"}))
    (write,) = loaded(context, found(topic, {0: state(1, [1])}), refuse=refuse_writes)
    assert [[op.path for op in group] for group in write.groups] == [[paths.topic("t")]]
    assert (context.image.topics, context.image.malformed) == ({}, {"t": MZXID})


def test_a_completed_topic_has_the_version_of_the_write(context: Any) -> None:
    loaded(context, found(new_topic(1).replace(absent=frozenset({"layout_version"})), {0: state(1, [1])}))
    topic = context.image.topics["t"]
    assert (topic.version, topic.znode.absent) == (TOPIC_VERSION + 1, frozenset())


def test_a_frozen_topic_is_served_and_its_states_are_watched(context: Any) -> None:
    topic = new_topic(2).replace(layout_version=1)
    states = {0: state(1, [1]).replace(layout=PartitionLayout(9, 4), initial_partition_count=2), 1: state(1, [1])}
    (effects,) = loaded(context, found(topic, states))
    assert effects == Effects(watches=[(T0, STATE_VERSION), (T1, STATE_VERSION)])
    assert context.image.topics["t"].frozen


def refuse_writes(effects: Effects) -> ZkError | None:
    return ZkError(paths.topic("t"), "refused") if effects.writes or effects.groups else None


def named(name: str, topic: TopicZnode) -> FoundTopic:
    return replace(found(topic, {0: state(1, [1])}), name=name)


def loaded_together(context: Any, *names: str, **refused: Any) -> list[Effects]:
    incomplete = new_topic(1).replace(absent=frozenset({"layout_version"}))
    topics_read = FoundTopics(names, [named(name, incomplete) for name in names])
    return [each for each in decided(topics.on_topic_list_changed(context, topics_read), **refused) if each.groups]


def test_topics_are_completed_by_as_few_multis_as_possible(context: Any) -> None:
    (effects,) = loaded_together(context, "a", "b", "c")
    assert [op.path for group in effects.groups for op in group] == [paths.topic(name) for name in "abc"]
    assert list(context.image.topics) == ["a", "b", "c"]


def test_a_topic_that_cannot_be_completed_does_not_stop_the_others(context: Any) -> None:

    def refuse(effects: Effects) -> ZkError | None:
        is_named = any(op.path == paths.topic("b") for group in effects.groups for op in group)
        return ZkError(paths.topic("b"), "refused") if is_named else None

    loaded_together(context, "a", "b", "c", refuse=refuse)
    assert (list(context.image.topics), context.image.malformed) == (["a", "c"], {"b": MZXID})


def test_a_topic_that_zookeeper_refuses_to_show_does_not_stop_the_others(context: Any) -> None:
    """The cluster is incomplete then, so brokers keep the replicas of the topic."""
    unread = {"u": ZkError(paths.topic("u"), "no permission")}
    read = FoundTopics(["t", "u"], [found(new_topic(1), {0: state(1, [1])})], unread)
    decided(topics.on_topic_list_changed(context, read))
    assert (list(context.image.topics), context.image.complete) == (["t"], False)
    assert context.events.later == 1, "the cluster is read again later"


# ---------------------------------------------------------------- changes of one topic


def test_a_topic_that_was_created_again_is_another_topic() -> None:
    context = context_of(cluster(state(1, [1, 2]), replicas=[[1, 2]]))
    again = found(new_topic(1), {0: state(2, [2])})
    decided(topics.on_topic_changed(context, TopicChanged("t"), FoundChange(again.read, again)))
    topic = context.image.topics["t"]
    assert (topic.czxid, topic.states()) == (CZXID, [state(2, [2])])


def test_an_edit_that_cannot_be_decoded_is_undone() -> None:
    context = context_of(cluster(state(1, [1, 2]), replicas=[[1, 2]]))
    known = context.image.topics["t"]
    edited = Znode(BAD, known.version + 1, known.czxid, MZXID, 0)
    undo = decided(topics.on_topic_changed(context, TopicChanged("t"), FoundChange(edited, None)))[0]
    assert undo.writes == (SetOp(paths.topic("t"), known.znode.encode(), known.version + 1),)


def test_an_edit_during_the_undoing_of_another_is_judged_next() -> None:
    context = context_of(cluster(state(1, [1, 2]), replicas=[[1, 2]]))
    edited = Znode(BAD, 9, context.image.topics["t"].czxid, MZXID, 0)
    change = topics.on_topic_changed(context, TopicChanged("t"), FoundChange(edited, None))
    assert decided(change, lambda effects: ImageStaleError("edited again") if effects.writes else None)
