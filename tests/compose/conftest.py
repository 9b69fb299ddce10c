"""The cluster of ``docker-compose.yml``: it runs for the whole session, and is removed with its data at the end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from anabranch.local.ports import held_port
from tests.compose.deployment import BROKERS, CONTROLLERS, Deployment, missing


@pytest.fixture(scope="session")
def deployment() -> Iterator[Deployment]:
    """The running deployment. Without a container engine tests are skipped, but fail in CI (``CI`` is set)."""
    if lacks := missing():
        message = f"{lacks}; `make compose-test` sets up the missing parts"
        pytest.fail(message) if os.environ.get("CI") else pytest.skip(message)
    with ExitStack() as held:
        ports = {service: held.enter_context(held_port("127.0.0.1")) for service in BROKERS}
        metrics = {service: held.enter_context(held_port("127.0.0.1")) for service in (*BROKERS, *CONTROLLERS)}
        console = held.enter_context(held_port("127.0.0.1"))
        deployed = Deployment(f"anabranch-test-{os.getpid()}", ports, metrics, console)
        try:
            deployed.compose("build", BROKERS[0])
            deployed.up()
            yield deployed
        finally:
            deployed.compose("kill")
            deployed.compose("down", "--volumes", "--remove-orphans")
