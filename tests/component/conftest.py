"""Fixtures that several files of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import Rules, started
from tests.support.resize.resized_broker import Broker, broker_of


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker that leads the first partitions of a topic, before a resize."""
    async with broker_of(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
async def cluster(nursery: trio.Nursery) -> AsyncIterator[ControllerCluster]:
    """The cluster of ``resize_rules.started``, in which every write is checked. Some files override this fixture."""
    cluster = await started(nursery)
    rules = Rules(cluster)
    rules.watch(1000)
    yield cluster
    assert rules.broken == []
