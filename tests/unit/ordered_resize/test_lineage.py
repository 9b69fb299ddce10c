"""Each rule of the lineage, by name."""

from __future__ import annotations

import pytest

from anabranch.ordered_resize import earlier_records, lineage, state_loads
from anabranch.ordered_resize.facts import Facts, Lineage
from anabranch.ordered_resize.state_loads import Loaded
from anabranch.zk_schemas.partition_state import LineageEntry as Entry
from tests.support.resize.resized_topic import Topic


def known(facts: Facts, partition: int, as_of: int, *entries: tuple[int, dict[int, int]], floor: int = -1) -> None:
    facts.on_lineage(partition, Lineage(as_of, floor, tuple(Entry(e, losers) for e, losers in entries)))


def split(position: int = 0) -> Facts:
    """Return facts: partition 1 was split from partition 0, and epoch 0 of partition 0 ended at offset 100."""
    facts = Facts()
    known(facts, 0, 1)
    known(facts, 1, 0, (0, {0: 0}))
    facts.on_end(0, 0, 100)
    facts.on_position(0, position)
    return facts


@pytest.mark.parametrize(("position", "cap"), [(0, -1), (99, -1), (100, 0), (101, 0)])
def test_a_gainer_waits_until_its_loser_was_processed(position: int, cap: int) -> None:
    assert earlier_records.cap(split(position), 1) == cap


def test_batches_below_an_entry_wait_for_no_partition() -> None:
    facts = Facts()
    known(facts, 0, 3, (2, {1: 0}))
    assert earlier_records.cap(facts, 0) == 1
    assert earlier_records.may_deliver(facts, 0, 1) and not earlier_records.may_deliver(facts, 0, 2)


def test_an_empty_blocked_loser_frees_no_gainer() -> None:
    """Model: off_lineage_recursion."""
    facts = split(position=50)
    known(facts, 1, 1, (0, {0: 0}))
    known(facts, 3, 0, (0, {1: 0}))
    facts.on_end(1, 0, 0)
    facts.on_position(1, 0)
    assert earlier_records.cap(facts, 3) == -1
    facts.on_position(0, 100)
    assert earlier_records.cap(facts, 3) == 0


def test_entries_newer_than_the_epoch_required_do_not_count() -> None:
    facts = split(position=100)
    known(facts, 0, 2, (2, {1: 0}))  # the merge comes after the split, so the split does not wait for the merge
    assert earlier_records.cap(facts, 1) == 0


def test_a_losers_lineage_older_than_the_required_epoch_does_not_count() -> None:
    """Model: off_lineage_fresh_enough."""
    facts = Facts()
    known(facts, 0, 2, (2, {1: 3}))
    known(facts, 1, 2)
    facts.on_end(1, 3, 10)
    facts.on_position(1, 10)
    assert earlier_records.cap(facts, 0) == 1
    known(facts, 1, 4)
    assert earlier_records.cap(facts, 0) == 2


def test_a_removal_counts_only_after_it_was_read() -> None:
    facts = Facts()
    known(facts, 0, 2, (2, {1: 0}))
    facts.on_lineage(1, None)
    facts.on_missing(1)
    assert earlier_records.cap(facts, 0) == 1
    facts.on_lineage(1, None, over=0)
    assert earlier_records.cap(facts, 0) == 2


def test_an_ended_incarnation_stays_over_when_the_partition_exists_again() -> None:
    facts = Facts()
    known(facts, 0, 2, (2, {1: 3}))
    facts.on_lineage(1, Lineage(5), over=4)
    facts.on_lineage(1, Lineage(4), over=-1)  # an older answer arrives later
    assert facts.lineages[1].as_of == 5
    assert earlier_records.cap(facts, 0) == 2


@pytest.mark.parametrize(("is_owned", "cap"), [(True, -1), (False, 0)])
def test_a_log_start_past_the_end_counts_only_while_no_member_owns_the_partition(is_owned: bool, cap: int) -> None:
    facts = split()
    facts.on_log_start(0, 100)
    facts.on_owner(0, is_owned=is_owned)
    assert earlier_records.cap(facts, 1) == cap


def test_the_end_of_a_later_epoch_also_counts_for_an_earlier_one() -> None:
    facts = split()
    facts.on_leader_change(0)  # the leader change drops the known end
    facts.on_position(0, 200)
    assert earlier_records.cap(facts, 1) == -1
    facts.on_end(0, 3, 150)
    assert earlier_records.cap(facts, 1) == 0


def test_a_passed_entry_stays_passed_in_a_new_generation_and_after_a_leader_change() -> None:
    facts = split(position=100)
    earlier_records.pass_satisfied(facts, 1)
    facts.on_new_generation()
    facts.on_leader_change(0)
    assert earlier_records.cap(facts, 1) == 0


def test_a_lowered_position_revokes_passed_entries_recursively() -> None:
    facts = split(position=100)
    known(facts, 1, 1, (0, {0: 0}))
    for p, parent in ((3, 1), (7, 3), (15, 7)):
        known(facts, p, 1, (0, {parent: 0}))
        facts.on_end(parent, 0, 10)
        facts.on_position(parent, 10)
    assert earlier_records.cap(facts, 15) == 1
    facts.on_position(0, 99)
    assert [earlier_records.cap(facts, p) for p in (1, 3, 7, 15)] == [-1] * 4


def test_an_unclean_election_lowers_the_end_without_a_stored_offset() -> None:
    facts = split(position=90)
    facts.on_leader_change(0)
    facts.on_end(0, 0, 80)
    assert earlier_records.cap(facts, 1) == 0


def test_pruning_drops_ended_losers_and_leaves_the_floor() -> None:
    entries = (Entry(2, {5: 0}), Entry(4, {4: 1, 5: 3}), Entry(6, {4: 3}))
    assert lineage.pruned(entries, -1, {5: 3}) == ((Entry(4, {4: 1}), Entry(6, {4: 3})), 4)
    assert lineage.pruned(entries, 9, {5: 0}) == (entries[1:], 9)
    assert lineage.pruned(entries, -1, {}) == (entries, -1)


@pytest.mark.parametrize(
    ("loaded", "batch", "due"),
    [
        (Loaded(), 1, False),
        (Loaded(), 2, True),
        (Loaded(1), 1, False),
        (Loaded(1), 2, True),
        (Loaded(2), 5, True),
        (Loaded(2), 4, False),
        (Loaded(5), 9, False),
    ],
)
def test_an_entry_newer_than_the_last_load_requires_a_load_before_batches_past_it(
    loaded: Loaded, batch: int, due: bool
) -> None:
    assert state_loads.is_load_due(Lineage(9, -1, (Entry(2, {1: 0}), Entry(5, {1: 1}))), loaded, batch) is due


def test_a_floor_above_the_cap_and_the_floor_of_the_last_load_requires_another_load() -> None:
    at_floor_4 = Lineage(9, 4, (Entry(3, {1: 0}),))
    assert state_loads.is_load_due(at_floor_4, Loaded(2, 3), 0)
    # The entry of epoch 3 keeps the cap below the floor.
    assert not state_loads.is_load_due(at_floor_4, Loaded(2, 4), 0)
    assert not state_loads.is_load_due(at_floor_4, Loaded(4, -1), 0)


def test_leader_epochs_after_creation_come_from_the_newest_entry_of_a_grow() -> None:
    entries = (Entry(0, {1: 0}), Entry(2, {1: 2}), Entry(3, {13: 1}))
    assert lineage.leader_epochs_after_creation(5, entries) == {1: 2}


def test_a_merge_is_found_even_if_a_later_grow_split_its_keys_off() -> None:
    """4 -> 16 -> 4 -> 8: partition 12 was merged into partition 0, and its keys were then split to partition 4."""
    known = {
        0: Lineage(4, -1, (Entry(3, {4: 1, 12: 0}),)),
        4: Lineage(2, -1, (Entry(0, {0: 0}), Entry(2, {0: 3}))),
        12: Lineage(1, -1, (Entry(0, {0: 0}),)),
    }
    merges = lineage.last_merges(known)
    assert merges[12] == lineage.Merge(up_to=0, into=0, epoch=3)
    assert 7 not in merges
    assert {p for p, own in known.items() if p and lineage.has_keys(own, merges.get(p))} == {4}


@pytest.mark.parametrize("counts", [(8, 16), (16, 4, 8), (13, 4, 8, 13, 5, 9), (8, 4, 6, 4, 8, 16, 5)])
def test_after_each_resize_the_partitions_in_use_have_keys_and_no_others(counts: tuple[int, ...]) -> None:
    topic = Topic(4)
    for count in counts:
        topic.ask(count)
        assert having_keys(topic) != set(range(count))
        topic.carry_out()
        assert having_keys(topic) == set(range(count))


def having_keys(topic: Topic) -> set[int]:
    known = {p: Lineage(state.leader_epoch, state.floor, state.lineage) for p, state in topic.states.items()}
    merges = lineage.last_merges(known)
    return {p for p, own in known.items() if lineage.has_keys(own, merges.get(p))}


def test_a_position_that_becomes_unknown_revokes_nothing() -> None:
    facts = split(position=100)
    earlier_records.pass_satisfied(facts, 1)
    facts.on_position(0, -1)
    assert earlier_records.cap(facts, 1) == 0
    other = split(position=100)
    assert earlier_records.cap(other, 1) == 0
    other.on_position(0, -1)
    assert earlier_records.cap(other, 1) == -1


def test_an_epoch_without_records_needs_no_position() -> None:
    facts = split()
    facts.on_position(0, -1)
    facts.on_end(0, 0, 0)
    assert earlier_records.cap(facts, 1) == 0


def test_an_owner_reported_again_changes_nothing() -> None:
    facts = split()
    facts.on_owner(0, is_owned=False)
    version = facts.version
    facts.on_owner(0, is_owned=False)
    assert facts.version == version
