from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log.log_world import LogWorld


@pytest.fixture
def world(tmp_path: Path) -> LogWorld:
    return LogWorld(tmp_path)
