"""The tests that execute the code blocks of the documentation; ``test_page_commands.py`` executes all other lines."""

from __future__ import annotations

from collections.abc import Mapping

from tests.support.seen.page_blocks import Block, blocks

Place = tuple[str, str]
"""A page, and the beginning of a line."""

_COMPOSE = "needs a container engine; tests/compose runs the same services by the same file"
_SPARK_CLUSTER = "needs a Spark cluster; tests/integration/test_spark_cluster.py runs the audit and spark-submit on one"
_OUTPUT = "an output with values of one moment"
_DRAWING = "a drawing"
_FORMULA = "a formula"

BLOCKS: Mapping[Place, str] = {
    ("README.md", "make demo "): "sets up a virtual environment; the demo itself: tests/integration/test_demo.py",
    ("README.md", "import anyio"): "tests/integration/test_examples.py::test_the_examples_run",
    ("README.md", ".venv/bin/anabranch audit anabranch-demo/export"): (
        "tests/integration/test_demo.py::test_the_demo_passes_and_the_audit_names_an_edited_record"
    ),
    ("README.md", ".venv/bin/anabranch topics create clicks"): (
        "tests/integration/test_spark_live.py::test_every_line_of_the_readmes_spark_section_runs"
    ),
    ("anabranch/testing/README.md", "from anabranch import NewTopic"): (
        "tests/integration/test_testing_plugin.py::test_the_readmes_example_passes_in_a_project_of_its_own"
    ),
    (
        "deploy/README.md",
        "promtool ",
    ): "needs a container engine; tests/integration/test_alert_rules.py reads the files",
    ("docs/architecture.md", "Python, Java, Go"): _DRAWING,
    ("docs/architecture.md", "anabranch ──>"): _DRAWING,
    ("docs/audit-planning.md", "spark-submit "): _SPARK_CLUSTER,
    ("docs/audit-planning.md", "from anabranch.audit.run"): (
        "tests/integration/test_audit_spark.py::test_the_programs_of_the_documentation_run"
    ),
    ("docs/audit.md", '{"group": "g"'): "tests/integration/test_audit_spark.py::test_the_commands_of_the_pages_run",
    ("docs/audit.md", "from anabranch.audit import checks, read_rows"): (
        "tests/integration/test_audit_spark.py::test_the_programs_of_the_documentation_run"
    ),
    ("docs/audit.md", "from anabranch.audit import run_audit"): (
        "tests/integration/test_audit_spark.py::test_the_programs_of_the_documentation_run"
    ),
    ("docs/clients.md", "import anyio"): "tests/integration/test_examples.py::test_the_examples_run",
    ("docs/clients.md", "from anabranch.sync import Consumer, Producer"): (
        "tests/integration/test_examples.py::test_the_examples_run"
    ),
    ("docs/clients.md", "from anabranch.sync import Producer"): (
        "tests/integration/test_examples.py::test_the_examples_run"
    ),
    ("docs/containers.md", "docker compose up"): _COMPOSE,
    ("docs/containers.md", "docker compose exec"): _COMPOSE,
    ("docs/containers.md", "until "): _COMPOSE,
    ("docs/containers.md", "services:"): _COMPOSE,
    (
        "docs/containers.md",
        "x-three:",
    ): "tests/compose/test_compose_file.py::test_the_override_with_three_zookeepers_fits",
    (
        "docs/development.md",
        "git tag -a v0.1.0",
    ): "makes a release; tests/unit/test_version.py reads tags",
    ("docs/development.md", "zk, clock = FakeZk()"): "tests/unit/test_docs.py::test_the_example_of_a_simulation_runs",
    ("docs/files.md", '{"version": 2'): _OUTPUT,
    ("docs/files.md", "/brokers/topics/t "): _OUTPUT,
    ("docs/files.md", "/cluster/id"): _OUTPUT,
    ("docs/model/README.md", "make model"): "takes minutes; tests/model/test_models.py checks the small configurations",
    ("docs/model/README.md", "satisfied(q, f)"): _FORMULA,
    ("docs/command-line.md", '{"bootstrap": '): (
        "tests/integration/test_page_commands.py::test_the_ready_file_has_the_fields_that_the_page_shows"
    ),
    ("docs/command-line.md", "anabranch zookeeper "): (
        "tests/integration/test_page_commands.py::test_each_server_command_of_the_page_starts_a_server_that_ctrl_c_ends"
    ),
    ("docs/command-line.md", "broker: log.retention.msx"): (
        "tests/integration/test_page_commands.py::test_the_errors_that_the_page_shows_are_printed"
    ),
    ("docs/command-line.md", "anabranch: line 3 of standard input"): (
        "tests/integration/test_page_commands.py::test_the_errors_that_the_page_shows_are_printed"
    ),
    ("docs/command-line.md", "readers  Stable"): _OUTPUT,
    ("docs/resizing.md", "partitions that wait"): _OUTPUT,
    ("docs/resizing.md", "kept beyond retention.ms: partition 1"): _OUTPUT,
    ("docs/metrics.md", "from prometheus_client"): (
        "tests/integration/test_examples.py::test_metrics_of_clients_are_registered_as_metrics_md_shows"
    ),
    ("docs/metrics.md", "blocked: partition"): _OUTPUT,
    (
        "docs/production.md",
        "tickTime=",
    ): "a configuration of ZooKeeper for three machines",
    ("docs/production.md", "useradd "): "needs root and systemd; tests/unit/test_systemd_units.py checks the files",
    **{
        ("docs/from-other-clients.md", f"# {program}"): (
            "tests/integration/test_examples.py::test_the_program_for_each_task_runs"
        )
        for program in ("create_topic.py", "produce.py", "consume.py", "read_to_end.py")
    },
    ("docs/from-other-clients.md", "from anabranch.sync import Consumer"): (
        "tests/integration/test_examples.py::test_the_loop_that_ends_with_ctrl_c_commits_what_it_stored"
    ),
    ("docs/from-other-clients.md", "from anabranch.confluent import"): (
        "tests/integration/test_quick_starts.py::test_the_first_programs_for_confluent_kafka_run_with_another_import"
    ),
    ("docs/ordered-resize.md", "import anyio"): (
        "tests/integration/test_examples.py::test_the_example_of_callbacks_counts_the_keys_and_commits"
    ),
    ("docs/ordered-resize.md", "p = h mod M"): _FORMULA,
    ("docs/ordered-resize.md", "satisfied(q, f)"): _FORMULA,
    ("docs/ordered-resize.md", "resize        partition 1"): _DRAWING,
    ("docs/spark.md", "pip install"): "installs packages from the network",
    (
        "docs/spark.md",
        "from pyspark.sql",
    ): "tests/integration/test_spark_live.py::test_the_programs_of_the_documentation_run",
    ("docs/spark.md", "servers = "): "tests/integration/test_spark_live.py::test_the_programs_of_the_documentation_run",
    (
        "docs/spark.md",
        "spark.read.format",
    ): "tests/integration/test_spark_live.py::test_the_programs_of_the_documentation_run",
    ("docs/spark.md", "anabranch audit /data/exported"): _SPARK_CLUSTER,
}
"""The test that executes all of a block, or the reason that no test does."""

LINES: Mapping[Place, str] = {
    ("README.md", "make up "): "sets up a virtual environment; command-line.md has a line with `anabranch up`",
    ("deploy/README.md", "promtool "): "tests/integration/test_alert_rules.py::test_prometheus_accepts_the_files",
    ("deploy/README.md", "docker run "): "needs a container engine and the image of Prometheus",
    ("docs/audit.md", "anabranch audit exported"): (
        "tests/integration/test_audit_spark.py::test_the_commands_of_the_pages_run"
    ),
    ("docs/command-line.md", "anabranch export --topic events --to s3://"): "needs an object store",
    ("docs/command-line.md", "anabranch export --topic events --to exported --offline"): (
        "needs a stopped broker; tests/integration/test_export.py exports from the directory of one"
    ),
    ("docs/command-line.md", "anabranch audit exported"): (
        "tests/integration/test_audit_spark.py::test_the_commands_of_the_pages_run"
    ),
    ("docs/command-line.md", "anabranch demo --events 10000"): (
        "takes a minute; tests/integration/test_demo.py runs it with fewer events"
    ),
}
"""For single lines of the other blocks: the test that executes the line, or the reason that no test does."""


def lines_to_execute() -> dict[str, list[tuple[Block, list[str]]]]:
    """Return, by page, each block that is not in ``BLOCKS``, with its command lines that are not in ``LINES``."""
    found: dict[str, list[tuple[Block, list[str]]]] = {}
    for block in blocks():
        if _place(BLOCKS, block.page, block.lines[0]) is None:
            lines = [line for line in block.commands if _place(LINES, block.page, line) is None]
            if lines:
                found.setdefault(block.page, []).append((block, lines))
    return found


def unused_places() -> list[Place]:
    """The table entries that match no block or line, or more than one."""
    firsts = [(block.page, block.lines[0]) for block in blocks()]
    lines = [(block.page, line) for block in blocks() for line in block.commands]
    return [
        (page, beginning)
        for table, all_lines in ((BLOCKS, firsts), (LINES, lines))
        for page, beginning in table
        if sum(of == page and line.startswith(beginning) for of, line in all_lines) != 1
    ]


def _place(table: Mapping[Place, str], page: str, line: str) -> Place | None:
    return next((place for place in table if place[0] == page and line.startswith(place[1])), None)
