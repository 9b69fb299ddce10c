"""Fixtures that several files here share."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.layout_world import Broker, broker_of


@pytest.fixture
async def broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Broker]:
    """A broker that leads the first partitions of a topic that is to be resized."""
    async with broker_of(tmp_path, monkeypatch) as found:
        yield found
