"""The targets of links in the documentation exist, and each command and each config key is documented."""

from __future__ import annotations

import dataclasses
import json
import pkgutil
import random
import re
import runpy
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import trio
from cyclopts import App, CycloptsError

import anabranch
from anabranch import wire_reference
from anabranch.cli.main import build_app
from anabranch.client.client_metrics import ConsumerTraffic, ProducerTraffic
from anabranch.client.config import AdminConfig, ConsumerConfig, ProducerConfig
from anabranch.client.ordered_delivery.hand_over_metrics import HandOvers
from anabranch.client.producer.resize_metrics import ProducerMetrics
from anabranch.config_reference import TARGET, render
from anabranch.runtime import env
from anabranch.runtime.env import Env
from anabranch.zk_schemas.broker_keys import BROKER_CONFIGS
from anabranch.zk_schemas.controller_keys import CONTROLLER_CONFIGS
from anabranch.zk_schemas.topic_keys import TOPIC_CONFIGS
from sim import clock, network, scheduler, zk
from tests.support.seen.executed_pages import BLOCKS, LINES, unused_places
from tests.support.seen.page_blocks import blocks, calls, pages
from tests.support.seen.prometheus_tools import KAFKAS_OWN

ROOT = Path(__file__).resolve().parents[2]
METRICS = ROOT / "docs" / "metrics.md"
COMMAND_LINE = ROOT / "docs" / "command-line.md"
SIMULATED = [
    (zk, "FakeZk"),
    (clock, "SimClock"),
    (network, "SimFabric"),
    (env, "Env"),
    (scheduler, "run_deterministic"),
]
"""The names that the example of a simulation uses."""
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
COLUMNS = 80
"""The columns of a code block on the site in a window of 1,280 pixels."""
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_SPAN = re.compile(r"`([^`\n]+)`")
SOURCE_FILE = re.compile(
    r"(?:anabranch|audit|broker|client|controller|ordered_resize|protocol|runtime|tests|zk_schemas)/[\w/.-]+\.py"
)


def anchors(page: Path) -> set[str]:
    """Return GitHub's anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(group: App, prefix: str = "") -> Iterator[str]:
    """Return every command that a user can type: ``topics create``, ``produce``, ..."""
    for name in group:
        if name.startswith("-"):
            continue
        child = group[name]
        nested = list(commands(child, f"{prefix}{name} "))
        yield from nested or [f"{prefix}{name}"]


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_named_files_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text())
    broken = []
    for target in LINK.findall(text):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        if not linked.exists() or (anchor and anchor not in anchors(linked)):
            broken.append(target)
    named = {name for span in CODE_SPAN.findall(text) for name in SOURCE_FILE.findall(span) if "<" not in span}
    broken += sorted(name for name in named if not (ROOT / name).is_file())
    assert broken == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_has_one_first_level_heading_at_its_top(page: Path) -> None:
    headings = re.findall(r"^(#+) ", FENCE.sub("", page.read_text()), re.MULTILINE)
    assert headings[:1] == ["#"] and headings.count("#") == 1
    assert page.read_text().startswith("# ")


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_comment_in_a_code_block_is_cut_off_at_the_right(page: Path) -> None:
    """The site shows 80 columns. A table of values or an output may be wider, and is scrolled."""
    wide = [line for fence in FENCE.findall(page.read_text()) for line in fence.splitlines() if len(line) > COLUMNS]
    assert [line for line in wide if page == ROOT / "README.md" or re.search(r"\s# ", line)] == []


@pytest.mark.parametrize("picture", ["split.svg", "split-and-merge.svg"])
def test_a_picture_shows_keys_in_their_true_partitions(picture: str) -> None:
    drawn = runpy.run_path(str(ROOT / "docs" / "site" / "split_picture.py"))
    text = (ROOT / "docs" / picture).read_text()
    assert text == drawn["draw"](drawn["PICTURES"][picture]), "run `make gen`"
    assert ElementTree.fromstring(text).get("viewBox")


def test_the_page_of_python_names_is_the_one_generated_from_the_docstrings() -> None:
    module = runpy.run_path(str(ROOT / "docs" / "site" / "python_names.py"))
    text = module["PAGE"].read_text()
    assert text == module["render"](text), "run `make gen`"
    rows = re.findall(r"^\| `(\w+)` \| (.+) \|$", text, re.MULTILINE)
    assert len(rows) > 30 and [name for name, words in rows if not words.strip() or words.startswith(f"{name}(")] == []


def test_every_test_that_a_page_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", "".join(page.read_text() for page in pages()))
    assert len(named) > 10
    assert [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []


def test_each_hole_names_the_function_that_decides_and_a_test() -> None:
    text = (ROOT / "docs" / "kips.md").read_text()
    rows = re.findall(r"^\| (\d+) \|.* `([\w.]+)`, `tests/([\w/]+)\.py::(\w+)` \|$", text, re.MULTILINE)
    assert [int(number) for number, *_ in rows] == list(range(1, 31))
    for _, decides, file, test in rows:
        assert callable(pkgutil.resolve_name(f"anabranch.{decides}"))
        assert callable(pkgutil.resolve_name(f"tests.{file.replace('/', '.')}:{test}"))


def test_the_example_of_a_simulation_runs() -> None:
    section = (ROOT / "docs" / "development.md").read_text().partition("\n## Simulation\n")[2]
    (program,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    seen: list[Env] = []

    async def scenario(given: Env) -> None:
        await trio.sleep(30)  # virtual time: no test waits
        seen.append(given)

    names = {name: getattr(module, name) for module, name in SIMULATED}
    exec(program, {**names, "random": random, "scenario": scenario, "seed": 1})
    assert [each.zk is not None for each in seen] == [True]


def test_every_page_is_reached_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in reached:
            continue
        reached.add(page)
        for target in LINK.findall(FENCE.sub("", page.read_text())):
            linked = (page.parent / target.partition("#")[0]).resolve()
            linked = linked / "README.md" if linked.is_dir() else linked
            if linked.suffix == ".md" and linked.is_file():
                waiting.append(linked)
    assert sorted(set((ROOT / "docs").rglob("*.md")) - reached) == []


def test_the_configuration_page_is_the_one_generated_from_the_tables() -> None:
    assert TARGET.read_text() == render(), "run `make gen`"


def test_the_page_of_the_wire_protocol_is_the_one_generated_from_the_tables() -> None:
    assert wire_reference.TARGET.read_text() == wire_reference.render(), "run `make gen`"


def test_every_config_key_is_on_the_configuration_page() -> None:
    documented = set(re.findall(r"^\| `([^`]+)`", TARGET.read_text(), re.MULTILINE))
    keys = {key.name for table in (TOPIC_CONFIGS, BROKER_CONFIGS, CONTROLLER_CONFIGS) for key in table}
    client = {f.name for config in (ProducerConfig, ConsumerConfig, AdminConfig) for f in dataclasses.fields(config)}
    assert sorted((keys | client) - documented) == []


def test_the_page_of_delivery_has_every_error_and_only_settings_that_exist() -> None:
    text = (ROOT / "docs" / "delivery.md").read_text()
    classes = {name for name in anabranch.__all__ if name.endswith("Error")}
    assert len(classes) > 15
    assert sorted(name for name in classes if f"`{name}`" not in text) == []
    for heading, config in (("### Producer\n", ProducerConfig), ("### Consumer\n", ConsumerConfig)):
        table = text.partition(heading)[2].partition("\n#")[0]
        firsts = [re.sub(r"\([^)]*\)", "", cell) for cell in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE)]
        named = {name for cell in firsts for name in re.findall(r"`([a-z_]+)(?:=[^`]*)?`", cell)}
        assert len(named) > 8
        assert sorted(named - {f.name for f in dataclasses.fields(config)}) == []


def test_every_command_has_an_example() -> None:
    text = COMMAND_LINE.read_text()
    missing = [name for name in commands(build_app()) if not re.search(rf"\banabranch {re.escape(name)}\b", text)]
    assert missing == []


def test_every_command_line_on_a_page_is_accepted_by_the_parser() -> None:
    """The parser accepts the commands, the options and the types of their values."""
    shell = [block for block in blocks() if not block.language]
    lines, wrong = {words for block in shell for line in block.lines for words in calls(line)}, []
    assert len(lines) > 60
    app = build_app()
    for words in sorted(lines):
        try:
            app.parse_args(list(words), exit_on_error=False, print_error=False)
        except CycloptsError as error:
            wrong.append((words, str(error)))
    assert wrong == []


def test_the_tables_of_executed_blocks_name_blocks_and_tests_that_exist() -> None:
    assert unused_places() == []
    named = {test for table in (BLOCKS, LINES) for test in table.values() if "::" in test}
    assert len(named) > 10
    for test in named:
        file, _, function = test.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text(), test


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_every_make_target_on_a_page_exists() -> None:
    lines = {line.strip() for block in blocks() for line in block.lines if line.strip().startswith("make ")}
    assert len(lines) > 3
    for line in sorted(lines):
        command = [*shlex.split(line, comments=True), "--dry-run"]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, f"{line}: {done.stderr}"


def test_every_metric_of_clients_is_explained() -> None:
    """Each metric is named, or the measured time is named. ``test_metric_tables.py`` has those of processes."""
    text = METRICS.read_text()
    (of_producer,) = ProducerMetrics().values().values()
    traffic = {*ProducerTraffic().values(0, 0), *ConsumerTraffic().values([], 0)}
    named = {*of_producer, *HandOvers().values(), *traffic}
    times = {name.removesuffix("-time-p50-ms") for name in named if name.endswith("-time-p50-ms")}
    of_times = {f"{time}-{what}" for time in times for what in ("total", "time-p50-ms", "time-p99-ms", "time-max-ms")}
    assert sorted(name for name in (named - of_times) | times if f"`{name}`" not in text) == []


def test_metrics_with_faults_that_promtool_reports_are_explained() -> None:
    section = METRICS.read_text().partition("## Faults that promtool reports\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(kafka_\w+)`", section)) == {name for name, _ in KAFKAS_OWN}


def test_every_command_that_prints_json_has_a_schema() -> None:
    """Every command with ``--json`` has a schema. The schema of ``audit`` is a separate file."""
    defined = json.loads((ROOT / "docs" / "cli.schema.json").read_text())["$defs"].keys() - {"failed"}
    app = build_app()
    having = set()
    for name in commands(app):
        command = app
        for word in name.split():
            command = command[word]
        if any("--json" in argument.names for argument in command.assemble_argument_collection()):
            having.add(name)
    assert having - {"audit"} == defined
