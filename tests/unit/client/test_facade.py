"""``import anabranch`` loads few modules, and does not load a user's modules of the same names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import anabranch
from anabranch import client
from anabranch.client import errors
from anabranch.runtime.real_anyio import AnyioNetwork


def loaded_by(statement: str) -> set[str]:
    """Return the modules that a fresh interpreter has after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "needed", "unwanted"),
    [
        ("import anabranch", "anabranch", ["trio", "anyio", "asyncio", "kazoo"]),
        (
            "from anabranch import Admin, Consumer, Producer; import anabranch.sync",
            "anyio",
            ["trio", "kazoo", "anabranch.broker", "anabranch.controller"],
        ),
        (
            "import anabranch.spark.source",
            "anabranch.client.consumer.log_reader",
            [f"anabranch.client.{kind}.{kind}" for kind in ("admin", "consumer", "producer")] + ["trio", "kazoo"],
        ),
    ],
    ids=["facade", "clients", "reader of the log"],
)
def test_an_import_loads_no_more_than_it_needs(statement: str, needed: str, unwanted: list[str]) -> None:
    """Spark starts an interpreter for each stream, and waits until the interpreter has imported everything."""
    loaded = loaded_by(statement)
    assert needed in loaded and not loaded.intersection(unwanted)


def test_every_exported_name_exists_and_an_unknown_one_raises() -> None:
    for name in anabranch.__all__:
        assert getattr(anabranch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Producr'"):
        anabranch.Producr
    for name in client.__all__:
        ours, theirs = getattr(anabranch, name), getattr(client, name)
        assert ours is theirs or (name in {"Admin", "Consumer", "Producer"} and issubclass(ours, theirs))
    with pytest.raises(AttributeError, match="no attribute 'Producr'"):
        client.Producr


def test_the_types_that_list_topics_returns_are_exported() -> None:
    for kind in (anabranch.Producer, anabranch.Consumer):
        assert get_type_hints(kind.list_topics)["return"] is anabranch.Cluster
    assert get_type_hints(anabranch.Admin.list_topics)["return"] == list[anabranch.TopicListing]


def test_modules_of_the_user_do_not_hide_those_of_the_package(tmp_path: Path) -> None:
    """The package does not import a user's ``client.py``.

    A script's folder comes first in ``sys.path``, so a plain ``import client`` would find that file.
    """
    for name in ("audit", "broker", "client", "controller", "protocol", "runtime"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('a module of the user')")
    script = tmp_path / "main.py"
    script.write_text("import anabranch\nprint(anabranch.Producer.__module__)")
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("anabranch.real")


def test_every_error_that_a_program_may_catch_is_exported() -> None:
    """Every error is exported except CoordinatorMovedError, which never leaves the client."""
    found = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert sorted(found - set(anabranch.__all__) - {"CoordinatorMovedError"}) == []


def test_the_clients_of_the_package_build_their_environment() -> None:
    for name in ("Admin", "Consumer", "Producer"):
        ours, theirs = getattr(anabranch, name), getattr(client, name)
        assert isinstance(ours(bootstrap_servers="h:1")._env.network, AnyioNetwork)
        with pytest.raises(TypeError, match="env"):
            theirs(bootstrap_servers="h:1")


def test_an_error_of_the_client_itself_shows_no_code_of_a_broker() -> None:
    forked, failed = errors.ForkedClientError("Consumer"), errors.ClientFailedError("Consumer", ValueError("v"))
    assert str(forked).startswith("this Consumer was started before the process forked")
    assert str(failed).startswith("a task of this Consumer ended by an error: ValueError")
    assert forked.code is failed.code is errors.ErrorCode.UNKNOWN_SERVER_ERROR
