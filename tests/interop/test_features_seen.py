"""Features in ApiVersions as stock clients see them, and Kafka's Java admin client, which finalizes them (KIP-584)."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator

import pytest

from anabranch import FeatureUpdate, UpgradeType
from anabranch.protocol.key_placement import positive_hash
from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster, wait_for
from anabranch.zk_schemas.features import ORDERED_RESIZE
from tests.interop.clients import LIBRARIES, ClientLibrary, Item, unavailable
from tests.interop.java_programs import java_command
from tests.interop.test_other_clients import DEADLINE_S, PARTITIONS, PROGRAMS, Program
from tests.support.broker.releases import HIGHEST, LEVELS_BEFORE, SUPPORTED_BEFORE, levels, restart_as, two_releases
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop

RECORDS = 30
JAVA = {f"Java {major}": Program(lambda major=major: java_command("Client", major)) for major in (3, 4)}


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with two_releases(ProcessCluster(brokers=2, overrides={"default.replication.factor": "2"})) as running:
        yield running


def java_features(command: list[str], bootstrap: str, *lines: str) -> list[str]:
    """Run the program of Java's admin client. Returns its output lines."""
    text = "".join(f"{line}\n" for line in lines)
    run = subprocess.run(
        [*command, "features", bootstrap], input=text, capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert run.returncode == 0, run.stderr[-2000:]
    return run.stdout.splitlines()


@pytest.mark.parametrize("major", [3, 4])
def test_javas_admin_client_describes_and_updates_features(cluster: ProcessCluster, major: int) -> None:
    """``describeFeatures`` and ``updateFeatures``: several updates with an error each, dry run, downgrade, deletion."""
    supported = [f"supported {name} 1 {level}" for name, level in sorted(HIGHEST.items())]
    finalized = [f"finalized {name} 1 {level}" for name, level in sorted(HIGHEST.items())]
    found = java_features(
        java_command("Client", major),
        cluster.bootstrap,
        "describe",
        "validate ordered_resize=0:SAFE_DOWNGRADE",
        "update group_coordinator=1:UPGRADE consumer_offsets_topic_schema=9:UPGRADE unknown=1:UPGRADE",
        "update ordered_resize=0:SAFE_DOWNGRADE group_coordinator=1:SAFE_DOWNGRADE",
        "describe next",
        "update ordered_resize=2:UPGRADE group_coordinator=2:UPGRADE",
        "describe next",
    )
    epoch = int(found[6].removeprefix("epoch "))
    assert found[:7] == [*supported, *finalized, f"epoch {epoch}"]
    assert found[7] == "ordered_resize OK"
    assert [line.split(": ")[0] for line in found[8:11]] == [
        "consumer_offsets_topic_schema InvalidRequestException",
        "group_coordinator InvalidRequestException",
        "unknown InvalidRequestException",
    ]
    assert found[11:13] == ["group_coordinator OK", "ordered_resize OK"]
    lowered = ["finalized consumer_offsets_topic_schema 1 2", "finalized group_coordinator 1 1"]
    assert found[13:19] == [*supported, *lowered, f"epoch {epoch + 1}"]
    assert found[19:21] == ["group_coordinator OK", "ordered_resize OK"]
    assert found[21:] == [*supported, *finalized, f"epoch {epoch + 2}"]


def clients() -> dict[str, ClientLibrary]:
    """Every client that is available on this machine; a warning names each of the others."""
    found: dict[str, ClientLibrary] = {}
    for name, library in {**LIBRARIES, **PROGRAMS, **JAVA}.items():
        reason = unavailable(name)
        try:
            if isinstance(library, Program):
                library.command()
        except pytest.skip.Exception as skipped:
            reason = str(skipped)
        if reason is None:
            found[name] = library
        else:
            warnings.warn(f"{name} is not tried: {reason}", stacklevel=2)
    return found


def exchange(cluster: ProcessCluster, topic: str, libraries: dict[str, ClientLibrary]) -> None:
    """Let each client write, and read the records of all clients from both brokers."""
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    expected: dict[int, list[Item]] = {}
    for name, library in libraries.items():
        items = [Item(f"key-{number % 7}".encode(), f"{name} {number}".encode()) for number in range(RECORDS)]
        library.produce(cluster.bootstrap, topic, items, "none")
        for item in items:
            expected.setdefault(positive_hash(item.key) % PARTITIONS, []).append(item)
    for name, library in libraries.items():
        seen = library.consume(cluster.bootstrap, topic, PARTITIONS, RECORDS * len(libraries))
        assert seen == expected, name


def test_every_client_works_at_each_step_between_two_releases(
    cluster: ProcessCluster, fresh_name: Callable[[str], str]
) -> None:
    """KAFKA-17011: first levels are finalized, then brokers of both releases run, then only the earlier release."""
    libraries = clients()
    with Admin(bootstrap_servers=cluster.bootstrap) as admin:
        wait_for(lambda: levels(admin) == HIGHEST, DEADLINE_S, "every feature is finalized at its highest level")
        exchange(cluster, fresh_name("finalized"), libraries)
        down = {name: FeatureUpdate(level, UpgradeType.SAFE_DOWNGRADE) for name, level in LEVELS_BEFORE.items()}
        down[ORDERED_RESIZE] = FeatureUpdate(0, UpgradeType.SAFE_DOWNGRADE)
        assert set(admin.update_features(down).values()) == {None}
        restart_as(cluster, 2, SUPPORTED_BEFORE)
        exchange(cluster, fresh_name("mixed"), libraries)
        restart_as(cluster, 1, SUPPORTED_BEFORE)
        wait_for(lambda: levels(admin) == LEVELS_BEFORE, DEADLINE_S, "the levels of the earlier release are finalized")
        exchange(cluster, fresh_name("rolled-back"), libraries)
