"""Each rule in docs/kips.md names tests that exist and name the KIP.

Each counterexample of a model names a test, too.
"""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "kips.md"
MODELS = ROOT / "docs" / "model"
SECTION = re.compile(r"^## (KIP-\d+)\b(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
HEAD = ("| rule | here | test |", "|---|---|---|")


def sections() -> dict[str, str]:
    return dict(SECTION.findall(PAGE.read_text()))


def rows(section: str) -> list[str]:
    """Return the rows of the tables of a section, without the heads."""
    return [line for line in section.splitlines() if line.startswith("|") and line not in HEAD]


@cache
def docstrings(path: str) -> dict[str, str]:
    """Return the docstring of each test function of a file, together with the docstring of the file."""
    tree = ast.parse((ROOT / path).read_text())
    about = ast.get_docstring(tree) or ""
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {node.name: f"{about}\n{ast.get_docstring(node) or ''}" for node in functions}


def test_the_page_has_a_section_for_each_kip() -> None:
    assert list(sections()) == ["KIP-570", "KIP-584", "KIP-915"]


@pytest.mark.parametrize("kip", sections())
def test_each_rule_names_a_test(kip: str) -> None:
    assert [row for row in rows(sections()[kip]) if row.count("|") != 4 or not TEST.search(row)] == []


@pytest.mark.parametrize("kip", sections())
def test_the_named_tests_exist_and_name_the_kip(kip: str) -> None:
    named = TEST.findall(sections()[kip])
    missing = [f"{path}::{test}" for path, test in named if not (ROOT / path).is_file() or test not in docstrings(path)]
    assert missing == []
    assert [f"{path}::{test}" for path, test in named if kip not in docstrings(path)[test]] == []


def test_each_counterexample_of_the_feature_protocol_is_a_test_that_names_it() -> None:
    """``docs/model/README.md`` lists the counterexamples.

    A counterexample is a configuration with one rule switched off, where a property fails.
    """
    configurations = tomllib.loads((MODELS / "configurations.toml").read_text())["configuration"]
    failing = {c["name"] for c in configurations if c.get("module") == "Features" and "expect" in c}
    listed = re.findall(rf"^\| `(off_\w+)` \| {TEST.pattern} \|$", (MODELS / "README.md").read_text(), re.MULTILINE)
    assert {name for name, _, _ in listed} == failing
    assert [row for row in listed if f"Model: {row[0]}." not in docstrings(row[1]).get(row[2], "")] == []
