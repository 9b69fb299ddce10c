"""Znodes edited by hand, with and without an active controller: an edit that the rules refuse is undone."""

from __future__ import annotations

import json
import random

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.create_topics import CreatableTopic, CreateTopicsRequest
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigChange, ConfigZnode
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import (
    TOPIC,
    alter,
    configure,
    creation,
    edit,
    finished,
    hold_records,
    resized,
    started,
)

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]


@pytest.fixture
async def cluster(cluster: ControllerCluster) -> ControllerCluster:
    """A topic that was resized from four partitions to six; every write is watched."""
    await resized(cluster, 6)
    return cluster


async def restored(cluster: ControllerCluster, before: TopicZnode) -> None:
    async def is_topic() -> bool:
        return (await cluster.store.get(paths.topic(TOPIC))).data == before.encode()

    await cluster.until(is_topic)


@pytest.mark.parametrize("is_seen", [True, False], ids=["live", "unseen"])
async def test_an_edit_that_the_rules_refuse_is_undone(
    cluster: ControllerCluster, is_seen: bool, caplog: pytest.LogCaptureFixture
) -> None:
    await configure(cluster, retention_ms="-1")
    before = await cluster.topic(TOPIC)
    if not is_seen:
        cluster.vacate()
    await edit(cluster, undeleted_partition_count=5)
    if not is_seen:
        await cluster.start_controller(1001)
    undone = f"event=topic.edit_undone path={paths.topic(TOPIC)} reason=The topic's records never expire"
    await cluster.until(lambda: undone in caplog.text)
    await restored(cluster, before)
    assert await finished(cluster, 6)
    await resized(cluster, 7)


async def test_two_edits_in_a_row_are_both_undone(nursery: trio.Nursery, caplog: pytest.LogCaptureFixture) -> None:
    """The second edit comes while the first is undone, and must not count as an edit without an active controller."""
    cluster = await started(nursery)
    await resized(cluster, 6)
    before = await cluster.topic(TOPIC)
    await edit(cluster, initial_partition_count=2)
    await cluster.store.set(paths.topic(TOPIC), b"{")
    await restored(cluster, before)
    assert "event=topic.malformed" not in caplog.text


# ---------------------------------------------------------------- states


async def test_a_deletion_ends_although_the_topic_is_removed_by_hand_meanwhile(nursery: trio.Nursery) -> None:
    """The last broker responds only after the topic's znodes are deleted. The deletion still ends."""
    cluster = await started(nursery)
    cluster.brokers[3].answering = trio.Event()
    await cluster.request(DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=100))
    await cluster.until(lambda: cluster.brokers[1].sent(StopReplicaRequest))
    for index in range(4):
        await cluster.store.delete(paths.partition_state(TOPIC, index))
        await cluster.store.delete(paths.partition(TOPIC, index))
    await cluster.store.delete(paths.partitions(TOPIC))
    await cluster.store.delete(paths.topic(TOPIC))
    await trio.sleep(1)  # virtual time: the controller has handled the removal
    cluster.brokers[3].answering.set()

    async def is_over() -> bool:
        return await cluster.store.exists(paths.delete_topic(TOPIC)) is None

    await cluster.until(is_over)
    assert (await cluster.request(creation(4, 1, 2, 3))).topics[0].error_code == ErrorCode.NONE
    await resized(cluster, 6)


async def test_a_topic_znode_that_cannot_be_read_is_logged_once(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is not logged again when another topic is created or deleted."""
    cluster = await started(nursery)
    await cluster.store.create(paths.topic("bad"), b"{")
    for name in ("u", "v", "w"):
        other = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        await cluster.request(CreateTopicsRequest(topics=[other], timeout_ms=5000))
    assert sum("/brokers/topics/bad" in record.message for record in caplog.records) == 1


# ---------------------------------------------------------------- random edits


VALUES: list[object] = [
    *(-2, -1, 0, 3, 5, 99, 70_000, 2**30, 2**31 - 1, 2**31, 2**63 - 1, 1.5, None, True, "x"),
    *([], [9], [1, 1], [3, 2, 1], {}, {"0": 0}, {"1": -1}, {"99": 3}, {"0": 2**31 - 1}, {"a": 1}, {"9" * 5000: 1}),
    *({"undeleted_partition_count": count, "layout_version": version} for count in (5, 99) for version in (1, 2**31)),
    *(
        {"layout": {"undeleted_partition_count": 4, "layout_version": 0}, "leader_epoch": epoch}
        for epoch in (-1, 0, 99)
    ),
    *([[0, {"0": 0}]], [[0, {"4": 0}], [1, {"0": 0}]], [[1, {"99": 0}]], [[2**30, {"1": 2**30}]], [[0, {}], [0, {}]]),
]
FIELDS = ("layout", "before", "lineage", "floor", "partitions", "wanted", "previous_undeleted_partition_count")


@pytest.mark.parametrize("seed", range(16))
async def test_random_edits_of_one_topic_do_not_stop_resizes_of_another(nursery: trio.Nursery, seed: int) -> None:
    """The controller also does not write the edited znodes repeatedly."""
    rng = random.Random(seed)
    cluster = await started(nursery)
    other = CreatableTopic(name="u", num_partitions=2, replication_factor=3)
    await cluster.request(CreateTopicsRequest(topics=[other], timeout_ms=5000))
    for count in rng.choice([(), (6,), (6, 5), (8, 6, 4), (8, 4, 6)]):
        hold_records(cluster, range(count, 8), 40)
        await resized(cluster, count)
    known = await cluster.topic(TOPIC)
    is_seen = rng.random() < 0.5
    if not is_seen:
        cluster.vacate()
    for path in rng.choices([paths.topic(TOPIC), *(paths.partition_state(TOPIC, p) for p in known.partitions)], k=2):
        data = (await cluster.store.get(path)).data
        fields = json.loads(data) if data.startswith(b'{"') else {"x": 1}
        fields[rng.choice([*fields, *FIELDS])] = rng.choice(VALUES)
        await cluster.store.set(path, rng.choice([json.dumps(fields).encode()] * 9 + [b"{"]))
    if not is_seen:
        await cluster.start_controller(1001)
    await cluster.request(alter(rng.choice([4, 5, 6, 7, 9]), timeout_ms=5000))
    cluster.brokers[2].leave()
    await trio.sleep(20)  # virtual time: longer than any wait
    await cluster.brokers[2].register()
    request = alter(4)
    request.topics[0].name = "u"
    result = (await cluster.request(request)).results[0]
    assert result.error_code == ErrorCode.NONE, result.error_message
    version = (await cluster.store.get(paths.topic(TOPIC))).version
    await trio.sleep(20)  # virtual time: longer than any wait
    assert (await cluster.store.get(paths.topic(TOPIC))).version <= version + 1


# ---------------------------------------------------------------- enable.ordered.delivery


async def edit_config(cluster: ControllerCluster, **config: str) -> None:
    """Write the config's znode, and the notification that brokers wait for."""
    path, names = paths.topic_config(TOPIC), {name.replace("_", "."): value for name, value in config.items()}
    await cluster.store.set(path, ConfigZnode(names).encode())
    change = ConfigChange(f"topics/{TOPIC}").encode()
    await cluster.store.create(paths.CONFIG_CHANGE_PREFIX, change, sequence=True, make_parents=True)


async def ordered(cluster: ControllerCluster) -> str | None:
    path = paths.topic_config(TOPIC)
    return ConfigZnode.decode(path, (await cluster.store.get(path)).data).config.get("enable.ordered.delivery")


def sent(cluster: ControllerCluster) -> set[int]:
    """The values of ``ordered_delivery`` that the topic has in broker 1's last LeaderAndIsr and last UpdateMetadata."""
    orders = [topic for r in cluster.brokers[1].sent(LeaderAndIsrRequest) for topic in r.topic_states]
    updates = [topic for r in cluster.brokers[1].sent(UpdateMetadataRequest) for topic in r.topic_states]
    return {orders[-1].partition_states[-1].ordered_delivery, updates[-1].ordered_delivery}


@pytest.mark.parametrize(("settled", "is_seen"), [("true", True), ("false", False)], ids=["live", "unseen"])
async def test_an_edit_of_ordered_delivery_of_a_resized_topic_is_undone(
    nursery: trio.Nursery, settled: str, is_seen: bool
) -> None:
    cluster = await started(nursery)
    await configure(cluster, enable_ordered_delivery=settled)
    assert sent(cluster) == {-1}
    await resized(cluster, 6)
    assert sent(cluster) == {int(settled == "true")}
    if not is_seen:
        cluster.vacate()
    await edit_config(cluster, enable_ordered_delivery="true" if settled == "false" else "false", retention_ms="7")
    if not is_seen:
        await cluster.start_controller(1001)

    async def is_restored() -> bool:
        return await ordered(cluster) == settled

    await cluster.until(is_restored)
    await resized(cluster, 8)
    assert sent(cluster) == {int(settled == "true")}
    assert (await cluster.topic(TOPIC)).ordered_delivery is (settled == "true")
