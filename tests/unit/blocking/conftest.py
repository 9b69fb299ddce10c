"""Fake brokers in a thread, for blocking clients and for programs in other processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from anabranch.sync import Producer
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.resized_broker import Coordinated


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as started:
        yield started


@pytest.fixture
def broker(portal: BlockingPortal) -> Iterator[FakeBroker]:
    """A broker that serves the topic ``t``, with one partition, and ``many``, with four."""
    served = FakeBroker({"t": 1, "many": 4})
    with portal.wrap_async_context_manager(served.running()):
        yield served


@pytest.fixture
def coordinated(portal: BlockingPortal) -> Iterator[Coordinated]:
    """A resized topic with a coordinator."""
    served = Coordinated()
    with portal.wrap_async_context_manager(served.running()):
        yield served


def write(broker: FakeBroker, count: int) -> None:
    """Write so many numbers to the topic ``t``."""
    with Producer(bootstrap_servers=broker.address) as producer:
        producer.send_many("t", [(None, b"%d" % number) for number in range(count)])
