"""The programs in ``java``, compiled once, with Kafka's clients of two major versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.kafka_peer import kafka_jars
from bench.maven import PeerUnavailable, resolved
from tests.interop.test_other_clients import CACHE, build

SOURCES = Path(__file__).parent / "java"


def java_command(name: str, major: int) -> list[str]:
    """The command that runs a program with the clients of Kafka 3.9 or 4. Skips the test if they are not available."""
    try:
        newest = clients_4()
        jars = kafka_jars() if major == 3 else newest
    except PeerUnavailable as reason:
        pytest.skip(str(reason))
    classes = CACHE / "java"
    classes.mkdir(parents=True, exist_ok=True)
    command = ("javac", "-cp", f"{newest}/*", "-d", str(classes), str(SOURCES / f"{name}.java"))
    if (reason := build(f"{name}.java", *command, directory=SOURCES)) is not None:
        pytest.skip(reason)
    return ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{classes}:{jars}/*", name]


def clients_4() -> Path:
    """The directory of Kafka's Java clients, version 4. Raises ``PeerUnavailable``."""
    pom = str(SOURCES / "pom.xml")
    return resolved(CACHE / "kafka-clients-4", "Kafka's clients", "-f", pom, "dependency:copy-dependencies")
