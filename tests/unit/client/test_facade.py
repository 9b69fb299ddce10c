"""``import anabranch``: what it loads, and what it says when a sibling package is not ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import anabranch
from client import errors


def loaded_by(statement: str) -> set[str]:
    """Top-level modules a fresh interpreter has after ``statement``."""
    script = f"{statement}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_importing_the_facade_loads_no_event_loop() -> None:
    assert not loaded_by("import anabranch") & {"trio", "anyio", "asyncio", "kazoo"}


def test_the_client_loads_neither_trio_nor_kazoo() -> None:
    loaded = loaded_by("from anabranch import Admin, Consumer, Producer; import anabranch.sync")
    assert "anyio" in loaded
    assert not loaded & {"trio", "kazoo", "broker", "controller"}


def test_every_name_is_there() -> None:
    for name in anabranch.__all__:
        assert getattr(anabranch, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Producr'"):
        anabranch.Producr


def test_a_foreign_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / "broker_of_another"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ImportError, match="another installed distribution has a package of that name"):
        anabranch.check_siblings(("protocol", "broker_of_another"))
    with pytest.raises(ImportError, match="nowhere to be found"):
        anabranch.check_siblings(("no_such_package_anywhere",))


def test_every_error_a_program_may_catch_is_there() -> None:
    """CoordinatorMovedError never leaves the client."""
    found = {name for name, item in vars(errors).items() if isinstance(item, type) and issubclass(item, Exception)}
    assert sorted(found - set(anabranch.__all__) - {"CoordinatorMovedError"}) == []
