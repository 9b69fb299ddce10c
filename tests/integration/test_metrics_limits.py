"""A broker exports no more series than its limits allow, however many topics, partitions and groups there are."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterator

import anyio
import pytest

from anabranch import Admin, NewTopic, TopicPartition
from anabranch.runtime.metrics import OTHERS
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.seen.metrics_page import families

pytestmark = pytest.mark.integration

DEADLINE_S = 60.0
TOPICS, PARTITIONS, GROUPS = 6, 3, 5
MOST_TOPICS, MOST_PARTITIONS, MOST_GROUPS = 3, 7, 2
LIMITED = {"topic", "partition", "consumergroup"}
Values = dict[tuple[str, ...], float]


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    limits = {
        "metrics.max.topics": str(MOST_TOPICS),
        "metrics.max.partitions": str(MOST_PARTITIONS),
        "metrics.max.groups": str(MOST_GROUPS),
        "metrics.lag.interval.ms": "100",
        "offsets.topic.num.partitions": "1",
    }
    with ProcessCluster(brokers=1, overrides=limits) as running:
        anyio.run(fill, running)
        yield running


async def fill(cluster: ProcessCluster) -> None:
    async with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        await admin.create_topics([NewTopic(f"t{number}", PARTITIONS, 1) for number in range(TOPICS)])
        offsets = {TopicPartition(f"t{t}", p): 0 for t in range(TOPICS) for p in range(PARTITIONS)}
        for number in range(GROUPS):
            await admin.alter_group_offsets(f"g{number}", offsets)


def values(cluster: ProcessCluster, name: str) -> Values:
    (found,) = (family for family in families(cluster, "broker-1") if family.name == name)
    return {tuple(sample.labels[label] for label in sorted(sample.labels)): sample.value for sample in found.samples}


def test_no_metric_has_more_series_than_its_limit(cluster: ProcessCluster) -> None:
    def all_are_committed() -> bool:
        return sum(values(cluster, "kafka_coordinator_group_groupmetadatamanager_numoffsets").values()) == (
            GROUPS * TOPICS * PARTITIONS
        )

    wait_for(all_are_committed, DEADLINE_S, "the coordinator counts all committed offsets")
    limited = 0
    for family in families(cluster, "broker-1"):
        for name, count in Tally(s.name for s in family.samples if "le" not in s.labels).items():
            labels = set(next(sample.labels for sample in family.samples if sample.name == name))
            if labels & LIMITED:
                limited += 1
                most = MOST_GROUPS if labels == {"consumergroup"} else MOST_PARTITIONS
                most = MOST_TOPICS if labels == {"topic"} else most
                assert count <= most + 1, name
    assert limited >= 20


def test_series_above_a_limit_are_summed(cluster: ProcessCluster) -> None:
    replicas = values(cluster, "kafka_topic_partition_replicas")
    assert len(replicas) == MOST_PARTITIONS + 1
    assert sum(replicas.values()) == TOPICS * PARTITIONS + 1
    members = values(cluster, "kafka_consumergroup_members")
    assert set(members) == {("g0",), ("g1",), (OTHERS,)}
    committed = values(cluster, "kafka_consumergroup_current_offset")
    assert len(committed) == MOST_PARTITIONS + 1 and {group for group, _, _ in committed} >= {"g0", OTHERS}
