"""A running coordinator, in virtual time."""

from __future__ import annotations

import gc
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.zk_schemas.features import highest_level
from tests.unit.coordinator.fakes import EveryTopic, LoopClock, MemoryLog


@dataclass
class Running:
    """A coordinator with its log, topics and feature levels."""

    coordinator: GroupCoordinator
    log: MemoryLog
    topics: EveryTopic
    levels: dict[str, int] = field(default_factory=dict)
    """Finalized levels of features; a feature that is not named has its highest level."""

    async def loaded(self, partition: int = 0, leader_epoch: int = 0) -> None:
        """Make the coordinator lead the partition, and wait until the load ends or waits for an event of the test."""
        self.coordinator.on_leader(partition, leader_epoch)
        await trio.testing.wait_all_tasks_blocked()


@pytest.fixture
async def running(nursery: Any, autojump_clock: trio.testing.MockClock) -> AsyncIterator[Running]:
    gc.freeze()  # ``live`` does not search the older objects, which would take long
    log, topics, levels = MemoryLog(), EveryTopic(), dict[str, int]()

    def level(name: str) -> int:
        return levels.get(name, highest_level(name))

    coordinator = GroupCoordinator(GroupConfig(), LoopClock(), random.Random(1), log, topics, level=level)
    nursery.start_soon(coordinator.run)
    await trio.testing.wait_all_tasks_blocked()
    yield Running(coordinator, log, topics, levels)
    nursery.cancel_scope.cancel()


@pytest.fixture
async def leading(running: Running) -> Running:
    """The coordinator leads partition 0 in epoch 0, and has loaded it."""
    await running.loaded()
    return running
