"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest

from anabranch.testing.processes import ProcessCluster


@pytest.fixture(scope="session")
def cluster() -> Iterator[ProcessCluster]:
    """Three brokers that every test of a session shares; tests take topics and groups of their own."""
    with ProcessCluster(brokers=3) as running:
        yield running


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """``fresh_name("topic")`` gives names no other test has."""
    counter = itertools.count()
    return lambda prefix: f"{prefix}-{next(counter)}"
