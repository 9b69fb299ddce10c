"""Groups of member processes in any language, and the events of a group's test.

A member prints a JSON line for each record that it has processed ({"p": partition, "o": offset, "v": value}). After a
change of its assignment it prints its partitions ({"assigned": [partitions]}). It leaves the group on SIGTERM; SIGKILL
is a crash.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Producer

from anabranch.testing.processes import wait_for
from tests.support.controller.topics import create_topic

PARTITIONS = 6
DEADLINE_S = 60.0


class Member:
    """A group member's process, and its output so far."""

    listens_to_stderr = False

    def __init__(self, command: Sequence[str]) -> None:
        stderr = subprocess.STDOUT if self.listens_to_stderr else None
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.assigned: list[int] = []
        self.assignments: list[list[int]] = []
        self.seen: list[tuple[int, int, str]] = []
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            fields = self._fields(line)
            if fields is None:
                continue
            if "assigned" in fields:
                self.assigned = fields["assigned"]
                self.assignments.append(self.assigned)
            else:
                self.seen.append((fields["p"], fields["o"], fields["v"]))

    def _fields(self, line: str) -> dict[str, Any] | None:
        try:
            fields: dict[str, Any] = json.loads(line)
        except json.JSONDecodeError:
            return None  # a line cut short by SIGKILL
        return fields

    def end(self, number: signal.Signals) -> None:
        """Send a signal, wait for the end of the process and of its output."""
        self.process.send_signal(number)
        self.process.wait(DEADLINE_S)
        self.reader.join(DEADLINE_S)
        self.assigned = []


class KcatMember(Member):
    """kcat's balanced consumer, whose lines about rebalances are not JSON.

    When it stops, it commits a delivered record without printing it (a known fault of its ``consume_cb``).
    """

    listens_to_stderr = True

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        settings = ["auto.offset.reset=earliest", "session.timeout.ms=6000", "heartbeat.interval.ms=500"]
        settings += ["auto.commit.interval.ms=200"]
        command = ["kcat", "-b", bootstrap, "-G", group, "-u", "-f", '{"p":%p,"o":%o,"v":"%s"}\\n']
        super().__init__([*command, *[part for setting in settings for part in ("-X", setting)], topic])

    def _fields(self, line: str) -> dict[str, Any] | None:
        if " rebalanced " not in line:
            return super()._fields(line)
        numbers = re.findall(r"\[(\d+)\]", line) if "assigned:" in line else []
        return {"assigned": sorted(map(int, numbers))}


@contextmanager
def steady_producer(bootstrap: str, topic: str) -> Iterator[list[str]]:
    """Write a numbered record every few milliseconds. Yields the list of acknowledged values."""
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
    """Wait until ``count`` members together hold all partitions, and each member at least one."""

    def shared() -> bool:
        owned = [partition for member in members for partition in member.assigned]
        return sorted(owned) == list(range(PARTITIONS)) and sum(bool(member.assigned) for member in members) == count

    try:
        wait_for(shared, DEADLINE_S, f"{count} members share {PARTITIONS} partitions")
    except TimeoutError as error:
        raise AssertionError(f"{error}, but hold {[member.assigned for member in members]}") from error


def wait_for_progress(members: list[Member], records: int = 100) -> None:
    start = sum(len(member.seen) for member in members)
    wait_for(lambda: sum(len(member.seen) for member in members) >= start + records, DEADLINE_S, "records are read")


def check_join_leave_and_crash(
    bootstrap: str, topic: str, members_to_be: Sequence[Callable[[], Member]], *, dropped_by_clients: int = 0
) -> None:
    """Check a group of two members: a third member joins, then the first leaves, and the second crashes.

    The members read a topic that is created here and is written all the time. Every acknowledged record must be read,
    always at the same offset; at most ``dropped_by_clients`` may be missing. Records that are not committed at the
    crash may be read twice.
    """
    create_topic(bootstrap, topic, PARTITIONS)
    members = [start() for start in members_to_be[:2]]
    try:
        with steady_producer(bootstrap, topic) as acknowledged:
            wait_until_shared(members, 2)
            members.append(members_to_be[2]())
            wait_until_shared(members, 3)
            wait_for_progress(members)
            members[0].end(signal.SIGTERM)
            wait_until_shared(members, 2)
            wait_for_progress(members)
            members[1].end(signal.SIGKILL)
            wait_until_shared(members, 1)
            wait_for_progress(members)

        def everything_read() -> bool:
            seen = {value for member in members for _, _, value in member.seen}
            return len(set(acknowledged) - seen) <= dropped_by_clients

        wait_for(everything_read, DEADLINE_S, "every acknowledged record is read")
    finally:
        for member in members:
            if member.process.poll() is None:
                member.end(signal.SIGTERM)
    places: dict[tuple[int, int], str] = {}
    for member in members:
        for partition, offset, value in member.seen:
            assert places.setdefault((partition, offset), value) == value
    assert len(places) == len(set(places.values())), "a record is at two offsets"
