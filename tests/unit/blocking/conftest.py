"""A fake broker in a thread, for blocking clients and for programs in other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import start_blocking_portal

from tests.unit.client.fake_broker import FakeBroker


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    """A broker that serves the topic ``t``, with one partition, and ``many``, with four."""
    with start_blocking_portal() as portal:
        served = FakeBroker({"t": 1, "many": 4})
        with portal.wrap_async_context_manager(served.running()):
            yield served
