"""The recording of commit a02dc22 by ``record.py``: znodes for pure tests, and directories for real processes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

HERE = Path(__file__).parent
COMMIT = "a02dc22"
REACHED = {"never": 2, "grown": 4, "draining": 2, "removed": 2, "grown-again": 4}
"""The partition count of each topic without an unfinished resize.

The unfinished resizes of the other topics continue once the level of ``ordered_resize`` is finalized.
"""


def znodes() -> dict[str, Any]:
    """``{path: content}`` of topics and registrations."""
    found: dict[str, Any] = json.loads((HERE / f"{COMMIT}.znodes.json").read_text())
    return found


def topics() -> list[str]:
    return sorted({path.split("/")[3] for path in znodes() if path.startswith(f"{paths.TOPICS}/")})


def topic(name: str) -> tuple[TopicZnode, dict[int, PartitionState]]:
    """A topic and the states of its partitions."""
    found = {path: json.dumps(content).encode() for path, content in znodes().items()}
    znode = TopicZnode.decode(paths.topic(name), found[paths.topic(name)])
    states = {p: paths.partition_state(name, p) for p in znode.partitions}
    return znode, {p: PartitionState.decode(path, found[path]) for p, path in states.items() if path in found}


def goal(name: str) -> int:
    """The partition count that the topic has after its resizes."""
    if name in REACHED:
        return REACHED[name]
    return 2 if "shrink" in name else 8 if "second" in name else 4


def unpack(into: Path) -> dict[str, dict[str, list[str]]]:
    """Unpack the directories of a cluster of two brokers. Returns its records, ``{topic: {key: [value, ...]}}``."""
    with tarfile.open(HERE / f"{COMMIT}.tar.xz") as archive:
        archive.extractall(into, filter="data")
    sent: dict[str, dict[str, list[str]]] = json.loads((into / "manifest.json").read_text())["sent"]
    return sent
