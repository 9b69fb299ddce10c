"""A controller's decisions about a topic: when the topic is read, on a queued count, and on each due step."""

from __future__ import annotations

import uuid

import pytest

from anabranch.controller import config_writes, topics, view
from anabranch.controller.config import ControllerConfig
from anabranch.controller.config_changes import restoring
from anabranch.controller.effects import Effects
from anabranch.controller.feature_level_rules import for_new_cluster
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.reads.config_znodes import is_followed
from anabranch.controller.resize import goal, steps
from anabranch.ordered_resize.judgement import VerdictKind
from anabranch.ordered_resize.next_step import next_steps
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.features import SUPPORTED
from anabranch.zk_schemas.partition_state import PartitionLayout
from anabranch.zk_schemas.topic import TopicZnode
from anabranch.zk_schemas.znode import NO_ID
from tests.support.controller.topic_images import asked, image_of, resized
from tests.support.resize.resized_topic import Topic

CONFIG = ControllerConfig(controller_id=1000, zookeeper_connect="z")
NEW_ID = uuid.UUID(int=77)
ORDERED = "enable.ordered.delivery"


def cluster(topic: Topic, config: dict[str, str] | None = None) -> ClusterImage:
    """Return an image of brokers 1 and 2 and the topic ``t``, with a config znode of version 6 or without one."""
    registration = BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)], features=SUPPORTED)
    brokers = {id: LiveBroker(id, 5, registration) for id in (1, 2)}
    image = ClusterImage(1000, 4, brokers=brokers, topics={"t": image_of(topic)})
    image.features = for_new_cluster(SUPPORTED)
    if config is not None:
        config_writes.take(image, paths.topic_config("t"), ConfigZnode(config).encode(), 6)
    return image


def written(effects: Effects) -> TopicZnode:
    """Return the topic's znode that the first operation writes."""
    op = effects.writes[0]
    assert isinstance(op, SetOp) and (op.path, op.version) == (paths.topic("t"), 3)
    found = TopicZnode.decode(op.path, op.data)
    assert found == effects.znode
    return found


# ------------------------------------------------------------ a topic that is read


def found(topic: Topic, **configs: str) -> Effects:
    image = cluster(topic, configs or None)
    read = image.topics.pop("t")
    return topics.decide_found(image, CONFIG, read, view.snapshot_of(image, read), lambda: NEW_ID)


def test_a_complete_topic_znode_is_not_rewritten() -> None:
    topic = resized(4, 6)
    effects = found(topic)
    assert (effects.writes, effects.znode) == ((), topic.topic)


def test_a_topic_id_that_another_tool_left_out_is_written() -> None:
    topic = Topic(4)
    topic.topic = topic.topic.replace(topic_id=NO_ID, absent=frozenset({"topic_id"}))
    assert written(found(topic)).topic_id == NEW_ID


def test_a_topic_id_is_kept_when_only_counts_are_absent() -> None:
    topic = Topic(4)
    topic.topic = topic.topic.replace(absent=frozenset({"undeleted_partition_count"}))
    assert written(found(topic)) == topic.topic


def test_ordered_delivery_is_settled_by_the_current_config() -> None:
    topic = resized(4, 6)
    topic.topic = topic.topic.replace(ordered_delivery=None)
    assert written(found(topic)).ordered_delivery is True
    assert written(found(topic, **{ORDERED: "false"})).ordered_delivery is False


def test_an_edit_while_no_controller_was_active_is_undone_where_the_rules_refuse_it() -> None:
    topic = resized(4, 6)
    topic.topic = topic.topic.replace(undeleted_partition_count=5)
    effects = found(topic, **{"retention.ms": "-1"})
    assert effects.response.outcome is VerdictKind.REFUSE
    assert written(effects).undeleted_partition_count == 6


def test_a_contradiction_freezes_the_topic() -> None:
    topic = resized(4, 6)
    topic.states[5] = topic.states[5].replace(layout=PartitionLayout(9, 4))
    effects = found(topic)
    assert (effects.response.outcome, effects.znode, effects.writes) == (VerdictKind.FREEZE, None, ())


# ------------------------------------------------------------ a queued count


def wanted(topic: Topic, **configs: str) -> Effects:
    image = cluster(topic, configs or None)
    read = image.topics["t"]
    return goal.decide_wanted(image, CONFIG, read, view.snapshot_of(image, read))


def queued(topic: Topic, count: int) -> Topic:
    topic.topic = topic.topic.replace(wanted=count)
    return topic


def test_without_a_queued_count_nothing_is_decided() -> None:
    assert wanted(resized(4, 6)) == Effects("t")


def test_a_queued_count_waits_for_the_previous_resize() -> None:
    assert wanted(queued(asked(4, 6), 8)) == Effects("t")


def test_a_queued_count_begins_when_the_previous_resize_is_settled() -> None:
    znode = written(wanted(queued(resized(4, 6), 8)))
    assert (znode.undeleted_partition_count, znode.layout_version, znode.wanted) == (8, 2, None)


def test_an_impossible_queued_count_is_dropped() -> None:
    effects = wanted(queued(resized(4, 6), 5), **{"retention.ms": "-1"})
    assert effects.response.outcome is VerdictKind.REFUSE and "never expire" in effects.response.why
    znode = written(effects)
    assert (znode.undeleted_partition_count, znode.wanted) == (6, None)


# ------------------------------------------------------------ steps that are due


def due(topic: Topic, at_most: int = 100, **given: dict[int, int]) -> list[Effects]:
    return steps.decide(image_of(topic), topic.snapshot(**given), at_most)  # type: ignore[arg-type]


def test_steps_of_one_kind_go_together_without_the_topics_znode() -> None:
    (bumps,) = due(asked(4, 6))
    assert (bumps.step, bumps.stepped, bumps.writes, bumps.znode) == ("bump", [0, 1, 2, 3], (), None)
    changes = [change for group in bumps.states for change in group]
    assert [change.tp.partition for change in changes] == [0, 1, 2, 3]
    assert not any(change.create for change in changes)


def test_a_partition_without_a_state_is_created() -> None:
    topic = asked(4, 6)
    for bump in next_steps(topic.snapshot()):
        topic.write(bump)
    (creation,) = due(topic)
    created = [change for group in creation.states for change in group]
    assert (creation.step, [(c.tp, c.create) for c in created]) == (
        "create",
        [(TopicPartition("t", 4), True), (TopicPartition("t", 5), True)],
    )


def test_a_gainer_waits_only_for_its_own_losers() -> None:
    """Partition 4 splits from partition 0, whose leader has acknowledged. Partition 5 splits from partition 1."""
    topic = asked(4, 6)
    for bump in next_steps(topic.snapshot()):
        topic.write(bump)
    image = cluster(topic)
    read = image.topics["t"] = image_of(topic, silent=[1])
    (creation,) = steps.decide(read, view.snapshot_of(image, read), 100)
    assert (creation.step, creation.stepped) == ("create", [4])


def test_the_number_of_changed_partitions_is_bounded_but_steps_stay_whole() -> None:
    assert [effects.stepped for effects in due(asked(4, 6), 3)] == [[0, 1, 2]]
    assert [effects.stepped for effects in due(asked(4, 6), 0)] == [[0]]


def test_a_settled_resize_has_no_due_step() -> None:
    assert due(resized(4, 6)) == []


def test_a_removal_is_one_multi_with_the_topics_znode() -> None:
    topic = resized(4, 6, 4)
    topic.carry_out(drained={4, 5})
    (removal,) = due(topic, deleted={4: 10, 5: 20})
    znode = written(removal)
    assert sorted(znode.partitions) == [0, 1, 2, 3]
    gone = [paths.partition_state("t", p) for p in (4, 5)] + [paths.partition("t", p) for p in (4, 5)]
    assert sorted(op.path for op in removal.writes if isinstance(op, DeleteOp)) == sorted(gone)


# ------------------------------------------------------------ ordered delivery


@pytest.mark.parametrize("settled", [None, True])
def test_a_config_that_equals_the_settled_value_stays(settled: bool | None) -> None:
    assert restoring(cluster(Topic(4), {ORDERED: "true"}), "t", settled) == Effects()


@pytest.mark.parametrize(("edited", "settled"), [("false", True), ("true", False)])
def test_an_edit_of_ordered_delivery_is_undone_and_brokers_are_notified(edited: str, settled: bool) -> None:
    effects = restoring(cluster(Topic(4), {ORDERED: edited, "retention.ms": "7"}), "t", settled)
    (op,) = effects.writes
    assert isinstance(op, SetOp) and (op.path, op.version) == (paths.topic_config("t"), 6)
    assert ConfigZnode.decode(op.path, op.data).config == {
        ORDERED: str(settled).lower(),
        "retention.ms": "7",
    }
    assert effects.notify == ("topics/t",)


def test_a_missing_config_is_created_with_the_settled_value() -> None:
    (op,) = restoring(cluster(Topic(4)), "t", False).writes
    assert isinstance(op, CreateOp) and ConfigZnode.decode(op.path, op.data).config == {ORDERED: "false"}


def test_a_config_that_cannot_be_used_is_not_rewritten() -> None:
    assert restoring(cluster(Topic(4), {ORDERED: "perhaps"}), "t", True) == Effects()


# ------------------------------------------------------------ notifications of configs


@pytest.mark.parametrize("entity", ["topics/..", "topics/.", "topics/a/b", "brokers/..", "brokers/x", "users/u"])
def test_a_notification_that_names_no_config_is_not_followed(entity: str) -> None:
    assert not is_followed(ConfigChange(entity))


@pytest.mark.parametrize("entity", ["topics/t", "brokers/1", "brokers/<default>"])
def test_a_notification_of_a_topic_or_of_brokers_is_followed(entity: str) -> None:
    assert is_followed(ConfigChange(entity))
