"""The compiled record codec behaves as the pure one: it passes the same tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package and its extension modules, as a compiled wheel installs them."""
    for name in ("hatchling", "mypyc", "setuptools"):
        pytest.importorskip(name)
    import hatch_build

    if not hatch_build._can_compile():
        pytest.skip("no C compiler")
    work = tmp_path_factory.mktemp("compiled")
    built = hatch_build.compile_modules(ROOT, work)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.pyd")
    shutil.copytree(ROOT / "anabranch", work / "anabranch", ignore=ignored, dirs_exist_ok=True)
    assert {path.name.split(".")[0] for path in built} >= {"records", "key_placement"}
    return work


def run_with(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``path`` before the checkout, and without the working directory in its path."""
    command = [sys.executable, "-P", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)


def test_the_extension_modules_are_the_ones_imported(compiled: Path) -> None:
    code = "from anabranch.protocol import key_placement, records; print(records.__file__, key_placement.__file__)"
    result = run_with(compiled, "-c", code)
    assert result.stdout.count(str(compiled)) == 2, result.stderr
    assert ".py " not in result.stdout


@pytest.mark.parametrize("tests", ["tests/unit/protocol_records", "tests/property/records"])
def test_the_tests_of_the_pure_modules_pass_on_the_compiled_ones(compiled: Path, tests: str) -> None:
    options = [
        "--noconftest",
        "-p",
        "no:anabranch",
        "-p",
        "no:cacheprovider",
        "-c",
        str(ROOT / "pyproject.toml"),
        "--rootdir",
        str(ROOT),
    ]
    result = run_with(compiled, "-m", "pytest", *options, str(ROOT / tests))
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-1000:]


def test_anabranch_compile_must_be_0_or_1(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("hatchling")
    import hatch_build

    monkeypatch.setenv("ANABRANCH_COMPILE", "0")
    assert not hatch_build._wanted()
    monkeypatch.setenv("ANABRANCH_COMPILE", "1")
    assert hatch_build._wanted()
    monkeypatch.setenv("ANABRANCH_COMPILE", "yes")
    with pytest.raises(ValueError, match="ANABRANCH_COMPILE"):
        hatch_build._wanted()
