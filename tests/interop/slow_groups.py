"""Runs groups of slow, unmodified consumers while their topic is resized, and records what each group gets.

Every library has two groups. The first group has two members and begins at the earliest offset: it shows the order of
records. The second group has one member and begins at the latest offset: it shows which records are skipped. Members
hand out one record of a partition at a time, and continue when the test commands it (``slow_members``). So the test
needs no clock. A record overtakes another if it is handed out while an older record of its key is unprocessed.
"""

from __future__ import annotations

import heapq
import itertools
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import positive_hash
from anabranch.sync import Producer
from tests.interop.clients import Item
from tests.interop.stock_clients import PRODUCERS
from tests.support.resize.resizes import create_resizable, is_settled, resize

INITIAL = 4
COUNTS = (8, 16, 8)
MOST = max(COUNTS)
DEADLINE_S = 60.0
TICK_S = 0.1
ROUND_EVERY_S = 0.3
BACKLOG = 12
"""The number of rounds that a group is behind when its topic is resized."""
SLOW_S = 0.25
"""The time that each record of the backlog takes. A member joins a rebalance after a few records."""
PAUSE_S = 2.0
"""The time that members stop at the end of the backlog, in a run that expects no overtaking record."""


def keys(prefix: str, partitions: Iterable[int]) -> list[str]:
    """A key for each of these partitions of a topic with ``MOST`` partitions."""
    found: dict[int, str] = {}
    for number in range(1_000):
        key = f"{prefix}-{number}"
        found.setdefault(positive_hash(key.encode()) % MOST, key)
    return [found[partition] for partition in partitions]


STOCK_KEYS = keys("stock", range(MOST))
OWN_KEYS = keys("own", range(MOST // 2, MOST))
"""The keys of Anabranch's producer, which follows a shrink at once.

A stock producer follows a shrink only when the marked partitions are removed.
"""


class Load:
    """Writes numbered records of each key in turn with a stock producer and Anabranch's, until it is stopped."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.written: dict[str, list[tuple[int, int]]] = {key: [] for key in STOCK_KEYS + OWN_KEYS}
        """``(number, partition)`` of each acknowledged record."""
        self.refused: Counter[int] = Counter()
        """By the topic's target count: the number of refused records of the stock producer."""
        self.tried: Counter[int] = Counter()
        self.count = INITIAL
        self.rounds = 0
        self.hurries = threading.Event()
        self.failure: BaseException | None = None
        self._where = (bootstrap, topic)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._guarded)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as failure:
            self.failure = failure

    def _run(self) -> None:
        bootstrap, topic = self._where
        stock = PRODUCERS["librdkafka, murmur2_random"].open(bootstrap, topic)
        with Producer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True) as own:
            while not self._stop.is_set():
                self.hurries.wait(ROUND_EVERY_S)  # pause: leaves CPU time for the members
                value = b"%d" % self.rounds
                handles = [own.send(topic, key=key.encode(), value=value) for key in OWN_KEYS]
                for key in STOCK_KEYS:
                    outcome = stock.send(Item(key.encode(), value))
                    assert outcome.error in (ErrorCode.NONE, ErrorCode.POLICY_VIOLATION), outcome
                    self.tried[self.count] += 1
                    if outcome.error:
                        self.refused[self.count] += 1
                    else:
                        self.written[key].append((self.rounds, outcome.partition))
                for key, handle in zip(OWN_KEYS, handles, strict=True):
                    self.written[key].append((self.rounds, handle.result().partition))
                self.rounds += 1
        stock.close()

    def has_written_to(self, partitions: Iterable[int], since: int) -> bool:
        """Whether each of these partitions has a record of round ``since`` or a later one."""
        found = {partition for written in self.written.values() for number, partition in written if number >= since}
        return set(partitions) <= found

    def has_moved_below(self, count: int) -> bool:
        return all(written[-1][1] < count for written in self.written.values())

    def newest(self) -> dict[str, int]:
        return {key: written[-1][0] for key, written in self.written.items() if written}


@dataclass
class Group:
    """The records that a group has got. A record is ``(key, number)``."""

    library: str
    name: str
    reset: str
    members: tuple[int, ...]
    """The members' numbers in the library's process."""
    assigned: dict[int, list[int]] = field(default_factory=dict)
    owed_from: int = 0
    """The first round whose records may not be skipped."""
    handed_out: dict[str, list[int]] = field(default_factory=dict)
    processed: dict[str, set[int]] = field(default_factory=dict)
    passed: dict[str, int] = field(default_factory=dict)
    """By key: how many of its first records, without a gap, are processed or older than ``owed_from``."""
    open: dict[tuple[int, int], tuple[str, int]] = field(default_factory=dict)
    """The record in process, by member and partition."""
    overtaking: list[str] = field(default_factory=list)
    """Records that were handed out while an older record of their key was not processed."""
    slow: frozenset[int] = frozenset()
    """Slow partitions. A record of a round below ``until`` takes ``SLOW_S``; later records stay unprocessed."""
    until: int = 0
    stuck: str = ""

    def holds(self, partitions: int) -> bool:
        """Whether together the members hold all ``partitions`` partitions, and each member at least one."""
        held = [self.assigned.get(member, []) for member in self.members]
        return sorted(itertools.chain(*held)) == list(range(partitions)) and all(held)

    def has_processed(self, newest: Mapping[str, int]) -> bool:
        """Whether the group has processed these records, or later records of their keys."""
        return all(max(self.processed.get(key, ()), default=-1) >= number for key, number in newest.items())

    def has_processed_all(self, load: Load) -> bool:
        """Whether the group has processed every record that it may not skip, including overtaken records."""
        return all(self._oldest_unprocessed(key, written) is None for key, written in load.written.items())

    def hand_out(self, member: int, partition: int, key: str, number: int, load: Load) -> None:
        older = self._oldest_unprocessed(key, load.written[key])
        if older is not None and older < number:
            self.overtaking.append(f"{key}: {number} in {partition} before {older} is processed")
        self.handed_out.setdefault(key, []).append(number)
        self.open[member, partition] = key, number

    def _oldest_unprocessed(self, key: str, written: Sequence[tuple[int, int]]) -> int | None:
        processed = self.processed.setdefault(key, set())
        for index in range(self.passed.get(key, 0), len(written)):
            number = written[index][0]
            if number >= self.owed_from and number not in processed:
                return number
            self.passed[key] = index + 1
        return None


@dataclass(frozen=True)
class Verdict:
    """Records that a group got late, twice or not at all."""

    late: list[str]
    twice: list[str]
    skipped: list[str]
    overtaking: list[str]
    stuck: str
    records: int


def judge(group: Group, load: Load) -> Verdict:
    late, twice, skipped, records = [], [], [], 0
    for key, written in load.written.items():
        given = [number for number in group.handed_out.get(key, []) if number >= group.owed_from]
        records += len(given)
        late += [f"{key}: {b} after {a}" for a, b in itertools.pairwise(given) if b < a]
        twice += [f"{key}: {number}" for number, times in Counter(given).items() if times > 1]
        missing = [n for n, _ in written if n >= group.owed_from and n not in group.processed.get(key, ())]
        skipped += [f"{key}: {number}" for number in missing]
    return Verdict(late, twice, skipped, group.overtaking, group.stuck, records)


class Members:
    """The process of a library's members."""

    def __init__(
        self, library: str, command: Sequence[str], events: queue.Queue[tuple[str, dict[str, Any] | None]]
    ) -> None:
        self.library = library
        self._events = events
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed by end()
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(json.JSONDecodeError):  # a line cut short by end()
                self._events.put((self.library, json.loads(line)))
        self._events.put((self.library, None))

    def end_processing(self, member: int, partition: int) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # the reader notices the end of the process
            self.process.stdin.write(f"{member} {partition}\n")

    def leave(self) -> None:
        """Make all members leave."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def check_end(self) -> None:
        assert self.process.wait(DEADLINE_S) == 0, self.errors()

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout, self._errors):
            assert stream is not None
            with suppress(BrokenPipeError):
                stream.close()

    def errors(self) -> str:
        self._errors.seek(0)
        return self._errors.read().decode(errors="replace")[-2000:]


class Stuck(Exception):
    """A group makes no progress; the group's verdict has the reason."""


class Run:
    """The groups of some libraries at one topic: 4 -> 8 -> 16 -> 8 partitions."""

    def __init__(self, bootstrap: str, topic: str, load: Load) -> None:
        self._bootstrap, self._topic, self._load = bootstrap, topic, load
        self._events: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self._due: list[tuple[float, str, int, int, tuple[str, int]]] = []
        self.members: dict[str, Members] = {}
        self.groups: list[Group] = []

    @contextmanager
    def started(self, commands: Mapping[str, Sequence[str]]) -> Iterator[Run]:
        with ExitStack() as processes:
            for library, command in commands.items():
                names = {
                    f"{self._topic} {library} {reset}".replace(" ", "-"): reset for reset in ("earliest", "latest")
                }
                ordered, latest = (Group(library, name, reset, ()) for name, reset in names.items())
                ordered.members, latest.members, latest.owed_from = (0, 1), (2,), sys.maxsize
                self.groups += [ordered, latest]
                places = ",".join(f"{group.name}:{group.reset}" for group in (ordered, ordered, latest))
                members = Members(library, [*command, self._bootstrap, self._topic, places], self._events)
                processes.callback(members.end)
                self.members[library] = members
            yield self

    def _group(self, library: str, member: int) -> Group:
        return next(group for group in self.groups if group.library == library and member in group.members)

    def _take(self, library: str, fields: dict[str, Any] | None) -> None:
        if fields is None:
            for group in self.groups:
                if group.library == library and not group.stuck:
                    group.stuck = f"its process ended: {self.members[library].errors()}"
            return
        group, member = self._group(library, fields["m"]), fields["m"]
        if "assigned" in fields:
            group.assigned[member] = fields["assigned"]
            return
        group.hand_out(member, fields["p"], fields["k"], fields["n"], self._load)
        self._schedule(group, member, fields["p"])

    def _schedule(self, group: Group, member: int, partition: int) -> None:
        if partition not in group.slow:
            self._end_processing(group, member, partition)
        elif (record := group.open[member, partition])[1] < group.until:
            heapq.heappush(self._due, (time.monotonic() + SLOW_S, group.library, member, partition, record))

    def _end_processing(self, group: Group, member: int, partition: int) -> None:
        key, number = group.open.pop((member, partition))
        group.processed[key].add(number)
        self.members[group.library].end_processing(member, partition)

    def set_pace(self, groups: Iterable[Group], slow: Iterable[int] = (), until: int = 0) -> None:
        for group in groups:
            group.slow, group.until = frozenset(slow), until
            for member, partition in list(group.open):
                self._schedule(group, member, partition)

    def pump(self, is_there: Callable[[], bool], deadline_s: float | None = None) -> bool:
        """Continue the processing until ``is_there()`` is true. Returns False at the deadline."""
        deadline = time.monotonic() + (DEADLINE_S if deadline_s is None else deadline_s)
        while not is_there():
            if self._load.failure is not None:
                raise self._load.failure
            now = time.monotonic()
            if now > deadline:
                return False
            while self._due and self._due[0][0] <= now:
                _, library, member, partition, record = heapq.heappop(self._due)
                group = self._group(library, member)
                if group.open.get((member, partition)) == record:
                    self._end_processing(group, member, partition)
            try:
                self._take(*self._events.get(timeout=TICK_S))
                while True:
                    self._take(*self._events.get_nowait())
            except queue.Empty:
                pass
        return True

    def wait(self, is_there: Callable[[], bool], what: str) -> None:
        assert self.pump(is_there), f"not within {DEADLINE_S:g} s: {what}"

    def wait_for_groups(self, groups: Sequence[Group], has: Callable[[Group], bool], what: str) -> None:
        """Wait until ``has`` is true for each group. Raises ``Stuck`` at the deadline, or when a process has ended."""
        if not self.pump(lambda: any(group.stuck for group in groups) or all(map(has, groups))):
            for group in groups:
                if not has(group):
                    group.stuck = f"not within {DEADLINE_S:g} s: {what}; assigned {group.assigned}, open {group.open}"
        if stuck := [group for group in groups if group.stuck]:
            for group in self.groups:
                group.stuck = group.stuck or f"not run to the end, because another group is stuck: {stuck[0].name}"
            raise Stuck

    def in_background(self, act: Callable[[], Any]) -> None:
        """Run ``act()`` in a thread, and continue the processing until it has returned."""
        failures: list[BaseException] = []

        def run() -> None:
            try:
                act()
            except BaseException as failure:
                failures.append(failure)

        thread = threading.Thread(target=run)
        thread.start()
        self.wait(lambda: not thread.is_alive(), "the cluster answers")
        if failures:
            raise failures[0]

    def begin(self) -> None:
        """Wait until every group has got records of every key; from then on no record may be skipped."""
        self.wait_for_groups(self.groups, lambda group: group.holds(INITIAL), "it holds every partition")
        self.wait_for_groups(
            self.groups,
            lambda group: len(group.handed_out) == len(self._load.written),
            "it has got records of every key",
        )
        for group in self.groups:
            if group.reset == "latest":
                group.owed_from = self._load.rounds + 1

    def resize(self, before: int, count: int, *, overtakes: bool) -> None:
        """Resize while all groups read the losers slowly. Returns when every group has processed the losers.

        ``overtakes``: members stop until each group has got a newer record of a key before an older one.
        """
        grows = count > before
        losers = range(before) if grows else range(count, before)
        gainers = range(before, count) if grows else range(before - count)
        ordered = [group for group in self.groups if group.reset == "earliest"]
        latest = [group for group in self.groups if group.reset == "latest"]
        self.set_pace(self.groups, slow=losers)
        backlog, self._load.count = self._load.rounds + BACKLOG, count
        self._load.hurries.set()
        self.wait(lambda: self._load.rounds > backlog, "the groups are behind")
        self._load.hurries.clear()
        self.wait_for_groups(self.groups, lambda group: bool(group.open), "it processes a record")
        seen = {group.name: len(group.overtaking) for group in ordered}
        self.in_background(lambda: resize(self._bootstrap, self._topic, count, settle=False))
        self.wait(
            lambda: self._load.has_written_to(gainers, backlog + 1), f"gainers of {before} -> {count} are written to"
        )
        self.set_pace(latest)  # so that the group gets new partitions only once they have records
        if grows:
            self.set_pace(ordered, slow=losers, until=backlog)
            self.wait_for_groups(ordered, lambda group: group.holds(count), f"it holds {count} partitions")
        if overtakes:
            self.wait_for_groups(ordered, lambda group: len(group.overtaking) > seen[group.name], "a record overtakes")
        else:
            self.pump(lambda: False, PAUSE_S)
        self.set_pace(ordered)
        newest = self._load.newest()
        self.wait_for_groups(self.groups, lambda group: group.has_processed(newest), "it processes all records")
        if grows or not overtakes:
            self._settle(count)

    def _settle(self, count: int) -> None:
        """Wait until the topic has ``count`` partitions, and every key is written to one of them."""
        settled: list[bool] = []
        while not settled or not settled[-1]:
            self.in_background(lambda: settled.append(is_settled(self._bootstrap, self._topic, count)))
        self.wait(lambda: self._load.has_moved_below(count), f"every key is written to one of {count} partitions")

    def finish(self) -> None:
        self._load.stop()
        newest = self._load.newest()
        self.wait_for_groups(self.groups, lambda group: group.has_processed(newest), "it processes the last records")
        ordered = [group for group in self.groups if group.reset == "earliest"]
        self.wait_for_groups(ordered, lambda group: group.has_processed_all(self._load), "it processes all records")
        for members in self.members.values():
            members.leave()
        for members in self.members.values():
            members.check_end()


def run_groups(
    bootstrap: str, topic: str, commands: Mapping[str, Sequence[str]], configs: Mapping[str, str], *, overtakes: bool
) -> tuple[dict[tuple[str, str], Verdict], Load]:
    """Return the verdicts by (library, ``auto.offset.reset``). ``overtakes``: whether order is expected to break."""
    create_resizable(bootstrap, topic, INITIAL, configs)
    load = Load(bootstrap, topic)
    with Run(bootstrap, topic, load).started(commands) as run, load:
        with suppress(Stuck):
            run.begin()
            for before, count in zip((INITIAL, *COUNTS), COUNTS, strict=False):
                run.resize(before, count, overtakes=overtakes)
            run.finish()
        load.stop()
        return {(group.library, group.reset): judge(group, load) for group in run.groups}, load
