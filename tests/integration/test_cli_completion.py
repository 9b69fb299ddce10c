"""Completion scripts of shells, run in those shells."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch.cli.main import main

pytestmark = pytest.mark.integration

TRY_BASH = """
source {script}
complete_after() {{ COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _anabranch; echo "${{COMPREPLY[@]}}"; }}
complete_after anabranch topics de
complete_after anabranch consume t --fro
"""


def script_of(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    with pytest.raises(SystemExit) as ended:
        main(["completion", shell])
    assert ended.value.code == 0
    script = tmp_path / "_anabranch"
    script.write_text(capsys.readouterr().out)
    return script


def test_bash_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of("bash", tmp_path, capsys)
    done = subprocess.run(
        ["bash", "--norc", "-c", TRY_BASH.format(script=script)], capture_output=True, text=True, timeout=60
    )
    commands, options = done.stdout.splitlines()
    assert set(commands.split()) == {"describe", "delete"}, done.stderr
    assert set(options.split()) == {"--from-beginning", "--from-timestamp"}


@pytest.mark.skipif(shutil.which("fish") is None, reason="the package fish is not installed")
def test_fish_completes_commands_and_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of("fish", tmp_path, capsys)
    found = []
    for typed in ("anabranch topics de", "anabranch consume --fro"):
        line = f"source {script}; complete --do-complete '{typed}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", line], capture_output=True, text=True, timeout=60, cwd=tmp_path
        )
        found.append({word.split("\t")[0] for word in done.stdout.splitlines()})
    assert found == [{"describe", "delete"}, {"--from-beginning", "--from-timestamp"}]


def typed_into_zsh(lines: list[str], directory: Path) -> str:
    """Return the output of an interactive zsh."""
    ours, its = pty.openpty()
    try:
        shell = subprocess.Popen(
            ["zsh", "-f", "-i"], stdin=its, stdout=its, stderr=its, cwd=directory, start_new_session=True
        )
        os.close(its)
        os.write(ours, "".join(f"{line}\n" for line in lines).encode())
        shown = []
        with suppress(OSError):  # the end of the terminal's output
            while select.select([ours], [], [], 60)[0] and (piece := os.read(ours, 65536)):
                shown.append(piece)
        shell.kill()  # zsh may hang without writing anything
        shell.wait()
        return b"".join(shown).decode(errors="replace")
    finally:
        os.close(ours)


@pytest.mark.skipif(shutil.which("zsh") is None, reason="the package zsh is not installed")
@pytest.mark.parametrize("is_sourced", [False, True])
def test_zsh_completes_commands_and_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], is_sourced: bool
) -> None:
    script = script_of("zsh", tmp_path, capsys)
    start = "autoload -Uz compinit; compinit -u -D"
    calls = tmp_path / "calls"
    shown = typed_into_zsh(
        [
            f"{start}; source {script}" if is_sourced else f"fpath=({tmp_path} $fpath); {start}",
            f'anabranch() {{ print -r -- "$@" >> {calls} }}',
            "anabranch topics desc\t",
            "anabranch topics list --under-r\t",
            "exit",
        ],
        tmp_path,
    )
    assert calls.exists(), shown
    assert calls.read_text().splitlines() == ["topics describe", "topics list --under-replicated"], shown
