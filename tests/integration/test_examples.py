"""The examples of the documentation run as they stand, but for the address."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch import NewTopic
from anabranch.sync import Admin
from anabranch.testing.cluster import Cluster

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/clients.md"])
def test_the_examples_run(cluster: Cluster, tmp_path: Path, page: str) -> None:
    with Admin(bootstrap_servers=cluster.bootstrap_servers) as admin:
        if "events" not in {listing.name for listing in admin.list_topics()}:
            admin.create_topics([NewTopic("events", num_partitions=2, replication_factor=1)])
    programs = BLOCK.findall((ROOT / page).read_text())
    assert programs
    for program in programs:
        file = tmp_path / "client.py"  # a name of the user's own must not stand in the way
        file.write_text(program.replace("127.0.0.1:9092", cluster.bootstrap_servers))
        done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
