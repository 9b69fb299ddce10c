"""The pytest plugin: the fixture ``anabranch_cluster`` and its options.

pytest imports this file in every project that has Anabranch installed. Hence it imports nothing at its top that takes
time or may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from anabranch.testing.cluster import Cluster

ENGINES = ("auto", "docker", "processes")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("anabranch", "a cluster for tests")
    options: list[tuple[str, dict[str, Any], str]] = [
        (
            "engine",
            {"choices": ENGINES},
            "docker: containers; processes: local processes; auto: containers if they can run here, else processes",
        ),
        ("brokers", {"type": int, "metavar": "N"}, "how many brokers, 1 by default"),
        ("image", {"metavar": "IMAGE"}, "Anabranch's container image"),
        ("zookeeper-image", {"metavar": "IMAGE"}, "ZooKeeper's container image"),
    ]
    for name, settings, text in options:
        group.addoption(f"--anabranch-{name}", default=None, help=f"{text} (ini: {_ini(name)})", **settings)
        parser.addini(_ini(name), f"{text} (--anabranch-{name})", default="")
    parser.addini("anabranch_overrides", "broker config keys, a key=value on each line", type="linelist", default=[])


@pytest.fixture(scope="session")
def anabranch_cluster(pytestconfig: pytest.Config) -> Iterator[Cluster]:
    """A running cluster that all tests of the session share: ``bootstrap_servers``, ``kill_broker(id)``, ..."""
    with make_cluster(pytestconfig) as cluster:
        yield cluster


def make_cluster(config: pytest.Config) -> Cluster:
    """The cluster for the options and the ini file, not yet started. Raises ``pytest.UsageError``."""
    engine = _setting(config, "engine") or "auto"
    if engine not in ENGINES:
        raise pytest.UsageError(f"anabranch_engine is {engine!r}, it can be {', '.join(ENGINES)}")
    brokers = _count(_setting(config, "brokers") or "1")
    overrides = dict(_pair(line) for line in config.getini("anabranch_overrides"))
    image, zookeeper_image = _setting(config, "image"), _setting(config, "zookeeper-image")
    if engine == "docker" or (engine == "auto" and _containers_can_be(image)):
        return _in_containers(brokers, image, zookeeper_image, overrides)
    from anabranch.testing.cluster import settings_for_tests
    from anabranch.testing.processes import ProcessCluster

    return ProcessCluster(brokers=brokers, overrides=settings_for_tests(brokers, overrides))


def _in_containers(
    brokers: int, image: str | None, zookeeper_image: str | None, overrides: Mapping[str, str]
) -> Cluster:
    try:
        from anabranch.testing.containers import AnabranchCluster
    except ImportError as error:
        raise pytest.UsageError(
            f"--anabranch-engine=docker needs testcontainers: pip install 'anabranch[testing]' ({error})"
        ) from error
    return AnabranchCluster(brokers=brokers, image=image, zookeeper_image=zookeeper_image, overrides=overrides)


def _containers_can_be(image: str | None) -> bool:
    try:
        from anabranch.testing.containers import EngineUnavailableError, require_engine
    except ImportError:
        return False
    try:
        require_engine(image)
    except EngineUnavailableError:
        return False
    return True


def _setting(config: pytest.Config, name: str) -> str | None:
    """The option, or the ini value; None when neither is given."""
    value = config.getoption(f"--anabranch-{name}")
    return str(value) if value is not None else (config.getini(_ini(name)) or None)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise pytest.UsageError(f"anabranch_brokers is {text!r}, it must be a number of at least 1")
    return int(text)


def _ini(name: str) -> str:
    return f"anabranch_{name.replace('-', '_')}"


def _pair(line: str) -> tuple[str, str]:
    key, separator, value = line.partition("=")
    if not separator:
        raise pytest.UsageError(f"anabranch_overrides: {line!r} is not key=value")
    return key.strip(), value.strip()
