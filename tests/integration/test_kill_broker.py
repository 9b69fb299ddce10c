"""kill -9 of a broker under load: every acknowledged record exists afterwards, once and in order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import pytest

from anabranch.protocol.records import iter_batches
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.broker.load import DEADLINE_S, Load, in_sync
from tests.support.controller.topics import create_topic

PARTITIONS = 6

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    ("replicas", "overrides"),
    [
        (3, {"min.insync.replicas": "2"}),
        (3, {"min.insync.replicas": "2", "log.flush": "ack"}),
    ],
    ids=["three replicas", "three replicas flushed"],
)
def test_every_acknowledged_record_survives_kill_9(
    fresh_name: Callable[[str], str], replicas: int, overrides: dict[str, str]
) -> None:
    with ProcessCluster(brokers=3, overrides={"log.segment.bytes": "1048576", **overrides}) as cluster:
        topic = fresh_name("killed")
        create_topic(cluster.bootstrap, topic, PARTITIONS, replication_factor=replicas)
        with Load(cluster.bootstrap, topic) as load:
            for broker_id in (1, 2, 3):
                load.wait_for_more(2_000)
                cluster.kill_broker(broker_id)
                wait_for(lambda: in_sync(cluster.bootstrap, topic, replicas), DEADLINE_S, "every replica is in sync")
            load.wait_for_more(2_000)
        load.check(cluster.bootstrap, PARTITIONS)
        wait_for(lambda: in_sync(cluster.bootstrap, topic, replicas), DEADLINE_S, "every replica is in sync")
        directories = [cluster.log_dir(broker_id) for broker_id in (1, 2, 3)]
        for partition in range(PARTITIONS):
            copies = [content for root in directories if (content := log_bytes(root, f"{topic}-{partition}"))]
            assert len(copies) == replicas and len(set(copies)) == 1, f"the replicas of {topic}-{partition} differ"
            check_sequences(copies[0])


def check_sequences(log: bytes) -> None:
    """Check that each sequence of a producer epoch exists once and in order, whatever its producer did.

    A producer may send its last batches again as the first ones of its next epoch. The log keeps them once (ADR 50).
    """
    counts: dict[tuple[int, int], list[int]] = {}
    newest: dict[int, int] = {}
    for batch in iter_batches(memoryview(log)):
        producer = (batch.producer_id, batch.producer_epoch)
        if producer in counts or batch.base_sequence == 0:
            written = sum(counts.setdefault(producer, []))
            assert batch.base_sequence == written
        else:
            before = counts[batch.producer_id, newest[batch.producer_id]]
            assert batch.base_sequence in accumulate(reversed(before)), "the last batches of the epoch before, whole"
            counts[producer] = [batch.base_sequence]
        counts[producer].append(batch.last_sequence + 1 - batch.base_sequence)
        newest[batch.producer_id] = batch.producer_epoch


def log_bytes(root: Path, partition: str) -> bytes:
    """All segments of a replica, one after the other; empty when the broker has no replica."""
    return b"".join(path.read_bytes() for path in sorted((root / partition).glob("*.log")))
