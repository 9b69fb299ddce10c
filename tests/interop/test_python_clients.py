"""Every stock client writes with every codec, and every stock client reads these records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.protocol.key_placement import positive_hash
from anabranch.testing.cluster import Cluster
from tests.interop.clients import CODECS, LIBRARIES, Item, unavailable
from tests.support.controller.topics import create_topic

PARTITIONS = 3
RECORDS_PER_CODEC = 60

pytestmark = pytest.mark.interop


def items(producer: str) -> dict[str, list[Item]]:
    """The items that a producer writes with each codec: keys repeat, and values can be compressed."""
    return {
        codec: [
            Item(b"key-%d" % (number % 17), f"{producer} {codec} {number} ".encode() * 20)
            for number in range(RECORDS_PER_CODEC)
        ]
        for codec in CODECS
    }


@pytest.fixture(scope="module")
def written(cluster: Cluster, fresh_name: Callable[[str], str]) -> Callable[[str], str]:
    """A function that returns a library's topic with records of all codecs; the first call writes it."""

    topics: dict[str, str] = {}

    def topic_of(library: str) -> str:
        if library not in topics:
            topic = fresh_name(f"written-by-{library}")
            create_topic(cluster.bootstrap, topic, PARTITIONS)
            for codec, batch in items(library).items():
                LIBRARIES[library].produce(cluster.bootstrap, topic, batch, codec)
            topics[library] = topic
        return topics[library]

    return topic_of


@pytest.mark.parametrize("consumer", LIBRARIES)
@pytest.mark.parametrize("producer", LIBRARIES)
def test_records_of_one_client_are_read_by_another(
    cluster: Cluster, written: Callable[[str], str], producer: str, consumer: str
) -> None:
    for library in (producer, consumer):
        if reason := unavailable(library):
            pytest.skip(reason)
    expected: dict[int, list[Item]] = {}
    for batch in items(producer).values():
        for item in batch:
            expected.setdefault(positive_hash(item.key) % PARTITIONS, []).append(item)
    count = len(CODECS) * RECORDS_PER_CODEC
    seen = LIBRARIES[consumer].consume(cluster.bootstrap, written(producer), PARTITIONS, count)
    assert seen == expected
