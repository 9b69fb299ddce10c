from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.log.log_fixture import LogFixture


@pytest.fixture
def log_fixture(tmp_path: Path) -> LogFixture:
    return LogFixture(tmp_path)
