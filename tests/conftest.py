"""Fixtures that more than one kind of test uses."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Generator, Iterator
from enum import Enum
from functools import partial
from typing import Any

import pytest
import structlog
import trio
from hypothesis import HealthCheck, settings

from anabranch.testing.cluster import Cluster

# Spark reads this. Its JVM runs for seconds here, and would spend most of that time in the optimizing compiler.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

MAX_ID_LENGTH = 60
"""The longest part of a test's id that shows a value."""

EVENT_FIRST = structlog.processors.KeyValueRenderer(key_order=["event"], repr_native_str=False)

# The default renderer shows all local variables of a traceback, which takes seconds for a simulated cluster.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

# The time of an example depends on the machine, so no test fails for it.
settings.register_profile("anabranch", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("anabranch")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the garbage collector from visiting the modules and tests again and again: they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test in virtual time if one of its fixtures takes ``autojump_clock``.

    pytest-trio takes a clock only from the arguments of the test itself.
    """
    for item in items:
        if isinstance(item, pytest.Function) and "autojump_clock" in item.fixturenames:
            item.add_marker(pytest.mark.trio(run=partial(_run_by_clock, item)))


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Name the parameter in a test's id, and show its value if it is short: ``level=2``, ``arguments=('top',)``."""
    if isinstance(val, str | bytes):
        return None  # pytest shows the text
    if isinstance(val, Enum):
        return val.name
    shown = f"{argname}={val!a}" if _is_plain(val) else ""
    return shown if 0 < len(shown) <= MAX_ID_LENGTH else None


def _is_plain(value: object) -> bool:
    """Whether a value is shown in the same way in each process that collects tests."""
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | bytes | bool | int | float)


def _run_by_clock(item: pytest.Function, main: Any, **options: Any) -> Any:
    return trio.run(main, **options | {"clock": item.funcargs["autojump_clock"]})


@pytest.fixture
def caplog(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's ``caplog``, which gets structlog's events, too: a message is ``event=a.b key=value``."""
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
    """Three brokers that all tests of a session share; each test uses topics and groups of its own.

    The brokers are local processes, or containers with ``--anabranch-engine=docker``.
    """
    return anabranch_cluster


@pytest.fixture(scope="session")
def fresh_name() -> Callable[[str], str]:
    """Return a function: ``fresh_name("topic")`` gives a name that no other test has."""
    counter = itertools.count()
    return lambda prefix: f"{prefix}-{next(counter)}"
