"""Groups of three members of each stock client: a join, a leave and a crash while a producer writes."""

from __future__ import annotations

import functools
import signal
import sys
from collections.abc import Callable

import pytest

from anabranch.testing.cluster import Cluster
from tests.interop.clients import unavailable
from tests.interop.group_member import MEMBERS
from tests.interop.groups import PARTITIONS, KcatMember, Member, check_join_leave_and_crash, wait_until_shared
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop


def starter(library: str, bootstrap: str, topic: str, group: str, **options: str) -> Callable[[], Member]:
    """A function that starts a member of a Python library; ``options`` are those of ``group_member``."""
    command = [sys.executable, "-m", "tests.interop.group_member", library, bootstrap, topic, group]
    return functools.partial(Member, command + [f"{name}={value}" for name, value in options.items()])


@pytest.mark.parametrize("library", MEMBERS)
def test_a_group_of_three_survives_join_leave_and_crash(
    cluster: Cluster, fresh_name: Callable[[str], str], library: str
) -> None:
    topic, group = fresh_name("grouped"), fresh_name("group")
    start = starter(library, cluster.bootstrap, topic, group)
    check_join_leave_and_crash(cluster.bootstrap, topic, [start] * 3)


MIXED = {
    "range": ["kafka-python", "anabranch", "aiokafka"],
    "roundrobin": ["anabranch", "aiokafka", "kafka-python"],
    "cooperative-sticky": ["confluent-kafka", "kafka-python", "anabranch"],
}
"""For each assignor, three members: the first leads the group and then leaves, the second crashes, the third stays."""


@pytest.mark.parametrize("assignor", MIXED)
def test_a_group_of_different_libraries_survives_join_leave_and_crash(
    cluster: Cluster, fresh_name: Callable[[str], str], assignor: str
) -> None:
    topic, group = fresh_name("mixed"), fresh_name("mixed-group")
    starts = [starter(library, cluster.bootstrap, topic, group, assignor=assignor) for library in MIXED[assignor]]
    check_join_leave_and_crash(cluster.bootstrap, topic, starts)


def test_a_group_of_kcat_members_survives_join_leave_and_crash(
    cluster: Cluster, fresh_name: Callable[[str], str]
) -> None:
    if reason := unavailable("kcat"):
        pytest.skip(reason)
    topic, group = fresh_name("kcat-grouped"), fresh_name("kcat-group")
    start = functools.partial(KcatMember, cluster.bootstrap, topic, group)
    check_join_leave_and_crash(cluster.bootstrap, topic, [start] * 3, dropped_by_clients=1)


@pytest.mark.parametrize("library", MEMBERS)
def test_a_static_member_that_restarts_keeps_its_partitions(
    cluster: Cluster, fresh_name: Callable[[str], str], library: str
) -> None:
    """There is no rebalance if the member is back within the session timeout (KIP-345)."""
    topic, group = fresh_name("static"), fresh_name("static-group")
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    starts = [
        starter(library, cluster.bootstrap, topic, group, instance=f"instance-{number}", session_ms="60000")
        for number in range(2)
    ]
    members = [start() for start in starts]
    try:
        wait_until_shared(members, 2)
        before, reports = members[1].assigned, len(members[0].assignments)
        members[1].end(signal.SIGKILL)
        members[1] = starts[1]()
        wait_until_shared(members, 2)
        assert members[1].assigned == before
        assert len(members[0].assignments) == reports
    finally:
        for member in members:
            member.end(signal.SIGTERM)
