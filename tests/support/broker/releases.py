"""Two releases side by side: the earlier one is that of the newest tag, with narrowed ``supported.features`` (KIP-584).

Without a tag it is the present release with narrowed features. The brokers of the earlier release neither resize nor
write flexible records.
"""

from __future__ import annotations

import io
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from anabranch.sync import Admin
from anabranch.testing.processes import ProcessCluster
from anabranch.zk_schemas.features import CONSUMER_OFFSETS_TOPIC_SCHEMA, GROUP_COORDINATOR, SUPPORTED

ROOT = Path(__file__).resolve().parents[3]
HIGHEST = {name: levels.max_version for name, levels in SUPPORTED.items()}
LEVELS_BEFORE = {CONSUMER_OFFSETS_TOPIC_SCHEMA: 1, GROUP_COORDINATOR: 1}
SUPPORTED_BEFORE = ",".join(f"{name}:1-{level}" for name, level in LEVELS_BEFORE.items())
SOURCES = "earlier-release"
_SWITCH = Path(__file__).parent / "switch"


def newest_tag(root: Path = ROOT) -> str | None:
    """The highest release that a commit before the present one has; None without git or a tag."""
    command = ["git", "-C", str(root), "tag", "--merged", "HEAD^", "--sort=-version:refname"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return next((tag for tag in done.stdout.split() if re.fullmatch(r"v\d+\.\d+\.\d+", tag)), None)


def unpack(tag: str, target: Path, root: Path = ROOT) -> None:
    """Write the files of a tag into ``target``."""
    done = subprocess.run(["git", "-C", str(root), "archive", tag], capture_output=True, check=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as packed:
        packed.extractall(target, filter="data")


@contextmanager
def two_releases(cluster: ProcessCluster) -> Iterator[ProcessCluster]:
    """Start a cluster whose brokers ``restart_as`` can run as the earlier release."""
    if (tag := newest_tag()) is not None:
        unpack(tag, cluster.directory / SOURCES)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(_SWITCH))
        with cluster:
            yield cluster


def levels(admin: Admin) -> dict[str, int]:
    """The finalized feature levels."""
    return {name: found.max for name, found in admin.describe_features().finalized.items()}


def set_release(cluster: ProcessCluster, broker_id: int, ranges: str | None) -> None:
    """Have a broker run the earlier release with these feature ranges from its next start on; None: the present one."""
    file: Path = cluster.directory / "data" / f"broker-{broker_id}.properties"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("supported.features=")]
    file.write_text("\n".join([*lines, *([f"supported.features={ranges}"] if ranges else []), ""]))
    switch, sources = Path(f"{file}.release"), cluster.directory / SOURCES
    if ranges and sources.exists():
        switch.write_text(str(sources))
    else:
        switch.unlink(missing_ok=True)


def restart_as(cluster: ProcessCluster, broker_id: int, ranges: str | None) -> None:
    """Restart a broker as the earlier release with these feature ranges; None: as the present release."""
    set_release(cluster, broker_id, ranges)
    cluster.restart_broker(broker_id)
