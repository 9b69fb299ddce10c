"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from anabranch.testing.cluster import Cluster


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
