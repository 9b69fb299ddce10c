"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

from anabranch.testing.cluster import Cluster

# Spark reads this: its JVM lives for seconds here, and would compile for most of them.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1")

EVENT_FIRST = structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=False)

# How long an example takes is the machine's affair: no test fails for it.
settings.register_profile("anabranch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anabranch")


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's, which gets structlog's events too: a message is ``event=a.b key=value``."""
    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.stdlib.filter_by_level, EVENT_FIRST],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    yield caplog
    structlog.configure(**before)


@pytest.fixture(scope="session")
def cluster(anabranch_cluster: Cluster) -> Cluster:
    """Three brokers that every test of a session shares; tests take topics and groups of their own.

    Local processes, or containers with ``--anabranch-engine=docker``.
    """
    return anabranch_cluster


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """``fresh_name("topic")`` gives names no other test has."""
    counter = itertools.count()
    return lambda prefix: f"{prefix}-{next(counter)}"
