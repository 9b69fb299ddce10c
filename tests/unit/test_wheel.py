"""The files that a wheel installs into an environment."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {"audit", "broker", "client", "controller", "ordered_resize", "protocol", "runtime", "zk_schemas"}


def test_all_modules_are_under_anabranch_except_those_that_spark_finds_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANABRANCH_COMPILE", "0")
    (path,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path))
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert tops == {"anabranch", "pyspark_anabranch.py", "pyspark_anabranch_segments.py"}
    shipped = {name for name in names if name.endswith(".py")}
    folders = {name.split("/")[1] for name in shipped if name.count("/") > 1}
    assert folders >= FOLDERS
    assert "sim" not in folders
    sources = {f"anabranch/{path.relative_to(ROOT)}" for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    assert sorted(sources - shipped) == []
