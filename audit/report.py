"""The report of an audit."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

REPORT_VERSION = 1
"""The version of ``docs/audit-report.schema.json``. It is raised when a field is removed or changes its meaning."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One offence: ``segment`` is a path below the audited directory, ``position`` the first byte of its batch."""

    topic: str
    partition: int
    offset: int | None
    segment: str | None
    position: int | None
    message: str

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition}"
        if self.offset is not None:
            where += f" offset {self.offset}"
        if self.segment is not None:
            where += f" in {self.segment}"
            if self.position is not None:
                where += f" at byte {self.position}"
        return f"{where}: {self.message}"


FAR_AHEAD_MS = 3_600_000
"""Kafka's default of ``message.timestamp.after.max.ms`` (KIP-1030)."""


class Status(StrEnum):
    """The result of a check, or of all checks."""

    PASSED = "passed"
    VIOLATED = "violated"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one rule: the number of things checked, the number of offences, and the first offences.

    ``unknown`` is the reason why some or all things could not be checked. ``undecided`` counts the things left out of
    ``counted`` for that reason, when they can be counted.
    """

    name: str
    counted: int
    violation_count: int = 0
    violations: list[Violation] = field(default_factory=list)
    unknown: str | None = None
    undecided: int = 0
    promise: str = ""

    @property
    def status(self) -> Status:
        if self.violation_count:
            return Status.VIOLATED
        return Status.PASSED if self.unknown is None else Status.UNKNOWN

    @property
    def passed(self) -> bool:
        return self.status is Status.PASSED

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "promise": self.promise,
            "status": self.status.value,
            "counted": self.counted,
            "undecided": self.undecided,
            "unknown": self.unknown,
            "violation_count": self.violation_count,
            "violations": [str(violation) for violation in self.violations],
            "offenders": [dataclasses.asdict(violation) for violation in self.violations],
        }


@dataclass(frozen=True, slots=True)
class Epoch:
    """The contents of one partition in one leader epoch. The layout is None when it is not known.

    ``records`` counts transaction markers too. Timestamps are milliseconds since 1970, of the batches' headers.
    """

    topic: str
    partition: int
    leader_epoch: int
    layout_version: int | None
    initial_partition_count: int | None
    undeleted_partition_count: int | None
    first_offset: int
    last_offset: int
    first_timestamp: int
    last_timestamp: int
    batches: int
    records: int
    bytes: int


@dataclass(frozen=True, slots=True)
class HotKey:
    """One of a topic's most frequent keys. ``records`` is a lower bound: a part counts only its most frequent keys."""

    topic: str
    key: bytes
    records: int

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self) | {"key": self.key.decode(errors="replace")}


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All checks of one directory, and the counts of its contents.

    ``epochs`` is in order of topic, partition and leader epoch. ``hot_keys`` begins with the most frequent.
    """

    directory: str
    topics: list[str]
    partitions: int
    segments: int
    batches: int
    records: int
    checks: list[Check]
    bytes: int = 0
    epochs: list[Epoch] = field(default_factory=list)
    hot_keys: list[HotKey] = field(default_factory=list)

    @property
    def decided(self) -> int:
        """The number of checks that covered everything or found a violation."""
        return sum(check.status is not Status.UNKNOWN for check in self.checks)

    @property
    def passed(self) -> bool:
        """Whether no check found a violation. Undecided checks do not matter here: see ``decided``."""
        return all(check.status is not Status.VIOLATED for check in self.checks)

    def ahead_of(self, now_ms: int) -> list[tuple[str, int, int]]:
        """(topic, partition, milliseconds) of the partitions with a record that is far ahead of ``now_ms``.

        ``retention.ms`` keeps such a record, and the segments after it.
        """
        ahead: dict[tuple[str, int], int] = {}
        for epoch in self.epochs:
            key = epoch.topic, epoch.partition
            ahead[key] = max(ahead.get(key, 0), epoch.last_timestamp - now_ms)
        return [(*key, by_ms) for key, by_ms in sorted(ahead.items()) if by_ms > FAR_AHEAD_MS]

    def exit_status(self, *, strict: bool = False) -> int:
        """1 with a violation; with ``strict``, also with an undecided check; 0 otherwise."""
        return 0 if self.passed and not (strict and self.decided < len(self.checks)) else 1

    def to_json(self) -> dict[str, Any]:
        """The report as values for ``json.dumps``, by ``docs/audit-report.schema.json``."""
        return {
            "version": REPORT_VERSION,
            "directory": self.directory,
            "passed": self.passed,
            "decided": self.decided,
            "topics": self.topics,
            "partitions": self.partitions,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "bytes": self.bytes,
            "checks": [check.to_json() for check in self.checks],
            "epochs": [dataclasses.asdict(epoch) for epoch in self.epochs],
            "hot_keys": [key.to_json() for key in self.hot_keys],
        }
