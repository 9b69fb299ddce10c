"""The console decodes records of Confluent's serializers by a real schema registry.

The registry is a stock Kafka application: topics of the cluster are its only storage. Without Java or Maven the tests
are skipped with a message.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the console needs the extra [console]")
pytest.importorskip("confluent_kafka.schema_registry.avro", reason="needs confluent-kafka[avro,protobuf]")

from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from anabranch import NewTopic
from anabranch.sync import Admin, Producer
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from bench.maven import PeerUnavailable
from tests.interop.apicurio import SchemaRegistry, program, schema_registry
from tests.support.seen.served_console import Served

pytestmark = pytest.mark.interop

DEADLINE_S = 60.0
UNKNOWN_ID = 1_000_000
NAME = {"name": "name", "type": "string"}
USER: dict[str, Any] = {"type": "record", "name": "User", "namespace": "shop", "fields": [NAME]}
USER_2 = USER | {"fields": [NAME, {"name": "age", "type": "int", "default": 0}]}
ORDER = {"type": "record", "name": "Order", "namespace": "shop", "fields": [{"name": "by", "type": "shop.User"}]}
PROTO_TEXT = 'syntax = "proto3"; message User { string name = 1; }'


@pytest.fixture(scope="module")
def registry(
    cluster: Cluster, fresh_name: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SchemaRegistry]:
    try:
        program()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    with schema_registry(cluster.bootstrap, fresh_name("schemas"), tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture
def console(cluster: Cluster, registry: SchemaRegistry) -> Iterator[Served]:
    """A console that has requested no schema yet."""
    with Served(cluster.bootstrap_servers, "--schema-registry", registry.url) as served:
        yield served


class Writer:
    """Writes to a topic of one partition with Confluent's serializers."""

    def __init__(self, cluster: Cluster, registry: SchemaRegistry, topic: str) -> None:
        self.topic = topic
        self.schemas = SchemaRegistryClient({"url": registry.url, "timeout": DEADLINE_S})
        self._cluster = cluster
        with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(topic, 1, 3)])

    def avro(
        self, schema: dict[str, Any], value: dict[str, Any], topic: str = "", references: Sequence[SchemaReference] = ()
    ) -> bytes:
        """Write a record for ``topic``, or for this topic. The schema becomes a version of the topic's subject."""
        serializer = AvroSerializer(self.schemas, Schema(json.dumps(schema), "AVRO", list(references)))
        return serializer(value, SerializationContext(topic or self.topic, MessageField.VALUE))

    def protobuf(self, message: Any) -> bytes:
        serializer = ProtobufSerializer(type(message), self.schemas, {"use.deprecated.format": False})
        return serializer(message, SerializationContext(self.topic, MessageField.VALUE))

    def send(self, *values: bytes) -> None:
        with Producer(bootstrap_servers=self._cluster.bootstrap_servers) as producer:
            for value in values:
                producer.send(self.topic, key=b"k", value=value).result()


@pytest.fixture
def writer(cluster: Cluster, registry: SchemaRegistry, fresh_name: Callable[[str], str]) -> Writer:
    return Writer(cluster, registry, fresh_name("by-schema"))


def shown(console: Served, topic: str) -> list[Any]:
    """The values on the page of a topic's messages, in offset order: decoded values, or else the shown text."""
    status, page = console.get(f"/topics/{topic}/messages?from=beginning")
    assert status == 200, page
    values = re.findall(r'class="code data">k</td><td data-label="value" class="code data">(.*?)</td></tr>', page, re.S)
    return [json.loads(text) if text[0] in "{[" else text for text in map(html.unescape, values)]


def proto_messages(directory: str) -> tuple[Any, Any]:
    """Two messages: ``Order.Line``, nested second in the second message of its file, and ``User`` of another file.

    ``directory`` is the prefix of the file names. A file name is also the file's subject.
    """
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    user = descriptor_pb2.FileDescriptorProto(name=f"{directory}/user.proto", package="shop", syntax="proto3")
    user.message_type.add(name="User").field.add(name="name", number=1, label=1, type=9)
    order = descriptor_pb2.FileDescriptorProto(name=f"{directory}/order.proto", package="shop", syntax="proto3")
    order.dependency.extend([user.name, timestamp_pb2.DESCRIPTOR.name])
    order.message_type.add(name="Parcel").field.add(name="text", number=1, label=1, type=9)
    outer = order.message_type.add(name="Order")
    outer.nested_type.add(name="Address").field.add(name="text", number=1, label=1, type=9)
    line = outer.nested_type.add(name="Line")
    line.field.add(name="by", number=1, label=1, type=11, type_name=".shop.User")
    line.field.add(name="at", number=2, label=1, type=11, type_name=".google.protobuf.Timestamp")
    line.field.add(name="count", number=3, label=1, type=5)
    for file in (user, order):
        pool.AddSerializedFile(file.SerializeToString())
    line_type, user_type = (pool.FindMessageTypeByName(name) for name in ("shop.Order.Line", "shop.User"))
    return message_factory.GetMessageClass(line_type), message_factory.GetMessageClass(user_type)


def test_avro_is_shown_by_the_version_that_wrote_it_and_by_references(writer: Writer, console: Served) -> None:
    first = writer.avro(USER, {"name": "Anna"})
    second = writer.avro(USER_2, {"name": "Zoë", "age": 42})
    user = SchemaReference("shop.User", f"{writer.topic}-value", 2)
    order = writer.avro(ORDER, {"by": {"name": "Otto", "age": 7}}, f"{writer.topic}-order", [user])
    assert len({value[:5] for value in (first, second, order)}) == 3, "each has a schema of its own"
    assert writer.schemas.get_versions(f"{writer.topic}-value") == [1, 2]
    writer.send(first, second, order)
    assert shown(console, writer.topic) == [
        {"name": "Anna"},
        {"name": "Zoë", "age": 42},
        {"by": {"name": "Otto", "age": 7}},
    ]


def test_protobuf_is_shown_by_nested_messages_and_imports(writer: Writer, console: Served) -> None:
    line_type, user_type = proto_messages(writer.topic)
    line = line_type(by=user_type(name="Anna"), count=7)
    line.at.FromSeconds(1)
    nested, outermost = writer.protobuf(line), writer.protobuf(user_type(name="Zoë"))
    assert nested[5:8] == b"\x04\x02\x02", "two indexes: 1 and 1"
    writer.send(nested, outermost)
    assert shown(console, writer.topic) == [
        {"by": {"name": "Anna"}, "at": "1970-01-01T00:00:01Z", "count": 7},
        {"name": "Zoë"},
    ]


def test_a_schema_that_cannot_be_used_is_named_and_the_text_is_shown(writer: Writer, console: Served) -> None:
    registered = writer.schemas.register_schema(f"{writer.topic}-text", Schema(PROTO_TEXT, "PROTOBUF"))
    writer.send(
        b"\0" + UNKNOWN_ID.to_bytes(4) + b"\x08Anna",
        b"\0" + registered.to_bytes(4) + b"\0\x0a\x04Anna",
        writer.avro(USER, {"name": "Zoë"}),
    )
    unknown, text, decoded = shown(console, writer.topic)
    assert f"Anna\n(the registry answers 404 to /schemas/ids/{UNKNOWN_ID}: " in unknown and "40403" in unknown
    assert text.endswith("Anna\n(its schema cannot be used: the registry does not give it in compiled form)")
    assert decoded == {"name": "Zoë"}


def test_a_registry_that_dies_is_reported_and_restores_its_schemas_from_the_cluster(
    writer: Writer, console: Served, registry: SchemaRegistry
) -> None:
    known = writer.avro(USER, {"name": "Anna"})
    unseen = writer.avro(USER_2, {"name": "Zoë", "age": 42})
    writer.send(known)
    assert shown(console, writer.topic) == [{"name": "Anna"}]
    writer.send(unseen)
    registry.kill()
    decoded, text = shown(console, writer.topic)
    assert decoded == {"name": "Anna"}
    assert text.startswith("\\u0000") and "\n(the schema registry does not answer: Connect" in text
    registry.start()
    wait_for(lambda: shown(console, writer.topic)[1] == {"name": "Zoë", "age": 42}, DEADLINE_S, "it is asked again")
    assert writer.avro(USER, {"name": "Anna"})[:5] == known[:5], "the schema has its id again"
