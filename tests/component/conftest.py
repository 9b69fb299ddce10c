"""Fixtures that several files of this folder share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from tests.support.controller.controller_world import World
from tests.support.resize.layout_world import Broker, broker_of
from tests.support.resize.resize_world import Rules, started


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker that leads the first partitions of a topic, before a resize."""
    async with broker_of(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[World]:
    """A cluster of ``tests.support.resize.resize_world.started`` that checks every write; some files have another."""
    world = await started(nursery)
    rules = Rules(world)
    rules.watch(1000)
    yield world
    assert rules.broken == []
