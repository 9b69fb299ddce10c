"""The commands of docs/upgrading.md downgrade containers under load to the earlier release and upgrade them again."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path

import pytest

from anabranch.testing.processes import wait_for
from tests.compose.deployment import BROKERS, DEADLINE_S, ROOT, Deployment
from tests.support.broker.load import in_sync
from tests.support.broker.releases import HIGHEST, LEVELS_BEFORE
from tests.support.controller.topics import create_topic
from tests.support.resize.keyed_load import KeyedLoad

pytestmark = [pytest.mark.integration]

TOPIC, GROUP, REPLICAS = "upgraded", "upgraded-readers", 3
PAGE = (ROOT / "docs" / "upgrading.md").read_text()
RANGES = "supported.features=consumer_offsets_topic_schema:1-1,group_coordinator:1-1"


def of_page(deployment: Deployment, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command of the page in the container that an operator would use."""
    assert command in PAGE, f"docs/upgrading.md does not have: {command}"
    return deployment.execute("broker-1", *shlex.split(command), "-b", "broker-1:19092,broker-2:19092,broker-3:19092")


def done(deployment: Deployment, command: str) -> str:
    answer = of_page(deployment, command)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


def finalized(deployment: Deployment) -> dict[str, int]:
    """The finalized levels, from the table that the page's first command prints."""
    rows = [line.split() for line in done(deployment, "anabranch features describe").splitlines()]
    levels = {row[1]: row[row.index("FinalizedMaxVersionLevel:") + 1] for row in rows}
    return {name: int(level) for name, level in levels.items() if level != "-"}


def roll(deployment: Deployment, override: Path | None, load: KeyedLoad) -> None:
    """Restart each broker in turn, and wait until no partition is under-replicated, as the page says."""
    for broker in BROKERS:
        deployment.recreate(broker, override)
        wait_for(lambda: in_sync(deployment.bootstrap, TOPIC, REPLICAS), DEADLINE_S, "no partition lags behind")
        load.wait_for_more(f"records are read after {broker}")


def test_the_commands_of_the_upgrading_page_downgrade_and_upgrade_a_cluster(
    deployment: Deployment, tmp_path: Path
) -> None:
    """KIP-584: two rolling restarts under load lose no record, and every key keeps its order."""
    assert RANGES in PAGE
    name, _, ranges = RANGES.partition("=")
    environment = {f"ANABRANCH_{name.upper().replace('.', '_')}": ranges}
    override = tmp_path / "docker-compose.override.yml"
    override.write_text(json.dumps({"services": {broker: {"environment": environment} for broker in BROKERS}}))
    assert finalized(deployment) == HIGHEST, "a new cluster has everything finalized"
    create_topic(deployment.bootstrap, TOPIC, 2, replication_factor=REPLICAS)
    with KeyedLoad(deployment.bootstrap, TOPIC, GROUP) as load:
        load.wait_for_more("the group reads")
        done(deployment, "anabranch features disable --feature ordered_resize --yes")
        both = "--feature consumer_offsets_topic_schema=1 --feature group_coordinator=1"
        done(deployment, f"anabranch features downgrade {both} --yes")
        roll(deployment, override, load)
        assert finalized(deployment) == LEVELS_BEFORE

        refused = of_page(deployment, "anabranch features upgrade --all --dry-run")
        assert refused.returncode == 1
        assert all(f"broker {number} supports levels 1 to 1" in refused.stdout for number in (1, 2, 3)), refused.stdout
        roll(deployment, None, load)
        assert finalized(deployment) == LEVELS_BEFORE, "a new release alone changes no level"
        assert "would be OK" in done(deployment, "anabranch features upgrade --all --dry-run")
        done(deployment, "anabranch features upgrade --all")
        wait_for(lambda: finalized(deployment) == HIGHEST, DEADLINE_S, "the brokers know the levels")
        load.wait_for_more("records are read with everything finalized")
    load.check()
