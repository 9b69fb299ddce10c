"""Processes of this release run on the directories of commit a02dc22, which resized with barriers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from anabranch import FeatureUpdate, KafkaError, UpgradeType
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsRequest,
    PartitionLeaderEpochsForPartitionsRequestPartition,
    PartitionLeaderEpochsForPartitionsRequestTopic,
)
from anabranch.runtime.channel import Channel
from anabranch.runtime.real_trio import RealNetwork
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.earlier_release import recorded
from tests.support.broker.failures import controller_log, zookeeper
from tests.support.broker.releases import HIGHEST

DEADLINE_S = 60.0
RESIZED_ON = ("draining", "grown", "grown-again", "at-grow-losers-first", "at-shrink-sealed-first")
"""Topics that this release resizes further: it grows them to six partitions, and shrinks them to two."""
READ_BEFORE = 4
"""How many values of each key the group of a topic had read and committed."""
UNREAD = {name for name in recorded.topics() if name not in ("removed", "grown-again")}
"""Topics that still have all their records: no partition was removed."""


class Found(NamedTuple):
    cluster: ProcessCluster
    sent: dict[str, dict[str, list[str]]]
    """``{topic: {key: [value, ...]}}``"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    directory = tmp_path_factory.mktemp("earlier")
    sent = recorded.unpack(directory / "data")
    overrides = {"group.initial.rebalance.delay.ms": "100"}
    with ProcessCluster(brokers=2, directory=directory, overrides=overrides) as cluster:
        yield Found(cluster, sent)


def has_goal(client: KazooClient, topic: str, count: int) -> bool:
    """Whether each of ``count`` partitions has a leader, and the layout of ``count`` that this release wrote."""
    znode = TopicZnode.decode(topic, client.get(paths.topic(topic))[0])
    there = set(client.get_children(paths.partitions(topic)))
    if znode.undeleted_partition_count != count or not {str(p) for p in range(count)} <= there:
        return False
    try:
        states = [PartitionState.decode(topic, client.get(paths.partition_state(topic, p))[0]) for p in range(count)]
    except NoNodeError:  # the partition's znode exists, its state does not yet
        return False
    layout = (count, znode.layout_version)
    return all(state.leader >= 0 and (state.layout or (znode.initial_partition_count, 0)) == layout for state in states)


def is_old(client: KazooClient, topic: str) -> bool:
    """Whether some partition state of the topic still has the earlier release's format."""
    there = client.get_children(paths.partitions(topic))
    states = [json.loads(client.get(paths.partition_state(topic, int(p)))[0]) for p in there]
    return any("layout" in state and "initial_partition_count" not in state for state in states)


def lineages_by_version_0(cluster: ProcessCluster, topics: Iterable[str]) -> dict[str, set[ErrorCode]]:
    """Request the ancestors of partitions as a consumer of the earlier release does. Returns the errors."""
    host, _, port = cluster.bootstrap.split(",")[0].rpartition(":")
    both = [PartitionLeaderEpochsForPartitionsRequestPartition(partition_index=p) for p in (0, 1)]
    asked = [PartitionLeaderEpochsForPartitionsRequestTopic(name=name, partitions=both) for name in topics]

    async def ask() -> dict[str, set[ErrorCode]]:
        async with Channel.open(RealNetwork(), host, int(port), "earlier", timeout_s=DEADLINE_S) as channel:
            request = PartitionLeaderEpochsForPartitionsRequest(topics=asked)
            answer = await channel.request(request, version=0, timeout_s=DEADLINE_S)
        return {topic.name: {ErrorCode(p.error_code) for p in topic.partitions} for topic in answer.topics}

    return trio.run(ask)


def read(cluster: ProcessCluster, group: str, wanted: Mapping[str, Mapping[str, list[str]]]) -> None:
    """Read with a group, and check that each key has exactly the values in ``wanted``, in that order."""
    missing = {(topic, key): list(values) for topic, keys in wanted.items() for key, values in keys.items() if values}
    with Consumer(
        bootstrap_servers=cluster.bootstrap, group_id=group, auto_offset_reset="earliest", metadata_max_age_ms=1000
    ) as consumer:
        consumer.subscribe(sorted(wanted))

        def is_read() -> bool:
            for records in consumer.getmany(timeout_ms=200).values():
                for record in records:
                    left = missing[record.topic, (record.key or b"").decode()]
                    assert (record.value or b"").decode() == left.pop(0), f"{record} is out of order"
            return not any(missing.values())

        wait_for(is_read, DEADLINE_S, f"{group} reads all: {missing}")
        consumer.commit()


def test_topics_of_an_earlier_release_are_converted_and_resized_further(found: Found) -> None:
    """Topics in every state are read, converted once the level is finalized, and then resized further."""
    cluster, sent = found
    resized = [name for name in recorded.topics() if name not in ("never", "at-grow-asked")]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, zookeeper(cluster) as client:
        for topic, count in (("grown", 8), ("at-shrink-losers", 8)):
            with pytest.raises(KafkaError, match="evel 2 of the feature ordered_resize"):
                admin.create_partitions({topic: count})
        assert all(is_old(client, topic) for topic in resized), "a broker of that release may still come back"

        up = {name: FeatureUpdate(level, UpgradeType.UPGRADE) for name, level in HIGHEST.items()}
        assert set(admin.update_features(up).values()) == {None}
        for topic in recorded.topics():
            goal = recorded.goal(topic)
            wait_for(lambda: has_goal(client, topic, goal), DEADLINE_S, f"{topic} has {goal} partitions")  # noqa: B023
        assert not any(is_old(client, topic) for topic in recorded.topics())
        answers = lineages_by_version_0(cluster, recorded.topics())
        assert all(answers[topic] == {ErrorCode.LEADER_NOT_AVAILABLE} for topic in resized), "version 0 has no lineage"
        assert answers["never"] == {ErrorCode.NONE}

        read(cluster, "new", {topic: keys for topic, keys in sent.items() if topic in UNREAD})
        for topic in ("draining", "at-shrink-sealed-first"):
            rest = {key: values[READ_BEFORE:] for key, values in sent[topic].items()}
            read(cluster, f"readers-of-{topic}", {topic: rest})
            wait_for(lambda: len(partitions(client, topic)) == 2, DEADLINE_S, f"{topic} is drained")  # noqa: B023

        for count in (6, 2):
            for topic in RESIZED_ON:
                admin.create_partitions({topic: count})
            for topic in RESIZED_ON:
                wait_for(lambda: has_goal(client, topic, count), DEADLINE_S, f"{topic}: {count} partitions")  # noqa: B023
            later = produced(cluster, RESIZED_ON)
            read(cluster, "new", {topic: later for topic in RESIZED_ON if topic in UNREAD})


def partitions(client: KazooClient, topic: str) -> list[str]:
    return list(client.get_children(paths.partitions(topic)))


def produced(cluster: ProcessCluster, topics: Iterable[str]) -> dict[str, list[str]]:
    later = {f"key-{number}": ["later-1", "later-2"] for number in range(12)}
    with Producer(bootstrap_servers=cluster.bootstrap, acks="all", enable_idempotence=True) as producer:
        handles = [
            producer.send(topic, key=key.encode(), value=later[key][turn].encode())
            for topic in topics
            for turn in range(2)
            for key in later
        ]
        for handle in handles:
            handle.result()
    return later


def test_a_broker_of_the_earlier_release_that_registers_later_is_refused(found: Found) -> None:
    """KIP-584: that release checks no features, so the controller checks them, once the level is finalized."""
    cluster, _ = found
    registration = recorded.znodes()[paths.broker_id(1)]
    with Admin(bootstrap_servers=cluster.bootstrap) as admin, zookeeper(cluster) as client:
        client.create(paths.broker_id(9), json.dumps(registration).encode(), ephemeral=True)
        reason = "reason='consumer_offsets_topic_schema is finalized at level 2, broker 9 supports no level of it"
        refused = f"event='broker.refused' broker=9 {reason}"
        wait_for(lambda: refused in controller_log(cluster), DEADLINE_S, "the controller refuses it")
        assert "ordered_resize is finalized at level 2, broker 9 supports levels 1 to 1" in controller_log(cluster)
        assert {node.id for node in admin.describe_cluster().nodes} == {1, 2}
