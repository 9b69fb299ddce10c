"""Fixtures that several files here share."""

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
    """A broker that leads the first partitions of a topic that is to be resized."""
    async with broker_of(tmp_path, monkeypatch) as found:
        yield found


@pytest.fixture
async def world(nursery: trio.Nursery) -> AsyncIterator[World]:
    """``tests.support.resize.resize_world.started``; every write is watched. Some files have another ``world``."""
    world = await started(nursery)
    rules = Rules(world)
    rules.watch(1000)
    yield world
    assert rules.broken == []
