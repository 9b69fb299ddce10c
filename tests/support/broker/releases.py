"""Two releases side by side: the previous is the present release with narrowed ``supported.features`` (KIP-584).

The brokers of the previous release neither resize nor write flexible records.
"""

from __future__ import annotations

from pathlib import Path

from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA, GROUP_COORDINATOR, SUPPORTED

HIGHEST = {name: levels.max_version for name, levels in SUPPORTED.items()}
LEVELS_BEFORE = {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
SUPPORTED_BEFORE = ",".join(f"{name}:1-{level}" for name, level in LEVELS_BEFORE.items())


def levels(admin: Admin) -> dict[str, int]:
    """The finalized feature levels."""
    return {name: found.max for name, found in admin.describe_features().finalized.items()}


def set_release(cluster: ProcessCluster, broker_id: int, ranges: str | None) -> None:
    """Write the feature ranges of a release to a broker's file. With None the broker uses its own ranges."""
    file: Path = cluster.directory / "data" / f"broker-{broker_id}.properties"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("supported.features=")]
    file.write_text("\n".join([*lines, *([f"supported.features={ranges}"] if ranges else []), ""]))


def restart_as(cluster: ProcessCluster, broker_id: int, ranges: str | None) -> None:
    """Restart a broker with the feature ranges of a release."""
    set_release(cluster, broker_id, ranges)
    cluster.restart_broker(broker_id)
