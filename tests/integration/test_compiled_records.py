"""``pip install .`` with a C compiler builds the record codec and the producer's buffer, which pass the same tests.

Without a C compiler, all is installed as pure Python.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INSTALL_S = 600
VERSION = "9.8.7"
FILES = """
from anabranch.client.producer import accumulator
from anabranch.protocol import key_placement, records
print(records.__file__, key_placement.__file__, accumulator.__file__)
"""

pytestmark = pytest.mark.integration


def install(target: Path, **variables: str) -> None:
    """Install the checkout as a user does. The build finds its tools in this environment, so it needs no network."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-build-isolation", "--target", str(target), str(ROOT)]
    environment = {name: value for name, value in os.environ.items() if name != "ANABRANCH_COMPILE"}
    environment |= {"SETUPTOOLS_SCM_PRETEND_VERSION": VERSION, **variables}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An installation where a C compiler is found."""
    for name in ("hatchling", "mypyc", "setuptools"):
        pytest.importorskip(name)
    import hatch_build

    if not hatch_build._can_compile():
        pytest.skip("no C compiler")
    target = tmp_path_factory.mktemp("compiled")
    install(target)
    return target


def run_with(path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python with ``path`` before the checkout, and without the working directory in its path."""
    command = [sys.executable, "-P", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(path)}
    return subprocess.run(command, cwd=path, env=environment, capture_output=True, text=True, check=False)


def check_wheel(site: Path, is_pure: bool) -> None:
    """Check the version, also as ``anabranch --version`` prints it, and for which platforms the installed wheel is."""
    (wheel,) = site.glob("anabranch-*.dist-info/WHEEL")
    assert wheel.parent.name == f"anabranch-{VERSION}.dist-info"
    assert ("Tag: py3-none-any" in wheel.read_text()) is is_pure
    interpreter = f"{platform.python_implementation()} {platform.python_version()}"
    assert run_with(site, "-m", "anabranch.cli.main", "--version").stdout == f"{VERSION} ({interpreter})\n"


def test_the_extension_modules_are_the_ones_imported(compiled: Path) -> None:
    check_wheel(compiled, is_pure=False)
    result = run_with(compiled, "-c", FILES)
    assert result.stdout.count(str(compiled)) == 3, result.stderr
    assert ".py " not in result.stdout


@pytest.mark.parametrize(
    "tests", ["tests/unit/protocol_records", "tests/property/records", "tests/unit/client/test_accumulator.py"]
)
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


def test_without_a_c_compiler_the_pure_codec_is_installed_and_the_command_runs(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    install(tmp_path, CC="there-is-no-such-compiler")
    check_wheel(tmp_path, is_pure=True)
    result = run_with(tmp_path, "-c", FILES)
    assert result.stdout.split() == [
        str(tmp_path / "anabranch" / name)
        for name in ("protocol/records.py", "protocol/key_placement.py", "client/producer/accumulator.py")
    ], result.stderr
    assert "export" in run_with(tmp_path, "-m", "anabranch.cli.main", "--help").stdout


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
