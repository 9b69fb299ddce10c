"""A real ZooKeeper that is started once per session, and a separate root in it for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch.local.embedded_zookeeper import EmbeddedZookeeper, ZookeeperUnavailableError

SESSION_TIMEOUT_MS = 4000
TICK_TIME_MS = 200

_roots = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZookeeper]:
    """Start a real server without fsync, or skip the test where Java or the jars are missing."""
    directory: Path = tmp_path_factory.mktemp("zookeeper")
    server = EmbeddedZookeeper(str(directory), tick_time_ms=TICK_TIME_MS, durable=False, heap_mib=128)
    try:
        server.start()
    except ZookeeperUnavailableError as error:
        pytest.skip(str(error))
    yield server
    server.stop()


@pytest.fixture
def zookeeper_root(zookeeper_server: EmbeddedZookeeper) -> str:
    """Return a connect string with a chroot that no other test has."""
    return f"{zookeeper_server.connect_string}/test-{next(_roots)}"
