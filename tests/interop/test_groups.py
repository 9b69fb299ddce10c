"""Groups of three through each stock client: a join, a leave and a crash while a producer goes on writing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer

from anabranch.testing.processes import ProcessCluster, wait_for
from tests.interop.group_member import MEMBERS
from tests.topics import create_topic

PARTITIONS = 6
DEADLINE_S = 60.0

pytestmark = pytest.mark.interop


class Member:
    """A group member process and what it has said so far."""

    def __init__(self, library: str, bootstrap: str, topic: str, group: str) -> None:
        command = [sys.executable, "-m", "tests.interop.group_member", library, bootstrap, topic, group]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.assigned: list[int] = []
        self.seen: list[tuple[int, int, str]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                fields: dict[str, Any] = json.loads(line)
            except json.JSONDecodeError:
                continue  # a line cut short by SIGKILL
            if "assigned" in fields:
                self.assigned = fields["assigned"]
            else:
                self.seen.append((fields["p"], fields["o"], fields["v"]))

    def end(self, number: signal.Signals) -> None:
        """Send a signal, wait for the end of the process and of its output."""
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)
        self.reader.join(DEADLINE_S)
        self.assigned = []


@contextmanager
def steady_producer(bootstrap: str, topic: str) -> Iterator[list[str]]:
    """Writes a numbered record every few milliseconds; the list holds what was acknowledged."""
    acknowledged: list[str] = []
    stop = threading.Event()

    def run() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})

        def delivered(error: Any, message: Any) -> None:
            if error is None:
                acknowledged.append(message.value().decode())

        number = 0
        while not stop.wait(0.005):
            producer.produce(topic, str(number), str(number % 50), on_delivery=delivered)
            producer.poll(0)
            number += 1
        producer.flush(DEADLINE_S)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield acknowledged
    finally:
        stop.set()
        thread.join()


def wait_until_shared(members: list[Member], count: int) -> None:
    """Until ``count`` members hold all partitions between them, each at least one."""

    def shared() -> bool:
        owned = [partition for member in members for partition in member.assigned]
        return sorted(owned) == list(range(PARTITIONS)) and sum(bool(member.assigned) for member in members) == count

    wait_for(shared, DEADLINE_S, f"{count} members share {PARTITIONS} partitions: {[m.assigned for m in members]}")


def wait_for_progress(members: list[Member], records: int = 100) -> None:
    start = sum(len(member.seen) for member in members)
    wait_for(lambda: sum(len(member.seen) for member in members) >= start + records, DEADLINE_S, "records are read")


@pytest.mark.parametrize("library", MEMBERS)
def test_a_group_of_three_survives_join_leave_and_crash(
    cluster: ProcessCluster, fresh_name: Callable[[str], str], library: str
) -> None:
    topic, group = fresh_name("grouped"), fresh_name("group")

    create_topic(cluster.bootstrap, topic, PARTITIONS)
    members = [Member(library, cluster.bootstrap, topic, group) for _ in range(2)]
    try:
        with steady_producer(cluster.bootstrap, topic) as acknowledged:
            wait_until_shared(members, 2)
            members.append(Member(library, cluster.bootstrap, topic, group))
            wait_until_shared(members, 3)
            wait_for_progress(members)
            members[0].end(signal.SIGTERM)
            wait_until_shared(members, 2)
            wait_for_progress(members)
            members[1].end(signal.SIGKILL)
            wait_until_shared(members, 1)
            wait_for_progress(members)

        def everything_read() -> bool:
            return {value for member in members for _, _, value in member.seen} >= set(acknowledged)

        wait_for(everything_read, DEADLINE_S, "every acknowledged record is read")
    finally:
        for member in members:
            if member.process.poll() is None:
                member.end(signal.SIGTERM)
    places: dict[tuple[int, int], str] = {}
    for member in members:
        for partition, offset, value in member.seen:
            assert places.setdefault((partition, offset), value) == value
    assert len(places) == len(set(places.values())), "a record stands at two offsets"
