"""Kafka's own ``kafka-topics --alter --partitions`` for grows and shrinks. Skipped without Java or Maven."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from bench.kafka_peer import kafka_jars, run_tool
from bench.maven import PeerUnavailable
from tests.support.resize.resizes import DEADLINE_S, create_resizable, is_settled

pytestmark = pytest.mark.interop


@pytest.fixture(scope="module", autouse=True)
def _jars() -> None:
    try:
        kafka_jars()
    except PeerUnavailable as reason:
        pytest.skip(str(reason))


def alter(cluster: Cluster, topic: str, count: int) -> tuple[bool, str]:
    """Run the tool. Returns whether it succeeded, and its output."""
    arguments = ("--alter", "--topic", topic, "--partitions", str(count))
    done = run_tool("kafka-topics", "--bootstrap-server", cluster.bootstrap, *arguments, timeout_s=DEADLINE_S)
    output = done.stdout + done.stderr
    return done.returncode == 0 and "Error" not in output, output


def test_kafka_topics_splits_and_merges(cluster: Cluster, fresh_name: Callable[[str], str]) -> None:
    topic = fresh_name("altered")
    create_resizable(cluster.bootstrap, topic, 4)
    for count in (6, 4):
        done, output = alter(cluster, topic, count)
        assert done, output
        wait_for(lambda count=count: is_settled(cluster.bootstrap, topic, count), DEADLINE_S, f"{count} partitions")
    done, output = alter(cluster, topic, 3)
    assert not done and "created with 4 partitions and cannot have fewer" in output, output
