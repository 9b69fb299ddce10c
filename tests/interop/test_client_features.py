"""Nulls, headers, timestamps, all values of acks, sizes at the limit, and offsets by time, in each Python client."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message, Producer

from anabranch.testing.cluster import Cluster
from tests.interop.rich_clients import RICH_LIBRARIES, Rich
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop

FIRST_MS = 1_700_000_000_000
LIMIT_BYTES = 100_000
OVERHEAD_BYTES = 200
"""More bytes than a batch of one record needs besides the value."""

RICH = [
    Rich(b"key", b"value", (), FIRST_MS),
    Rich(None, b"no key", (), FIRST_MS + 1_000),
    Rich(b"a tombstone", None, (), FIRST_MS + 2_000),
    Rich(b"", b"", (), FIRST_MS + 3_000),
    Rich(b"headers", b"v", (("a", b"1"), ("a", b"2"), ("empty", b"")), FIRST_MS + 4_000),
]


@pytest.mark.parametrize("acks", [0, 1, "all"])
@pytest.mark.parametrize("writer", RICH_LIBRARIES)
def test_every_part_of_a_record_arrives(
    cluster: Cluster, fresh_name: Callable[[str], str], writer: str, acks: int | str
) -> None:
    topic = fresh_name("rich")
    create_topic(cluster.bootstrap, topic, 1)
    RICH_LIBRARIES[writer].produce(cluster.bootstrap, topic, RICH, acks)
    readers = RICH_LIBRARIES if acks == "all" else ["anabranch.sync"]
    for reader in readers:
        assert RICH_LIBRARIES[reader].consume(cluster.bootstrap, topic, len(RICH)) == RICH, reader


@pytest.mark.parametrize("library", RICH_LIBRARIES)
def test_offsets_are_found_by_time(cluster: Cluster, fresh_name: Callable[[str], str], library: str) -> None:
    topic, client = fresh_name("times"), RICH_LIBRARIES[library]
    create_topic(cluster.bootstrap, topic, 1)
    assert client.offset_for_time(cluster.bootstrap, topic, FIRST_MS) is None
    client.produce(cluster.bootstrap, topic, RICH, "all")
    found = [client.offset_for_time(cluster.bootstrap, topic, FIRST_MS + late) for late in (-1, 0, 1, 2_000, 4_000)]
    assert found == [0, 0, 1, 2, 4]
    assert client.offset_for_time(cluster.bootstrap, topic, FIRST_MS + 4_001) is None


@pytest.mark.parametrize("library", RICH_LIBRARIES)
def test_the_largest_message_is_taken_and_a_larger_one_refused(
    cluster: Cluster, fresh_name: Callable[[str], str], library: str
) -> None:
    topic, client = fresh_name("large"), RICH_LIBRARIES[library]
    create_topic(cluster.bootstrap, topic, 1, {"max.message.bytes": str(LIMIT_BYTES)})
    largest = Rich(b"k", b"x" * (LIMIT_BYTES - OVERHEAD_BYTES), (), FIRST_MS)
    above = Rich(b"k", b"x" * (LIMIT_BYTES + 1), (), FIRST_MS)
    client.produce(cluster.bootstrap, topic, [largest], "all")
    with pytest.raises(Exception, match=r"(?i)(too large|too_large|MSG_SIZE|bytes.*allowed|MessageSizeTooLarge)"):
        client.produce(cluster.bootstrap, topic, [above], "all")
    client.produce(cluster.bootstrap, topic, [largest], "all")
    assert client.consume(cluster.bootstrap, topic, 2) == [largest, largest]


@pytest.mark.parametrize("library", RICH_LIBRARIES)
def test_a_batch_larger_than_a_fetch_is_still_read(
    cluster: Cluster, fresh_name: Callable[[str], str], library: str
) -> None:
    """KIP-74: the first batch is sent whole, whatever the client's fetch size (1 MiB) is."""
    topic, client = fresh_name("huge"), RICH_LIBRARIES[library]
    create_topic(cluster.bootstrap, topic, 1, {"max.message.bytes": "3000000"})
    huge = Rich(b"k", b"x" * 2_500_000, (), FIRST_MS)
    client.produce(cluster.bootstrap, topic, [huge], "all", max_bytes=3_000_000)
    assert client.consume(cluster.bootstrap, topic, 1) == [huge]


def test_librdkafka_reports_only_the_records_without_a_key_as_invalid(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    """KIP-467: the other records of the batch get an error after which an application can send them again."""
    topic = fresh_name("compacted")
    create_topic(cluster.bootstrap, topic, 1, {"cleanup.policy": "compact"})
    found: dict[bytes, int] = {}

    def note(value: bytes) -> Callable[[KafkaError | None, Message], None]:
        return lambda error, _: found.update({value: 0 if error is None else error.code()})

    producer = Producer({"bootstrap.servers": cluster.bootstrap, "linger.ms": 500})
    for index in range(10):
        value = b"%d" % index
        producer.produce(topic, value, key=None if index % 4 == 3 else value, on_delivery=note(value))
    assert producer.flush(20) == 0
    at_fault = {b"3", b"7"}
    assert {value for value, code in found.items() if code == KafkaError.INVALID_RECORD} == at_fault
    others = {code for value, code in found.items() if value not in at_fault}
    assert others == {KafkaError._INVALID_DIFFERENT_RECORD}
