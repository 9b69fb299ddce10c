"""In random histories of resizes of a compacted topic no deleted key comes back, and each rule is needed.

``ANABRANCH_LINEAGE_SEEDS`` is the number of histories.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

import pytest

from anabranch.ordered_resize import kept_tombstones
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.zk_schemas.partition_state import LineageEntry
from tests.support.log.compacted_model import CompactedModel
from tests.support.resize.lineage_model import BrokenError

Mutation: TypeAlias = Callable[[pytest.MonkeyPatch], None]
Entries: TypeAlias = Iterable[LineageEntry]

SEEDS = int(os.environ.get("ANABRANCH_LINEAGE_SEEDS", "40"))
LIMIT = 1500
"""With a rule switched off, one of this number of histories must fail."""


def histories(first: int, count: int) -> tuple[list[str], int]:
    """Return the first failure in histories with these seeds, and the number of removed tombstones."""
    removed = 0
    for seed in range(first, first + count):
        model = CompactedModel(seed)
        try:
            model.run()
        except BrokenError as error:
            return [f"history {seed}: {error}"], removed
        removed += model.removed
    return [], removed


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_hole_24_a_new_reader_finds_the_latest_value_of_each_key(first: int) -> None:
    broken, removed = histories(first, min(20, SEEDS - first))
    assert not broken
    assert removed > 0, "no cleaner ever removed a tombstone"


def tombstones_go_after_their_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(kept_tombstones, "first_kept_epoch", lambda *_: EVERY_EPOCH)


def entries_of_shrinks_keep_nothing(patch: pytest.MonkeyPatch) -> None:
    """Only entries of children keep tombstones. Entries of survivors name descendants, and are ignored here."""
    patch.setattr(CompactedModel, "counts", lambda _, p, entry: max(entry.losers) < p)


def entries_of_grows_keep_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactedModel, "counts", lambda _, p, entry: max(entry.losers) > p)


def tombstones_newer_than_the_lineage_go(patch: pytest.MonkeyPatch) -> None:
    original = kept_tombstones.first_kept_epoch

    def at_any_age(entries: Entries, as_of: int, over: Mapping[int, int]) -> int:
        found = original(entries, as_of, over)
        return EVERY_EPOCH if found > as_of else found

    patch.setattr(kept_tombstones, "first_kept_epoch", at_any_age)


def any_ended_incarnation_counts(patch: pytest.MonkeyPatch) -> None:
    original = kept_tombstones.first_kept_epoch
    patch.setattr(
        kept_tombstones,
        "first_kept_epoch",
        lambda entries, as_of, over: original(entries, as_of, dict.fromkeys(over, EVERY_EPOCH)),
    )


def marked_partitions_are_removed_with_their_values(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactedModel, "drops_values", True)


def tombstones_of_moved_keys_are_left_by_any_layout(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CompactedModel, "moves_by_layout", False)


@pytest.mark.parametrize(
    ("rule", "first"),
    [
        (tombstones_go_after_their_time, 0),
        (entries_of_shrinks_keep_nothing, 0),
        (entries_of_grows_keep_nothing, 9),
        (tombstones_newer_than_the_lineage_go, 1),
        (any_ended_incarnation_counts, 86),
        (marked_partitions_are_removed_with_their_values, 14),
        (tombstones_of_moved_keys_are_left_by_any_layout, 57),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.mutation
def test_hole_24_a_rule_switched_off_is_noticed(rule: Mutation, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``first`` is a history that fails without the rule. After a change of the code another history may fail."""
    rule(monkeypatch)
    assert histories(first, 1)[0] or histories(0, LIMIT)[0]
