"""What an audit found."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Violation:
    """One offence and where it lies: ``segment`` below the audited directory, ``position`` its batch's first byte."""

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


@dataclass(frozen=True, slots=True)
class Check:
    """One rule: how many things it looked at, how many broke it, and the first of those.

    ``skipped`` says why the rule could not be applied; a skipped check neither passes nor fails the audit.
    """

    name: str
    counted: int
    violation_count: int = 0
    violations: list[Violation] = field(default_factory=list)
    skipped: str | None = None

    @property
    def passed(self) -> bool:
        return self.violation_count == 0

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "passed": self.passed,
            "skipped": self.skipped,
            "counted": self.counted,
            "violation_count": self.violation_count,
            "violations": [str(violation) for violation in self.violations],
            "offenders": [dataclasses.asdict(violation) for violation in self.violations],
        }


@dataclass(frozen=True, slots=True)
class AuditReport:
    """All checks over one directory; counts are what was found in the files."""

    directory: str
    topics: list[str]
    partitions: int
    segments: int
    batches: int
    records: int
    checks: list[Check]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def to_json(self) -> dict[str, Any]:
        """The report as values that ``json.dumps`` takes."""
        return {
            "directory": self.directory,
            "passed": self.passed,
            "topics": self.topics,
            "partitions": self.partitions,
            "segments": self.segments,
            "batches": self.batches,
            "records": self.records,
            "checks": [check.to_json() for check in self.checks],
        }
