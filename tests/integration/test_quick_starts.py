"""The first program of a user of another library runs here: written from its calls, with another import.

``docs/from-other-clients.md`` has the table of calls.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from anabranch import NewTopic
from anabranch.sync import Admin
from anabranch.testing.cluster import Cluster

pytestmark = pytest.mark.integration

DEADLINE_S = 120
AIOKAFKA = """
import asyncio
from anabranch import Consumer as AIOKafkaConsumer, Producer as AIOKafkaProducer

async def send_one():
    producer = AIOKafkaProducer(bootstrap_servers=SERVERS)
    await producer.start()
    try:
        await producer.send_and_wait(TOPIC, b"Super message")
        batch = producer.create_batch()
        for number in range(2):
            batch.append(key=None, value=b"in a batch", timestamp=None)
        future = await producer.send_batch(batch, TOPIC, partition=0)
        metadata = await future
        print("sent", metadata.topic, metadata.partition, metadata.offset)
    finally:
        await producer.stop()

async def consume():
    consumer = AIOKafkaConsumer(TOPIC, bootstrap_servers=SERVERS, group_id="my-group", auto_offset_reset="earliest")
    await consumer.start()
    left = 3
    try:
        async for msg in consumer:
            print("consumed:", msg.topic, msg.partition, msg.offset, msg.key, msg.value, msg.timestamp)
            left -= 1
            if not left:
                break
    finally:
        await consumer.stop()

asyncio.run(send_one())
asyncio.run(consume())
"""

KAFKA_PYTHON = """
from anabranch.sync import Consumer as KafkaConsumer, Producer as KafkaProducer
from anabranch import TopicPartition

producer = KafkaProducer(bootstrap_servers=SERVERS)
for _ in range(3):
    producer.send(TOPIC, b"some_message_bytes")
future = producer.send(TOPIC, b"another_message")
result = future.get(timeout=60)
producer.send(TOPIC, key=b"foo", value=b"bar")
producer.flush()

consumer = KafkaConsumer(TOPIC, group_id="my_favorite_group", bootstrap_servers=SERVERS, auto_offset_reset="earliest")
for msg in consumer:
    print(msg.partition, msg.offset, msg.key, msg.value)
    if msg.key == b"foo":
        break
print(sorted(consumer.topics() & {TOPIC}) == [TOPIC], consumer.highwater(TopicPartition(TOPIC, 0)))
"""
CONFLUENT = """
from anabranch.sync import Consumer, Producer

p = Producer(bootstrap_servers=SERVERS)

def delivery_report(err, msg):
    if err is not None:
        print("Message delivery failed:", err)
    else:
        print("Message delivered to", msg.topic, msg.partition)

for data in ("first", "second"):
    p.send(TOPIC, data.encode("utf-8"), on_delivery=delivery_report)
p.flush()

config = {"group_id": "mygroup", "auto_offset_reset": "earliest", "enable_auto_offset_store": False}
c = Consumer(bootstrap_servers=SERVERS, **config)
c.subscribe([TOPIC])
left = 2
while left:
    msg = c.poll(1.0)
    if msg is None:
        continue
    print("Received message:", msg.value.decode("utf-8"))
    c.store_offsets(msg)
    left -= 1
print(c.get_watermark_offsets((TOPIC, 0)), list(c.list_topics(TOPIC, timeout=10).topics[TOPIC].partitions))
c.close()
c = Consumer(bootstrap_servers=SERVERS, group_id="mygroup")
print(c.committed((TOPIC, 0)))
c.close()
"""
"""The calls are changed as the table says: the names of configuration and of the parts of a message differ."""

CONFLUENT_PRODUCER = """
from anabranch.confluent import Producer

p = Producer({"bootstrap.servers": SERVERS})

def delivery_report(err, msg):
    if err is not None:
        print("Message delivery failed: {}".format(err))
    else:
        print("Message delivered to {} [{}]".format(msg.topic(), msg.partition()))

for data in ("first", "second"):
    p.poll(0)
    p.produce(TOPIC, data.encode("utf-8"), callback=delivery_report)
p.flush()
"""
CONFLUENT_CONSUMER = """
from anabranch.confluent import Consumer, KafkaError

c = Consumer({"bootstrap.servers": SERVERS, "group.id": "mygroup", "auto.offset.reset": "earliest"})

def assigned(consumer, partitions):
    print("assigned:", partitions[0].topic, partitions[0].partition, consumer.committed(partitions)[0].offset)

def revoked(consumer, partitions):
    print("revoked:", [tp.offset for tp in consumer.commit(asynchronous=False)])

c.subscribe([TOPIC], on_assign=assigned, on_revoke=revoked)
left = 2
while left:
    msg = c.poll(1.0)
    if msg is None:
        continue
    if msg.error():
        if msg.error().code() != KafkaError._PARTITION_EOF:
            print("Consumer error: {}".format(msg.error()))
        continue
    print("Received message: {}".format(msg.value().decode("utf-8")))
    left -= 1
c.close()
"""
CONFLUENT_ADMIN = """
from anabranch.confluent import KafkaException
from anabranch.confluent.admin import AdminClient, NewTopic

a = AdminClient({"bootstrap.servers": SERVERS})
new_topics = [NewTopic(TOPIC + "-new", num_partitions=2, replication_factor=1), NewTopic(TOPIC, 1, 1)]
for topic, f in a.create_topics(new_topics).items():
    try:
        f.result()
        print("created", list(a.list_topics(topic).topics[topic].partitions))
    except KafkaException as e:
        print("failed", e.args[0].name())
"""


def output_of(program: str, cluster: Cluster, topic: str) -> list[str]:
    """Run a program on the cluster. Returns the lines that it prints, which must be all that it prints."""
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        if topic not in {listed.name for listed in admin.list_topics()}:
            admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    named = f"TOPIC = {topic!r}\nSERVERS = {cluster.bootstrap_servers!r}\n{program}"
    environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap_servers}
    done = subprocess.run(
        [sys.executable, "-c", named], capture_output=True, text=True, timeout=DEADLINE_S, env=environment
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.splitlines()


def test_the_first_program_for_aiokafka_runs(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("quick-start")
    sent, *consumed = output_of(AIOKAFKA, cluster, topic)
    assert sent == f"sent {topic} 0 1"
    assert [line.split()[:4] for line in consumed] == [["consumed:", topic, "0", str(n)] for n in range(3)]


def test_the_first_program_for_kafka_python_runs(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    *consumed, last = output_of(KAFKA_PYTHON, cluster, fresh_name("quick-start"))
    assert [line.split()[:2] for line in consumed] == [["0", str(n)] for n in range(5)]
    assert (consumed[-1], last) == ("0 4 b'foo' b'bar'", "True 5")


def test_the_first_program_for_confluent_kafka_runs(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("quick-start")
    assert output_of(CONFLUENT, cluster, topic) == [
        *[f"Message delivered to {topic} 0"] * 2,
        "Received message: first",
        "Received message: second",
        "(0, 2) [0]",
        "2",
    ]


def test_the_first_programs_for_confluent_kafka_run_with_another_import(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    topic = fresh_name("quick-start")
    assert output_of(CONFLUENT_PRODUCER, cluster, topic) == [f"Message delivered to {topic} [0]"] * 2
    assert output_of(CONFLUENT_CONSUMER, cluster, topic) == [
        f"assigned: {topic} 0 -1001",
        "Received message: first",
        "Received message: second",
        "revoked: [2]",
    ]
    assert output_of(CONFLUENT_ADMIN, cluster, topic) == ["created [0, 1]", "failed TOPIC_ALREADY_EXISTS"]
