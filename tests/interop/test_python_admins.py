"""The admin clients of confluent-kafka, kafka-python and aiokafka: topics, configs, records, offsets, groups."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from anabranch.testing.cluster import Cluster
from tests.interop.clients import LIBRARIES, Item
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop

Names = Callable[[str], str]
DEADLINE_S = 60.0
RECORDS = [Item(b"k", b"%d" % number) for number in range(20)]


def commit(bootstrap: str, group: str, topic: str, offset: int) -> None:
    """Make an empty group that has committed ``offset`` for partition 0."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "enable.auto.commit": False})
    consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)
    consumer.close()


TOPIC_OPERATIONS = {"READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"}
CLUSTER_OPERATIONS = {
    "CREATE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
}


def test_the_admin_client_of_confluent_kafka_manages_topics_and_groups(cluster: Cluster, fresh_name: Names) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition, admin

    topic, group = fresh_name("admin"), fresh_name("admin-group")
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap})

    def result(futures: dict[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(DEADLINE_S)

    result(client.create_topics([admin.NewTopic(topic, 2, 1, config={"retention.ms": "100000"})]))
    with pytest.raises(KafkaException, match="already exists"):
        result(client.create_topics([admin.NewTopic(topic, 2, 1)]))
    result(client.create_partitions([admin.NewPartitions(topic, 3)]))
    (described,) = client.describe_topics(_names(topic)).values()
    assert len(described.result(DEADLINE_S).partitions) == 3
    assert topic in client.list_topics(timeout=DEADLINE_S).topics
    (described,) = client.describe_topics(_names(topic), include_authorized_operations=True).values()
    assert {operation.name for operation in described.result(DEADLINE_S).authorized_operations} == TOPIC_OPERATIONS

    resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
    assert result(client.describe_configs([resource]))["retention.ms"].value == "100000"
    change = admin.ConfigEntry("retention.ms", "200000", incremental_operation=admin.AlterConfigOpType.SET)
    result(
        client.incremental_alter_configs(
            [admin.ConfigResource(admin.ResourceType.TOPIC, topic, incremental_configs=[change])]
        )
    )
    assert result(client.describe_configs([resource]))["retention.ms"].value == "200000"

    create_topic(cluster.bootstrap, f"{topic}-records", 1)
    LIBRARIES["confluent-kafka"].produce(cluster.bootstrap, f"{topic}-records", RECORDS, "none")
    partition = TopicPartition(f"{topic}-records", 0)
    deleted = result(client.delete_records([TopicPartition(f"{topic}-records", 0, 5)]))
    assert deleted.low_watermark == 5
    for spec, offset in ((admin.OffsetSpec.earliest(), 5), (admin.OffsetSpec.latest(), 20)):
        assert result(client.list_offsets({partition: spec})).offset == offset

    commit(cluster.bootstrap, group, f"{topic}-records", 7)
    assert group in {found.group_id for found in client.list_consumer_groups().result(DEADLINE_S).valid}
    assert result(client.describe_consumer_groups([group])).state.name == "EMPTY"
    (committed,) = result(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions
    assert (committed.topic, committed.partition, committed.offset) == (f"{topic}-records", 0, 7)
    moved = ConsumerGroupTopicPartitions(group, [TopicPartition(f"{topic}-records", 0, 9)])
    result(client.alter_consumer_group_offsets([moved]))
    (committed,) = result(client.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])).topic_partitions
    assert committed.offset == 9
    result(client.delete_consumer_groups([group]))
    assert group not in {found.group_id for found in client.list_consumer_groups().result(DEADLINE_S).valid}
    found = client.describe_cluster(include_authorized_operations=True).result(DEADLINE_S)
    assert len(found.nodes) == 3
    assert {operation.name for operation in found.authorized_operations} == CLUSTER_OPERATIONS
    result(client.delete_topics([topic]))
    assert topic not in client.list_topics(timeout=DEADLINE_S).topics


def test_a_broker_moves_to_another_advertised_address_while_it_runs(cluster: Cluster, fresh_name: Names) -> None:
    """KIP-226 with confluent-kafka: brokers have the new address after the call, clients after their next refresh."""
    from confluent_kafka import KafkaException, admin

    topic = fresh_name("moved")
    create_topic(cluster.bootstrap, topic, 1)
    client = admin.AdminClient({"bootstrap.servers": cluster.bootstrap})

    def alter(value: str | None) -> None:
        kind = admin.AlterConfigOpType.DELETE if value is None else admin.AlterConfigOpType.SET
        entry = admin.ConfigEntry("advertised.listeners", value, incremental_operation=kind)
        resource = admin.ConfigResource(admin.ResourceType.BROKER, "1", incremental_configs=[entry])
        (future,) = client.incremental_alter_configs([resource]).values()
        future.result(DEADLINE_S)

    def wait_for(host: str) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while {broker.host for broker in client.list_topics(topic).brokers.values() if broker.id == 1} != {host}:
            assert time.monotonic() < give_up, f"broker 1 is not shown at {host}"
            time.sleep(0.05)  # polls: the metadata of whichever broker is asked

    port = client.list_topics(topic, DEADLINE_S).brokers[1].port
    with pytest.raises(KafkaException, match="has to name the listeners"):
        alter(f"OTHER://localhost:{port}")
    alter(f"PLAINTEXT://localhost:{port}")
    wait_for("localhost")
    LIBRARIES["confluent-kafka"].produce(cluster.bootstrap, topic, RECORDS, "none")
    alter(None)
    wait_for("127.0.0.1")


def _names(*topics: str) -> Any:
    from confluent_kafka import TopicCollection

    return TopicCollection(list(topics))


def test_the_admin_client_of_kafka_python_manages_topics_and_groups(cluster: Cluster, fresh_name: Names) -> None:
    from kafka import KafkaAdminClient, TopicPartition
    from kafka.admin import ConfigResource, ConfigResourceType
    from kafka.errors import TopicAlreadyExistsError

    topic, group = fresh_name("admin"), fresh_name("admin-group")
    client = KafkaAdminClient(bootstrap_servers=cluster.bootstrap.split(","))
    options = {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "100000"}}
    client.create_topics({topic: options})
    with pytest.raises(TopicAlreadyExistsError):
        client.create_topics({topic: options})
    client.create_partitions({topic: 3})
    (described,) = client.describe_topics([topic])
    assert len(described["partitions"]) == 3
    assert topic in client.list_topics()

    def retention_ms() -> str:
        found = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        (by_name,) = found.values()
        return str(by_name[topic]["retention.ms"]["value"])

    assert retention_ms() == "100000"
    for incremental, value in ((True, "200000"), (False, "300000")):
        change = ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": value})
        client.alter_configs([change], incremental=incremental)
        assert retention_ms() == value

    create_topic(cluster.bootstrap, f"{topic}-records", 1)
    LIBRARIES["kafka-python"].produce(cluster.bootstrap, f"{topic}-records", RECORDS, "none")
    partition = TopicPartition(f"{topic}-records", 0)
    assert client.delete_records({partition: 5})[partition]["low_watermark"] == 5
    earliest, latest = -2, -1
    for spec, offset in ((earliest, 5), (latest, 20)):
        assert client.list_partition_offsets({partition: spec})[partition].offset == offset

    commit(cluster.bootstrap, group, f"{topic}-records", 7)
    assert group in {found["group_id"] for found in client.list_groups()}
    assert client.describe_groups([group])[group]["group_state"] == "Empty"
    assert client.list_group_offsets(group)[group][partition].offset == 7
    client.delete_groups([group])
    assert group not in {found["group_id"] for found in client.list_groups()}
    # Not describe_cluster: kafka-python 3.0 needs a field that version 0 of the response (Kafka 2.8 to 3.6) lacks.
    client.delete_topics([topic])
    assert topic not in client.list_topics()
    client.close()


def test_the_admin_client_of_aiokafka_manages_topics_and_groups(cluster: Cluster, fresh_name: Names) -> None:
    topic, group = fresh_name("admin"), fresh_name("admin-group")
    records = f"{topic}-records"
    create_topic(cluster.bootstrap, records, 1)
    LIBRARIES["aiokafka"].produce(cluster.bootstrap, records, RECORDS, "none")
    commit(cluster.bootstrap, group, records, 7)

    async def run() -> None:
        from aiokafka import TopicPartition
        from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
        from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

        client = AIOKafkaAdminClient(bootstrap_servers=cluster.bootstrap)
        await client.start()
        try:
            created = await client.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "100000"})])
            assert [error[1] for error in created.topic_errors] == [0]
            again = await client.create_topics([NewTopic(topic, 2, 1)])
            assert [error[1] for error in again.topic_errors] == [36], "TOPIC_ALREADY_EXISTS"
            await client.create_partitions({topic: NewPartitions(3)})
            (described,) = await client.describe_topics([topic])
            assert len(described["partitions"]) == 3

            async def retention_ms() -> str:
                (response,) = await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
                ((_, _, _, _, entries),) = response.resources
                return str(next(entry[1] for entry in entries if entry[0] == "retention.ms"))

            assert await retention_ms() == "100000"
            await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "200000"})])
            assert await retention_ms() == "200000"

            partition = TopicPartition(records, 0)
            assert await client.delete_records({partition: RecordsToDelete(5)}) == {partition: 5}
            assert group in {found[0] for found in await client.list_consumer_groups()}
            (described_group,) = await client.describe_consumer_groups([group])
            assert described_group.groups[0][2] == "Empty"
            assert (await client.list_consumer_group_offsets(group))[partition].offset == 7
            assert len((await client.describe_cluster())["brokers"]) == 3
            await client.delete_topics([topic])
            assert topic not in await client.list_topics()
        finally:
            await client.close()

    asyncio.run(run())
