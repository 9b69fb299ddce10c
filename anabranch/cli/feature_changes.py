"""The requests and the output of `anabranch features` (KIP-584, CLI tool usage). No IO."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from anabranch.client.admin.types import FeatureMetadata, FeatureUpdate
from anabranch.command_error import UsageError
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.request_kinds import UpgradeType


class LevelChange(NamedTuple):
    """A change of one feature to the level ``new``; None deletes it."""

    feature: str
    existing: int | None
    new: int | None

    @property
    def operation(self) -> str:
        """The operation in the KIP's words."""
        if self.new is None:
            return "[Delete]"
        if self.existing is None:
            return "[Add]"
        return "[Downgrade]" if self.is_downgrade else "[Upgrade]"

    @property
    def is_downgrade(self) -> bool:
        return self.new is None or (self.existing is not None and self.new < self.existing)


def parse_levels(entries: Iterable[str], separator: str) -> dict[str, int]:
    """The levels in entries such as ``feature=level``, by feature. Raises ``CommandError``."""
    levels: dict[str, int] = {}
    for entry in entries:
        name, found, level = entry.rpartition(separator)
        if not found or not name or not level.isdigit() or not 1 <= int(level) < 1 << 15:
            raise UsageError(f"{entry!r} is not FEATURE{separator}LEVEL with a level from 1 to {(1 << 15) - 1}")
        if name in levels:
            raise UsageError(f"feature {name} is named twice")
        levels[name] = int(level)
    return levels


def changes(known: FeatureMetadata, levels: Mapping[str, int], deleted: Iterable[str] = ()) -> list[LevelChange]:
    """The change of each feature, in the order of the names."""
    finalized = {name: levels.max for name, levels in known.finalized.items()}
    wanted: dict[str, int | None] = {**levels, **dict.fromkeys(deleted)}
    return [LevelChange(name, finalized.get(name), wanted[name]) for name in sorted(wanted)]


def upgrade_all(known: FeatureMetadata, release: Mapping[str, int]) -> list[LevelChange]:
    """Return the changes that raise each feature to the highest level that this tool knows."""
    raised = {
        name: level
        for name, level in release.items()
        if name not in known.finalized or known.finalized[name].max < level
    }
    return changes(known, raised)


def downgrade_all(known: FeatureMetadata, release: Mapping[str, int]) -> list[LevelChange]:
    """Return the changes that lower features to the highest levels of this tool, or delete features unknown to it."""
    lowered = {
        name: release[name]
        for name, finalized in known.finalized.items()
        if name in release and release[name] < finalized.max
    }
    return changes(known, lowered, [name for name in known.finalized if name not in release])


def updates(wanted: Iterable[LevelChange], downgrade: UpgradeType) -> dict[str, FeatureUpdate]:
    """The request for the changes; downgrades and deletions have the type ``downgrade``."""
    return {
        change.feature: FeatureUpdate(change.new or 0, downgrade if change.is_downgrade else UpgradeType.UPGRADE)
        for change in wanted
    }


def description(known: FeatureMetadata) -> list[str]:
    """A line for each feature that the broker supports or that is finalized."""
    lines = []
    for name in sorted(known.supported.keys() | known.finalized.keys()):
        supported, finalized = known.supported.get(name), known.finalized.get(name)
        lines.append(
            "\t".join(
                [
                    f"Feature: {name}",
                    f"SupportedMinVersion: {'-' if supported is None else supported.min}",
                    f"SupportedMaxVersion: {'-' if supported is None else supported.max}",
                    f"FinalizedMinVersionLevel: {'-' if finalized is None else finalized.min}",
                    f"FinalizedMaxVersionLevel: {'-' if finalized is None else finalized.max}",
                    f"Epoch: {'-' if known.epoch is None else known.epoch}",
                ]
            )
        )
    return lines


def outcome(change: LevelChange, error: KafkaError | None, *, dry_run: bool) -> str:
    """The line of one change."""
    existing = "-" if change.existing is None else change.existing
    new = "-" if change.new is None else change.new
    result = "OK" if error is None else f"{error.code.name}: {error.message}"
    return (
        f"{change.operation:>11} Feature: {change.feature}\tExistingFinalizedMaxVersion: {existing}"
        f"\tNewFinalizedMaxVersion: {new}\tResult: {'would be ' if dry_run and error is None else ''}{result}"
    )


def as_json(
    wanted: Iterable[LevelChange], failed: Mapping[str, Mapping[str, str]], *, dry_run: bool
) -> dict[str, object]:
    """All changes, and the errors of the failed changes, for programs."""
    rows = [
        {
            "feature": change.feature,
            "operation": change.operation.strip("[]").lower(),
            "existing": change.existing,
            "new": change.new,
        }
        for change in wanted
    ]
    return {"dry_run": dry_run, "changes": rows, "failed": dict(failed)}


def question(downgrades: Iterable[LevelChange]) -> str:
    """The question that the user confirms before levels go down."""
    lines = ["Please confirm before downgrading the following features:"]
    for number, change in enumerate(downgrades, 1):
        target = "deleted" if change.new is None else f"v{change.new} (new)"
        lines.append(f"{number}. {change.feature} from v{change.existing} (existing) to {target}")
    return "\n".join(lines)
