"""The command lines of the documentation run on a cluster, in the order of the page."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from anabranch import NewTopic, TopicPartition
from anabranch.sync import Admin, Producer
from anabranch.testing.processes import ProcessCluster, wait_for
from tests.support.seen.cli_schema import SCHEMA, valid_json
from tests.support.seen.executed_pages import lines_to_execute
from tests.support.seen.page_blocks import Block, blocks
from tests.support.seen.terminal import heed_sigint, interrupt_when_shown

pytestmark = pytest.mark.integration

DEADLINE_S = 120.0
TOPIC, GROUP = "events", "readers"
RECORDS, PARTITIONS = 600, 4
ENDLESS = (
    (r"anabranch up\b", "Ctrl-C stops everything", 0),
    (r"anabranch console\b", r"http://[\w.]+:\d+", 0),
    (r"anabranch top\b", "records/s", 130),
    (r"anabranch consume (?!.*--(?:max-messages|timeout-ms))", r'"sequence|\bkey-\d', 130),
)
"""Commands that end by Ctrl-C: the text that they show before Ctrl-C, and their exit status."""
INTERRUPTED_PIPELINE = -2
"""The status of a shell whose last program was ended by SIGINT."""
LINES = lines_to_execute()


@pytest.fixture(scope="module")
def cluster() -> Iterator[ProcessCluster]:
    with ProcessCluster(brokers=3) as running:
        yield running


@pytest.fixture
def admin(cluster: ProcessCluster) -> Iterator[Admin]:
    with Admin(bootstrap_servers=cluster.bootstrap) as running:
        yield running


class Shell:
    """Runs lines of a page in a directory; the ports and addresses of the pages become those of the cluster."""

    def __init__(self, cluster: ProcessCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory
        (directory / ".venv").mkdir()
        (directory / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
        path = os.pathsep.join([str(directory / ".venv" / "bin"), os.environ["PATH"]])
        self.environment = {**os.environ, "ANABRANCH_BOOTSTRAP_SERVER": cluster.bootstrap, "PATH": path}
        first, *_ = cluster.bootstrap.split(",")
        self._here = (
            (r"PLAINTEXT://kafka-1\.example\.org:9092", f"PLAINTEXT://{first}"),
            (r"\b(?:127\.0\.0\.1|kafka-1):9092", cluster.bootstrap),
            (r"\b127\.0\.0\.1:9404", cluster.metrics["broker-1"]),
            (r"(?<=--listen )([\d.]+):\d+", r"\1:0"),
            (r"(anabranch console)(?!.*--listen)", r"\1 --listen 127.0.0.1:0"),
            (r"(anabranch up)(?!.*--brokers)", r"\1 --brokers 1"),  # faster than three
            (r"(anabranch up)(?!.*--port)|(anabranch up.*) --port \d+", r"\1\2 --port 0"),
        )

    def error(self, line: str) -> tuple[int, str]:
        """Run a line that fails. Returns its exit status, and the last line that it prints on standard error."""
        status, _, errors = self._end_of(["bash", "-uo", "pipefail", "-c", line])
        return status, errors.splitlines()[-1]

    def _end_of(self, command: list[str]) -> tuple[int, str, str]:
        """Run a command. Returns its exit status and its output; after a time-out all its processes are killed."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command,
            cwd=self.directory,
            env=self.environment,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                output, errors = process.communicate(timeout=DEADLINE_S)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            return process.returncode, output, errors

    def start(self, line: str, log: Path, shows: str) -> tuple[subprocess.Popen[bytes], str]:
        """Start a server with its output in ``log``, and wait until the output matches ``shows``. Returns the match."""
        with log.open("wb") as output:
            server = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=heed_sigint,
            )
        try:
            wait_for(lambda: server.poll() is not None or re.search(shows, log.read_text()), DEADLINE_S, line)
            found = re.search(shows, log.read_text())
            assert found is not None, log.read_text()
            return server, found[0]
        except BaseException:
            server.kill()
            server.wait()
            raise

    def run(self, line: str) -> str:
        """Run a line until its end, or until Ctrl-C, and return its output."""
        for written, here in self._here:
            line = re.sub(written, here, line.partition("    # ")[0])
        command = ["bash", "-euo", "pipefail", "-c", line]
        for beginning, shows, status in ENDLESS:
            if re.search(beginning, line):
                ended, output = interrupt_when_shown(command, self.environment, self.directory, shows, DEADLINE_S)
                assert ended in (status, *([INTERRUPTED_PIPELINE] if "|" in line else [])), f"{line}: {ended} {output}"
                return output
        status, output, errors = self._end_of(command)
        assert status == 0, f"{line}: {status} {output}{errors}"
        assert output.strip() or "anabranch produce" in line, f"{line}: no output"
        return output


@pytest.fixture
def shell(cluster: ProcessCluster, tmp_path: Path) -> Shell:
    return Shell(cluster, tmp_path)


def exists(admin: Admin) -> bool:
    return TOPIC in {listing.name for listing in admin.list_topics()}


def prepare(cluster: ProcessCluster, admin: Admin, block: Block) -> None:
    """Create the topic of the pages with records and a group, unless the block begins by creating it."""
    if exists(admin):
        admin.delete_topics([TOPIC])
        wait_for(lambda: not exists(admin), DEADLINE_S, "the topic is deleted")
    if any("topics create events" in line for line in block.lines):
        return
    admin.create_topics([NewTopic(TOPIC, num_partitions=PARTITIONS, replication_factor=3)])
    with Producer(bootstrap_servers=cluster.bootstrap) as producer:
        producer.send_many(TOPIC, [(b"key-%d" % n, b'{"sequence": %d}' % n) for n in range(RECORDS)])
    admin.alter_group_offsets(GROUP, {TopicPartition(TOPIC, number): 0 for number in range(PARTITIONS)})


@pytest.mark.parametrize("page", LINES)
def test_every_command_line_of_the_page_runs(cluster: ProcessCluster, admin: Admin, shell: Shell, page: str) -> None:
    """A line that cannot run here is in the tables of ``executed_pages.py``, with a reason."""
    for block, lines in LINES[page]:
        prepare(cluster, admin, block)
        for line in lines:
            if line.startswith("curl ") and shutil.which("curl") is None:
                continue
            output = shell.run(line)
            if wanted := re.search(r"--max-messages (\d+)", line):
                assert len(output.splitlines()) == int(wanted[1]), line
            if line.endswith(" --json"):
                (command,) = [name for name in SCHEMA["$defs"] if line.startswith(f"anabranch {name} ")]
                valid_json(command, output)
    if page == "docs/upgrading.md":  # it ends with lower levels
        shell.run("anabranch features upgrade --all")


def block_of(beginning: str) -> Block:
    (found,) = [
        block for block in blocks() if block.page == "docs/command-line.md" and block.lines[0].startswith(beginning)
    ]
    return found


def test_the_ready_file_has_the_fields_that_the_page_shows(cluster: ProcessCluster) -> None:
    shown = json.loads("".join(block_of('{"bootstrap": ').lines))
    assert shown.keys() == cluster.state.keys()
    assert shown["pids"].keys() == cluster.state["pids"].keys()
    assert shown["metrics"].keys() <= cluster.metrics.keys()


def test_the_errors_that_the_page_shows_are_printed(shell: Shell) -> None:
    (of_broker,) = block_of("broker: log.retention.msx").lines
    (shell.directory / "broker-1.properties").write_text("log.retention.msx=1\n")
    assert shell.error("anabranch broker --config broker-1.properties") == (2, of_broker)
    (of_produce,) = block_of("anabranch: line 3 of standard input").lines
    records = "\n".join([*[json.dumps({"value": "v"})] * 2, json.dumps({"valu": "v"})])
    line = f"anabranch topics create refused-line --partitions 1 >&2; echo '{records}' | anabranch produce refused-line"
    assert shell.error(f"{line} --format json") == (1, of_produce)


def test_each_server_command_of_the_page_starts_a_server_that_ctrl_c_ends(shell: Shell) -> None:
    """Each line starts a server that connects to the earlier servers. Ctrl-C ends each server with status 0."""
    shows = (r"(?<=ZooKeeper serves at )\S+", "controller.elected", "broker.ready")
    shell.environment["ANABRANCH_CONTROLLER_LISTENER"] = "PLAINTEXT://127.0.0.1:0"
    servers: list[subprocess.Popen[bytes]] = []
    address = ""
    try:
        for number, line in enumerate(block_of("anabranch zookeeper ").commands):
            line = line.replace("/var/lib/zookeeper", "zookeeper").replace("clientPort=2181", "clientPort=0")
            line = line.replace("localhost:2181", address)
            server, shown = shell.start(line, shell.directory / f"{number}.log", shows[number])
            servers.append(server)
            if not address:
                address = shown
                properties = f"zookeeper.connect={address}\nlog.dirs=broker-1\nlisteners=PLAINTEXT://127.0.0.1:0\n"
                (shell.directory / "server.properties").write_text(properties)
    finally:
        statuses = []
        for server in reversed(servers):
            server.send_signal(signal.SIGINT)
            try:
                statuses.append(server.wait(DEADLINE_S))
            except subprocess.TimeoutExpired:
                server.kill()
                statuses.append(server.wait())
    assert statuses == [0, 0, 0], [log.read_text() for log in sorted(shell.directory.glob("*.log"))]
