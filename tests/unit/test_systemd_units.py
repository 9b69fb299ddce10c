"""The files of ``deploy/systemd``: systemd accepts the units, and Anabranch their command lines and configurations."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.broker.config import BrokerConfig
from anabranch.cli.main import build_app
from anabranch.controller.config import ControllerConfig
from anabranch.zk_schemas.config_def import parse_properties
from anabranch.zk_schemas.static_keys import for_broker, for_controller

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
INSTALLED = "/opt/anabranch/bin/anabranch"


def faults(unit: Path, directory: Path) -> str:
    """The messages of ``systemd-analyze`` about a unit, whose program it requires to exist."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    copy = directory / unit.name.replace("@.", "@1.")
    copy.write_text(unit.read_text().replace(INSTALLED, sys.executable))
    done = subprocess.run([program, "verify", "--man=no", str(copy)], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_accepts_a_unit_without_a_message(unit: Path, tmp_path: Path) -> None:
    assert faults(unit, tmp_path) == ""


def test_systemd_reports_an_unknown_key(tmp_path: Path) -> None:
    unit = tmp_path / "wrong.service"
    unit.write_text(UNITS[0].read_text().replace("Restart=", "Restrat="))
    (tmp_path / "out").mkdir()
    assert "Unknown key" in faults(unit, tmp_path / "out")


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_the_command_line_of_a_unit_is_accepted(unit: Path) -> None:
    (line,) = re.findall(r"^ExecStart=(.+)$", unit.read_text(), re.MULTILINE)
    program, *words = shlex.split(line.replace("%i", "1"))
    assert program == INSTALLED
    build_app().parse_args(words, exit_on_error=False, print_error=False)
    for named in re.findall(r"/etc/anabranch/(\S+)", line.replace("%i", "1")):
        assert (FOLDER / named).is_file()


def test_broker_and_controller_accept_their_configurations_without_a_warning() -> None:
    of_broker = parse_properties((FOLDER / "broker-1.properties").read_text())
    of_controller = parse_properties((FOLDER / "controller.properties").read_text())
    assert (for_broker(of_broker), for_controller(of_controller)) == ((of_broker, []), (of_controller, []))
    assert BrokerConfig.from_given(of_broker).log_dirs[0].startswith("/var/lib/anabranch/")
    assert ControllerConfig.parse(of_controller)
