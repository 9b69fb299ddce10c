"""A rebalance listener of a blocking consumer commits what the program has processed, as with other libraries."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch import NewTopic, TopicPartition
from anabranch.sync import Admin, Consumer, Producer
from anabranch.testing.cluster import Cluster

pytestmark = pytest.mark.integration


def test_a_listener_commits_at_a_rebalance_and_at_the_end(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    topic, group = fresh_name("revoked"), fresh_name("group")
    config = {"bootstrap_servers": cluster.bootstrap_servers, "group_id": group, "auto_offset_reset": "earliest"}
    done: dict[TopicPartition, int] = {}
    commits: list[dict[TopicPartition, int]] = []

    class Listener:
        def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
            processed = {tp: done[tp] for tp in partitions if tp in done}
            consumer.commit(processed)
            commits.append(processed)

    def read(count: int) -> None:
        for _ in range(count):
            record = consumer.getone()
            done[TopicPartition(topic, record.partition)] = record.offset + 1

    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    with Producer(bootstrap_servers=cluster.bootstrap_servers) as producer:
        producer.send_many(topic, [(None, b"%d" % number) for number in range(9)])
    consumer = Consumer(enable_auto_commit=False, **config)
    consumer.subscribe([topic], listener=Listener())
    read(3)
    consumer.subscribe([topic, fresh_name("other")], listener=Listener())
    read(2)
    consumer.close()
    only = TopicPartition(topic, 0)
    assert commits[-1] == {only: 5}
    with Consumer(**config) as next_one:
        assert next_one.committed(only) == 5
