"""If the embedded ZooKeeper cannot run, the error names the missing part."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace

import pytest

from anabranch.local import embedded_zookeeper
from anabranch.local.embedded_zookeeper import (
    EmbeddedZookeeper,
    ZookeeperUnavailableError,
    find_jars,
    find_java,
    parse_java_version,
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('openjdk version "22-ea" 2024-03-19', 22),
        ('java version "1.8.0_392"', 8),
        ("", 0),
        ("command not found", 0),
    ],
)
def test_java_versions_are_read(text: str, version: int) -> None:
    assert parse_java_version(text) == version


def test_a_missing_java_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    with pytest.raises(ZookeeperUnavailableError, match="install Java 17"):
        find_java()


def test_an_old_java_is_reported_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _name: "java")
    answer = SimpleNamespace(stderr='openjdk version "11.0.2"', stdout="")
    monkeypatch.setattr(embedded_zookeeper.subprocess, "run", lambda *_args, **_options: answer)
    with pytest.raises(ZookeeperUnavailableError, match="is Java 11; Java 17 or later is needed"):
        find_java()


def test_a_missing_pyspark_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ZookeeperUnavailableError, match=r"pip install 'anabranch\[local\]'"):
        find_jars()


def test_a_pyspark_without_zookeeper_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    spec = ModuleSpec("pyspark", None)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: spec)
    with pytest.raises(ZookeeperUnavailableError, match="install pyspark 4"):
        find_jars()


def fake_java(tmp_path: Path, body: str) -> str:
    java = tmp_path / "java"
    java.write_text(f'#!/bin/sh\nif [ "$1" = -version ]; then echo \'openjdk version "17"\' >&2; exit; fi\n{body}\n')
    java.chmod(0o755)
    return str(java)


def started_with(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> EmbeddedZookeeper:
    monkeypatch.setattr(embedded_zookeeper, "find_java", lambda: fake_java(tmp_path, body))
    monkeypatch.setattr(embedded_zookeeper, "find_jars", list)
    return EmbeddedZookeeper(str(tmp_path / "data"))


def test_a_server_that_ends_at_once_is_reported_with_its_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = started_with(monkeypatch, tmp_path, "echo out of cheese; exit 3")
    with pytest.raises(ZookeeperUnavailableError, match=r"ended while starting\nout of cheese"):
        server.start()
    assert server.pid == 0


def test_a_port_that_was_taken_meanwhile_is_replaced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ports: list[int] = []
    prepare = EmbeddedZookeeper.prepare

    def note_port(server: EmbeddedZookeeper) -> None:
        prepare(server)
        ports.append(server.client_port)

    monkeypatch.setattr(EmbeddedZookeeper, "prepare", note_port)
    server = started_with(monkeypatch, tmp_path, "echo java.net.BindException: Address already in use; exit 1")
    with pytest.raises(ZookeeperUnavailableError, match="Address already in use"):
        server.start()
    assert len(ports) == 5
    assert len(set(ports)) > 1


def test_a_server_that_never_serves_is_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server = started_with(monkeypatch, tmp_path, "exec sleep 60")
    with pytest.raises(ZookeeperUnavailableError, match="did not serve within"):
        server.start(deadline_s=0.2)
    assert server.pid == 0


def test_importing_the_embedded_zookeeper_does_not_import_pyspark() -> None:
    code = "import sys, anabranch.local.embedded_zookeeper as e; e.find_jars(); print('pyspark' in sys.modules)"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "False"
