"""Stock producers write at full speed while their topic grows 4 -> 8 -> 16. They can follow these counts.

Each library in turn has an idempotent producer and one without idempotence, each with its own process and topic. The
results are in docs/clients.md. The pauses are printed, not asserted.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest

from anabranch.protocol.key_placement import place, positive_hash
from anabranch.testing.cluster import Cluster
from anabranch.testing.processes import wait_for
from tests.interop.flood import KEYS
from tests.interop.java_programs import java_command
from tests.interop.test_other_clients import go_program
from tests.support.controller.topics import create_topic
from tests.support.resize.resizes import resize

pytestmark = pytest.mark.interop

INITIAL = 4
COUNTS = (8, 16)
DEADLINE_S = 60.0
MODES = ("idempotent", "plain")


class Library(NamedTuple):
    """A library's program."""

    command: Callable[[], list[str]]
    waits_for_leaders: bool = True
    """False for a library that still partitions some records by the old count. The leaders refuse these records."""


def python_command(library: str) -> list[str]:
    return [sys.executable, "-m", "tests.interop.flood", library]


LIBRARIES_TRIED = {
    "librdkafka": Library(lambda: python_command("librdkafka")),
    "kafka-python": Library(lambda: python_command("kafka-python")),
    "aiokafka": Library(lambda: python_command("aiokafka")),
    "Java 3.9": Library(lambda: java_command("Flood", 3)),
    "Java 4": Library(lambda: java_command("Flood", 4)),
    "franz-go": Library(lambda: [go_program(), "franz-go", "flood"]),
    "sarama": Library(lambda: [go_program(), "sarama", "flood"], waits_for_leaders=False),
}


class Flood:
    """A producer's process. It writes until ``stop``, which returns its report."""

    def __init__(self, command: Sequence[str], bootstrap: str, topic: str, mode: str) -> None:
        self.topic = topic
        self.mode = mode
        self._lines: list[str] = []
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self._process = subprocess.Popen(
            [*command, bootstrap, topic, mode], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self._lines.extend(line.decode().strip() for line in self._process.stdout)

    def wait_until_it_writes(self, partitions: int) -> None:
        """Wait for an acknowledged record in every partition of its keys; the topic has ``partitions`` partitions."""
        keys = (f"{self.mode}-{number}".encode() for number in range(KEYS))
        expected = {f"partition {positive_hash(key) % partitions}" for key in keys}

        def is_there() -> bool:
            assert self._process.poll() is None, self._output()
            return expected <= set(self._lines)

        wait_for(is_there, DEADLINE_S, f"{self.mode}: it writes to {partitions} partitions")

    def begin_pause(self) -> None:
        """Make the producer measure its longest pause from now on."""
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def stop(self) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(DEADLINE_S) == 0, self._output()
        self._reader.join(DEADLINE_S)
        report: dict[str, Any] = json.loads(self._lines[-1])
        return report

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _output(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]


def written(bootstrap: str, topic: str) -> dict[bytes, list[tuple[int, int]]]:
    """Return ``{key: [(partition, round)]}`` in the order of a reader that reads parents before children.

    This is also the order of writing: a child gets its first record once its parent accepts no more records of the
    child's keys.
    """
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    settings = {"group.id": "unused", "enable.auto.commit": False, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    partitions = range(COUNTS[-1])
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
    read: dict[int, list[tuple[bytes, int]]] = {number: [] for number in partitions}
    unread, deadline = set(partitions), time.monotonic() + DEADLINE_S
    while unread:
        assert time.monotonic() < deadline, f"partitions {sorted(unread)} are not read to their end"
        for message in consumer.consume(500, timeout=0.5):
            if message.error() is None:
                read[message.partition()].append((message.key(), int(message.value())))
            elif message.error().code() == KafkaError._PARTITION_EOF:
                unread.discard(message.partition())
    consumer.close()
    found: dict[bytes, list[tuple[int, int]]] = {}
    for partition in partitions:
        for key, number in read[partition]:
            found.setdefault(key, []).append((partition, number))
    return found


def check(mode: str, report: dict[str, Any], records: dict[bytes, list[tuple[int, int]]]) -> list[str]:
    """Return the errors in the records of one producer."""
    wrong = []
    for key, found in records.items():
        if not key.startswith(mode.encode()):
            continue
        rounds = [number for _, number in found]
        refused = {int(number) for number in report["refused"].get(key.decode(), ())}
        hash_ = positive_hash(key)
        homes = [place(hash_, INITIAL, count) for count in (INITIAL, *COUNTS)]
        if any(partition not in homes for partition, _ in found):
            wrong.append(f"{key!r} is in {sorted({p for p, _ in found})}, not in {homes}")
        if lost := set(range(report["rounds"])) - refused - set(rounds):
            wrong.append(f"{key!r}: {len(lost)} acknowledged records are missing: {sorted(lost)[:5]}")
        if both := refused & set(rounds):
            wrong.append(f"{key!r}: {len(both)} refused records were written: {sorted(both)[:5]}")
        if len(rounds) != len(set(rounds)):
            wrong.append(f"{key!r}: {len(rounds) - len(set(rounds))} records were written twice")
        late = [(a, b) for a, b in itertools.pairwise(rounds) if b < a]
        if late:
            wrong.append(f"{key!r}: {len(late)} records come late: {late[:3]}, in {found[rounds.index(late[0][0])][0]}")
    return wrong


def print_logs(cluster: Cluster, before: dict[int, int], topics: Sequence[str]) -> None:
    """Print the brokers' log lines about the topics, and the warnings, since their logs had ``before`` characters."""
    wanted = (*topics, "warning", "error", "session", "connection")
    for broker in cluster.broker_ids:
        for line in cluster.broker_log(broker)[before[broker] :].splitlines():
            if any(word in line.lower() for word in wanted):
                print(f"broker {broker}: {line}")


@pytest.mark.parametrize("name", LIBRARIES_TRIED)
def test_a_doubling_loses_reorders_and_refuses_nothing(
    cluster: Cluster, fresh_name: Callable[[str], str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    library = LIBRARIES_TRIED[name]
    command = library.command()
    floods: list[Flood] = []
    logged = {broker: len(cluster.broker_log(broker)) for broker in cluster.broker_ids}
    try:
        for mode in MODES:
            topic = fresh_name(f"doubled-{mode}")
            create_topic(cluster.bootstrap, topic, INITIAL)
            floods.append(Flood(command, cluster.bootstrap, topic, mode))
        for flood in floods:
            flood.wait_until_it_writes(INITIAL)
        for count in COUNTS:
            for flood in floods:
                flood.begin_pause()
                resize(cluster.bootstrap, flood.topic, count)
            for flood in floods:
                flood.wait_until_it_writes(count)
        reports = {flood.mode: flood.stop() for flood in floods}
    finally:
        for flood in floods:
            flood.end()
    wrong = {}
    for flood in floods:
        mode, report = flood.mode, reports[flood.mode]
        refused = sum(map(len, report["refused"].values()))
        with capsys.disabled():
            print(f"{name}, {mode}: {report['rounds']} rounds, {refused} refused, pauses {report['pauses_ms'][1:]} ms")
        wrong[mode] = check(mode, report, written(cluster.bootstrap, flood.topic))
        if refused and library.waits_for_leaders:
            wrong[mode].append(f"{refused} refused: {next(iter(report['refused'].items()))}")
    if any(wrong.values()):
        print_logs(cluster, logged, [flood.topic for flood in floods])
    assert not any(wrong.values()), json.dumps(wrong, indent=1)
