from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.log.log_fixture import LogFixture


@pytest.fixture
def log_fixture(tmp_path: Path) -> Iterator[LogFixture]:
    found = LogFixture(tmp_path)
    yield found
    found.close()
