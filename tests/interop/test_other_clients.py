"""Clients of other languages: franz-go and sarama (Go), kafkajs (Node). Skipped if they cannot be built."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from anabranch.protocol.key_placement import positive_hash
from anabranch.testing.cluster import Cluster
from tests.interop.clients import CODECS, LIBRARIES, Item
from tests.interop.groups import Member, check_join_leave_and_crash
from tests.support.controller.topics import create_topic

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent
CACHE = HERE.parents[1] / ".cache" / "interop"
BUILD_DEADLINE_S = 180.0
DEADLINE_S = 60.0
PARTITIONS = 3
"""The number of partitions, as in go/main.go."""


@functools.cache
def build(name: str, *command: str, directory: Path) -> str | None:
    """Run a build once. Returns None, or the reason why it is impossible here: a missing tool or registry."""
    if shutil.which(command[0]) is None:
        return f"{command[0]} is not installed: {name} is not tried"
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=BUILD_DEADLINE_S)
    except subprocess.TimeoutExpired:
        return f"{name} was not fetched and built within {BUILD_DEADLINE_S:g} s"
    if done.returncode == 0:
        return None
    fetching = ("dial tcp", "proxy", "ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "toolchain")
    if any(sign in done.stderr for sign in fetching):
        return f"{name} cannot be fetched: {done.stderr.strip().splitlines()[-1]}"
    pytest.fail(f"{name} does not build: {done.stderr[-2000:]}")


def go_program() -> str:
    CACHE.mkdir(parents=True, exist_ok=True)
    program = str(CACHE / "interop-go")
    reason = build("franz-go or sarama", "go", "build", "-buildvcs=false", "-o", program, ".", directory=HERE / "go")
    if reason is not None:
        pytest.skip(reason)
    return program


def node_program() -> str:
    directory = node_directory()
    reason = build("kafkajs", "npm", "install", "--no-audit", "--no-fund", "--no-package-lock", directory=directory)
    if reason is not None:
        pytest.skip(reason)
    return str(directory / "main.js")


@functools.cache
def node_directory() -> Path:
    """The directory for npm with a copy of the program.

    It is made only once, because members start while other members run the program.
    """
    directory = CACHE / "node"
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("main.js", "package.json"):
        shutil.copy(HERE / "node" / name, directory / name)
    return directory


class Program:
    """A client of another language, with the operations of ``ClientLibrary`` and as a group member."""

    def __init__(self, command: Callable[[], list[str]], codecs: Sequence[str] = CODECS) -> None:
        self.command = command
        self.codecs = codecs

    def _run(self, operation: str, bootstrap: str, topic: str, argument: str, stdin: bytes = b"") -> bytes:
        command = [*self.command(), operation, bootstrap, topic, argument]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=DEADLINE_S)
        assert done.returncode == 0, done.stderr.decode(errors="replace")[-2000:]
        return done.stdout

    def produce(self, bootstrap: str, topic: str, items: Sequence[Item], codec: str) -> None:
        self._run("produce", bootstrap, topic, codec, b"".join(b"%s\t%s\n" % item for item in items))

    def consume(self, bootstrap: str, topic: str, partitions: int, count: int) -> dict[int, list[Item]]:
        seen: dict[int, list[Item]] = {}
        for line in self._run("consume", bootstrap, topic, str(count)).splitlines():
            partition, key, value = line.split(b"\t")
            seen.setdefault(int(partition), []).append(Item(key, value))
        return seen

    def member(self, bootstrap: str, topic: str, group: str) -> Member:
        return Member([*self.command(), "member", bootstrap, topic, group])


PROGRAMS = {
    "franz-go": Program(lambda: [go_program(), "franz-go"]),
    "sarama": Program(lambda: [go_program(), "sarama"]),
    "kafkajs": Program(lambda: ["node", node_program()], codecs=["none", "gzip"]),
}


def expected(items: Sequence[Item]) -> dict[int, list[Item]]:
    """The items by the partition that murmur2 gives, in the order of writing."""
    placed: dict[int, list[Item]] = {}
    for item in items:
        placed.setdefault(positive_hash(item.key) % PARTITIONS, []).append(item)
    return placed


def items_for(codecs: Sequence[str]) -> dict[str, list[Item]]:
    return {
        codec: [Item(b"key-%d" % (number % 17), f"{codec} {number} ".encode() * 20) for number in range(60)]
        for codec in codecs
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_records_that_a_client_writes_are_read(cluster: Cluster, fresh_name: Callable[[str], str], name: str) -> None:
    program, topic = PROGRAMS[name], fresh_name("other-writes")
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    items = items_for(program.codecs)
    for codec, batch in items.items():
        program.produce(cluster.bootstrap, topic, batch, codec)
    written = [item for batch in items.values() for item in batch]
    for reader in (LIBRARIES["anabranch"], program):
        assert reader.consume(cluster.bootstrap, topic, PARTITIONS, len(written)) == expected(written)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_client_reads_the_records_of_other_clients(
    cluster: Cluster, fresh_name: Callable[[str], str], name: str
) -> None:
    program, topic = PROGRAMS[name], fresh_name("other-reads")
    create_topic(cluster.bootstrap, topic, PARTITIONS)
    items = items_for(program.codecs)
    written = []
    for writer in ("anabranch", "confluent-kafka"):
        for codec, batch in items.items():
            LIBRARIES[writer].produce(cluster.bootstrap, topic, batch, codec)
            written += batch
    assert program.consume(cluster.bootstrap, topic, PARTITIONS, len(written)) == expected(written)


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_group_of_three_survives_join_leave_and_crash(
    cluster: Cluster, fresh_name: Callable[[str], str], name: str
) -> None:
    program = PROGRAMS[name]
    program.command()  # built, or skipped
    topic, group = fresh_name("other-grouped"), fresh_name("other-group")
    start = functools.partial(program.member, cluster.bootstrap, topic, group)
    check_join_leave_and_crash(cluster.bootstrap, topic, [start] * 3)
