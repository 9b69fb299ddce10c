"""Wrong usage: exit status 2 and one sentence, before the first request. ``usage.txt`` has golden pages of more."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.cli import main as main_module
from anabranch.cli.main import main
from anabranch.cli.output import RED, coloured
from anabranch.protocol.batch_builder import build_batch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    "arguments",
    [
        ("topics", "creat", "t"),
        ("topics", "describe", "--nope"),
        ("topics", "list", "-b", "host"),
        ("topics", "create", "\udcff"),
        ("groups", "describe", "g", "-b", "\udcff:1"),
    ],
    ids=ascii,
)
def test_wrong_usage_has_status_2_and_a_sentence(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == 2
    output = capsys.readouterr()
    assert output.err and "Error:" not in output.out + output.err and "['" not in output.err


@pytest.mark.parametrize("server", [("broker",), ("controller",), ("zookeeper",), ("health", "broker")])
def test_a_properties_file_that_cannot_be_read_is_named(
    server: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    for content, why in ((None, "No such file or directory"), (b"a=b\n\xff=1\n", "line 2 is not UTF-8")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(SystemExit) as ended:
            main([*server, "--config", str(path)])
        assert ended.value.code == 2
        assert capsys.readouterr().err.partition(": ")[2] == f"{path}: {why}\n"


def test_standard_input_that_is_closed_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)  # Python sets this after ``<&-``
    with pytest.raises(SystemExit) as ended:
        main(["produce", "t", "-b", "127.0.0.1:1"])
    assert ended.value.code == 1
    assert capsys.readouterr().err == "anabranch: standard input is closed; there is nothing to read\n"


@pytest.mark.parametrize("server", ["broker", "controller"])
@pytest.mark.parametrize("level", ["LOUD", "INFO,kazoo=LOUD", "anabranch="])
def test_the_error_for_a_bad_log_level_names_the_flag(
    server: str, level: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "server.properties"
    path.write_text("broker.id=1\nzookeeper.connect=127.0.0.1:1\n")
    with pytest.raises(SystemExit) as ended:
        main([server, "--config", str(path), "--log-level", "kazoo=DEBUG", "--log-level", level])
    assert ended.value.code == 2
    wrong = repr(level.rpartition(",")[2])
    wanted = f"anabranch: --log-level {level}: {wrong} is not LEVEL or LOGGER=LEVEL with TRACE, DEBUG, INFO"
    assert capsys.readouterr().err.startswith(wanted)


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"NO_COLOR": "1"}])
def test_a_terminal_without_colours_gets_no_escapes(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert coloured("late", RED) == "\033[31mlate\033[0m"
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert coloured("late", RED) == "late"


def test_ctrl_c_in_a_nursery_is_an_interruption(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trio raises KeyboardInterrupt in nested exception groups."""

    def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("", [BaseExceptionGroup("", [KeyboardInterrupt()])])

    monkeypatch.setattr(main_module, "build_app", lambda: interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["cluster"])
    assert ended.value.code == 130


def test_a_closed_standard_output_is_no_error(tmp_path: Path) -> None:
    """``>&-``: the shell starts the command without the descriptor."""
    log = tmp_path / "00000000000000000000.log"
    log.write_bytes(build_batch([(b"k", b"v", (), 5)]))
    command = [sys.executable, "-m", "anabranch.cli.main", "dump-log", str(log)]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
