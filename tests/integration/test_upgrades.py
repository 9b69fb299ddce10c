"""Downgrades to the earlier release and upgrades again, under load, in real processes (KIP-584, docs/upgrading.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from anabranch import ErrorCode, FeatureUpdate, KafkaError, UpgradeType
from anabranch.client.admin.types import NewTopic
from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.zk_schemas.features import GROUP_COORDINATOR, ORDERED_RESIZE
from tests.support.broker.releases import (
    HIGHEST,
    LEVELS_BEFORE,
    SUPPORTED_BEFORE,
    levels,
    restart_as,
    set_release,
    two_releases,
)
from tests.support.resize.keyed_load import KeyedLoad

DEADLINE_S = 60.0
TOPIC, GROUP = "events", "readers"


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    overrides = {
        "group.initial.rebalance.delay.ms": "100",
        "default.replication.factor": "3",
        "min.insync.replicas": "2",
    }
    with two_releases(ProcessCluster(brokers=3, overrides=overrides)) as cluster:
        yield cluster


def update(admin: Admin, wanted: Mapping[str, int], kind: UpgradeType, **more: bool) -> dict[str, KafkaError | None]:
    return admin.update_features({name: FeatureUpdate(level, kind) for name, level in wanted.items()}, **more)


def roll(cluster: ProcessCluster, ranges: str | None, load: KeyedLoad) -> None:
    """Restart the brokers one by one, and wait after each until records are written."""
    for broker_id in cluster.broker_ids:
        restart_as(cluster, broker_id, ranges)
        written = load.sent
        wait_for(lambda: load.sent > written or load.failures, DEADLINE_S, "writes continue")  # noqa: B023


def disabled_by_force(admin: Admin) -> bool:
    """Try to disable ``ordered_resize``. Returns False while a resize of the topic prevents this."""
    return update(admin, {ORDERED_RESIZE: 0}, UpgradeType.UNSAFE_DOWNGRADE)[ORDERED_RESIZE] is None


def command(cluster: ProcessCluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    called = [sys.executable, "-m", "anabranch.cli.main", *arguments, "-b", cluster.bootstrap]
    return subprocess.run(called, capture_output=True, text=True, timeout=DEADLINE_S)


def committed(admin: Admin) -> int:
    return sum(offset.offset for offset in admin.list_group_offsets(GROUP).values())


def test_a_downgrade_and_an_upgrade_under_load_lose_nothing(cluster: ProcessCluster) -> None:
    """KIP-915: groups keep their offsets when brokers write the offsets topic in the earlier record versions again."""
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        assert levels(admin) == HIGHEST, "a new cluster has everything finalized"
        admin.create_topics([NewTopic(TOPIC, 2, 3)])
        with KeyedLoad(cluster.bootstrap, TOPIC, GROUP) as load:
            wait_for(lambda: committed(admin) > 0 or load.failures, DEADLINE_S, "the group commits")

            down = {**LEVELS_BEFORE, ORDERED_RESIZE: 0}
            assert set(update(admin, down, UpgradeType.SAFE_DOWNGRADE).values()) == {None}
            before = committed(admin)
            roll(cluster, SUPPORTED_BEFORE, load)
            wait_for(lambda: levels(admin) == LEVELS_BEFORE, DEADLINE_S, "the brokers know the levels")
            wait_for(lambda: committed(admin) > before or load.failures, DEADLINE_S, "the group continues")
            with pytest.raises(KafkaError, match=ORDERED_RESIZE):
                admin.create_partitions({TOPIC: 4})

            restart_as(cluster, 1, None)
            refused = update(admin, HIGHEST, UpgradeType.UPGRADE, validate_only=True)
            errors = {name: error for name, error in refused.items() if error is not None}
            assert {error.code for error in errors.values()} == {ErrorCode.FEATURE_UPDATE_FAILED}
            assert "broker 2" in str(errors[GROUP_COORDINATOR]) and "broker 1 " not in str(errors[GROUP_COORDINATOR])

            roll(cluster, None, load)
            assert levels(admin) == LEVELS_BEFORE, "a new release alone changes no level"
            assert set(update(admin, HIGHEST, UpgradeType.UPGRADE).values()) == {None}
            admin.create_partitions({TOPIC: 4})
            written = load.sent
            wait_for(lambda: load.sent > written or load.failures, DEADLINE_S, "writes continue in the new layout")

            refused = update(admin, {ORDERED_RESIZE: 0}, UpgradeType.SAFE_DOWNGRADE)
            assert TOPIC in str(refused[ORDERED_RESIZE])
            wait_for(lambda: disabled_by_force(admin), DEADLINE_S, "the resize is done, and its feature disabled")
            output = command(cluster, "topics", "alter", TOPIC, "--partitions", "8")
            assert output.returncode == 1 and "ordered_resize is not finalized" in output.stderr
            assert "4 in use" in command(cluster, "topics", "describe", TOPIC).stdout
            cluster.restart_broker(2)
            written = load.sent
            wait_for(lambda: load.sent > written or load.failures, DEADLINE_S, "the resized topic is still served")
        load.check()


def test_a_broker_that_lacks_a_finalized_level_does_not_start_and_logs_why(cluster: ProcessCluster) -> None:
    expected = f"{GROUP_COORDINATOR} is finalized at level 2, this process supports levels 1 to 1"
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        wait_for(lambda: levels(admin).get(GROUP_COORDINATOR) == 2, DEADLINE_S, "the feature is finalized")
        set_release(cluster, 3, SUPPORTED_BEFORE)
        cluster.kill_broker(3)
        wait_for(lambda: expected in cluster.broker_log(3), DEADLINE_S, "the broker refuses to start")
        wait_for(lambda: 3 not in brokers(admin), DEADLINE_S, "the cluster has no broker 3")
        set_release(cluster, 3, None)
        wait_for(lambda: 3 in brokers(admin), DEADLINE_S, "the broker is back")


def brokers(admin: Admin) -> set[int]:
    """The brokers in the metadata of the broker that responds."""
    return {node.id for node in admin.describe_cluster().nodes}
