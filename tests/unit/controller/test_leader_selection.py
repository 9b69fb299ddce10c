"""Leaders and ISRs after brokers start or stop."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.controller import leader_selection
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState

EPOCH = 9


def state(leader: int, isr: list[int], leader_epoch: int = 4) -> PartitionState:
    """Return a partition's state in a topic that was resized."""
    return PartitionState(
        1,
        leader,
        leader_epoch,
        isr,
        layout=PartitionLayout(6, 2),
        initial_partition_count=4,
        before=Before(PartitionLayout(4, 1), 2),
        lineage=(LineageEntry(0, {5: 1}), LineageEntry(3, {5: 3})),
        floor=0,
    )


def test_the_first_live_replica_leads_a_new_partition() -> None:
    first = leader_selection.first_state([3, 1, 2], {1, 2}, EPOCH, 6)
    assert first == PartitionState(EPOCH, 1, 6, [1, 2])
    assert leader_selection.first_state([3], {1, 2}, EPOCH, 6) is None


@pytest.mark.parametrize(
    ("before", "live", "electable", "after"),
    [
        ((1, [1, 2, 3]), {1, 2, 3}, {1, 2, 3}, None),
        ((1, [1, 2, 3]), {2, 3}, {2, 3}, (2, [2, 3])),
        ((1, [1, 2, 3]), {2, 3}, {3}, (3, [2, 3])),
        ((1, [1, 2, 3]), {1, 3}, {1, 3}, (1, [1, 3])),
        ((1, [1]), {2, 3}, {2, 3}, (-1, [1])),
        ((-1, [1]), {2, 3}, {2, 3}, None),
        ((-1, [1]), {1, 2}, {1, 2}, (1, [1])),
        ((1, [1]), {1}, set(), None),
    ],
)
def test_a_broker_change_replaces_a_dead_leader_and_shrinks_the_isr(
    before: tuple[int, list[int]], live: set[int], electable: set[int], after: tuple[int, list[int]] | None
) -> None:
    changed = leader_selection.after_broker_change(state(*before), [1, 2, 3], live, electable, EPOCH)
    if after is None:
        assert changed is None
    else:
        assert changed is not None
        assert (changed.leader, changed.isr) == after
        assert (changed.leader_epoch, changed.controller_epoch, changed.layout) == (5, EPOCH, PartitionLayout(6, 2))


@given(st.sets(st.integers(1, 5)), st.permutations([1, 2, 3, 4, 5]), st.data())
def test_a_leader_is_live_and_was_in_sync_and_a_second_election_changes_nothing(
    live: set[int], replicas: list[int], data: st.DataObject
) -> None:
    isr = data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    before = state(data.draw(st.sampled_from([*isr, -1])), isr)
    after = leader_selection.after_broker_change(before, replicas, live, live, EPOCH) or before
    assert after.leader == -1 or (after.leader in live and after.leader in isr)
    assert (after.leader == -1) == (not live & set(isr))
    assert set(after.isr) <= set(isr) and after.isr
    assert leader_selection.after_broker_change(after, replicas, live, live, EPOCH) is None


@pytest.mark.parametrize(
    ("before", "replicas", "after"),
    [
        ((1, [1, 2, 3]), [1, 2, 3], (2, [2, 3])),
        ((2, [1, 2, 3]), [1, 2, 3], (2, [2, 3])),
        ((1, [1]), [1, 2], None),
        ((1, [1]), [1], None),
        ((2, [2, 3]), [1, 2, 3], None),
    ],
)
def test_a_broker_hands_over_its_leaderships_before_it_shuts_down(
    before: tuple[int, list[int]], replicas: list[int], after: tuple[int, list[int]] | None
) -> None:
    changed = leader_selection.before_shutdown(state(*before), replicas, {2, 3}, 1, EPOCH)
    assert after == (None if changed is None else (changed.leader, changed.isr))


@pytest.mark.parametrize(
    ("before", "electable", "after"),
    [
        ((1, [1]), {2, 3}, (2, [2])),
        ((-1, [1]), {3}, (3, [3])),
        ((-1, [1, 2]), {2, 3}, (2, [2])),
        ((-1, [1]), set(), None),
        ((2, [1, 2]), {2, 3}, (2, [2])),
    ],
)
def test_an_unclean_leader_becomes_the_whole_isr_and_is_elected_only_if_no_isr_member_can_lead(
    before: tuple[int, list[int]], electable: set[int], after: tuple[int, list[int]] | None
) -> None:
    changed = leader_selection.after_broker_change(state(*before), [1, 2, 3], electable, electable, EPOCH, unclean=True)
    assert after == (None if changed is None else (changed.leader, changed.isr))


def test_replicas_that_are_being_added_lead_uncleanly_only_if_no_other_can() -> None:
    def leader(electable: set[int], adding: list[int], isr: list[int]) -> int | None:
        changed = leader_selection.after_broker_change(
            state(-1, isr), [1, 2, 3, 4], electable, electable, EPOCH, unclean=True, adding=adding
        )
        return None if changed is None else changed.leader

    assert leader({1, 2, 3}, [1, 2], [4]) == 3
    assert leader({1, 2}, [1, 2], [4]) == 1
    assert leader({1, 2, 3}, [1], [1, 4]) == 1, "clean: an added replica that is in sync has all records"


@given(st.sets(st.integers(1, 4)), st.sets(st.integers(1, 4)), st.permutations([1, 2, 3, 4]), st.data())
def test_an_unclean_election_is_needed_only_when_no_clean_one_gives_a_leader(
    live: set[int], stopping: set[int], replicas: list[int], data: st.DataObject
) -> None:
    isr = data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    before = state(data.draw(st.sampled_from([*isr, -1])), isr)
    electable = live - stopping
    clean = leader_selection.after_broker_change(before, replicas, live, electable, EPOCH) or before
    unclean = leader_selection.after_broker_change(before, replicas, live, electable, EPOCH, unclean=True) or before
    assert leader_selection.needs_unclean(before, replicas, live, electable) == (
        clean.leader == -1 and unclean.leader != -1
    )


@pytest.mark.parametrize(
    ("before", "restarted", "live", "after"),
    [
        ((1, [1, 2, 3]), {1}, {1, 2, 3}, (2, [2, 3], 5)),
        ((1, [1, 2, 3]), {2}, {1, 2, 3}, (1, [1, 3], 5)),
        ((1, [1]), {1}, {1, 2, 3}, (1, [1], 6)),
        ((1, [1, 2]), {1, 2}, {1, 2, 3}, (1, [1, 2], 6)),
        ((-1, [2, 1]), {1}, {1, 3}, (1, [1], 5)),
    ],
)
def test_a_broker_that_restarted_unnoticed_does_not_continue_in_the_epoch_that_it_led(
    before: tuple[int, list[int]], restarted: set[int], live: set[int], after: tuple[int, list[int], int]
) -> None:
    changed = leader_selection.after_unseen_restart(state(*before), [1, 2, 3], restarted, live, live, EPOCH)
    assert changed is not None
    assert (changed.leader, changed.isr, changed.leader_epoch) == after


@pytest.mark.parametrize(
    ("before", "electable", "leader"),
    [((2, [1, 2]), {1, 2}, 1), ((2, [2, 3]), {1, 2, 3}, None), ((2, [1, 2]), {2}, None), ((-1, [1]), {1}, 1)],
)
def test_the_preferred_leader_is_the_first_replica_in_sync(
    before: tuple[int, list[int]], electable: set[int], leader: int | None
) -> None:
    changed = leader_selection.preferred(state(*before), [1, 2, 3], electable, EPOCH)
    assert leader == (None if changed is None else changed.leader)
    assert changed is None or (changed.isr, changed.leader_epoch) == (before[1], 5)


@pytest.mark.parametrize(
    ("before", "target", "live", "after"),
    [
        ((1, [1, 2, 3, 4]), [4, 2], {1, 2, 3, 4}, (4, [2, 4])),
        ((1, [1, 2]), [1, 2], {1, 2}, (1, [1, 2])),
        ((1, [1, 2, 4]), [4, 2], {1, 2}, (2, [2, 4])),
        ((1, [1]), [4], {1, 4}, None),
        ((-1, [4]), [4], {1}, None),
    ],
)
def test_kafka_9212_every_step_of_a_reassignment_raises_the_leader_epoch(
    before: tuple[int, list[int]], target: list[int], live: set[int], after: tuple[int, list[int]] | None
) -> None:
    changed = leader_selection.reassigned(state(*before), target, live, live, EPOCH)
    assert after == (None if changed is None else (changed.leader, changed.isr))
    assert changed is None or changed.leader_epoch == 5


def test_an_offline_partition_keeps_its_isr_when_a_member_shuts_down() -> None:
    assert leader_selection.before_shutdown(state(-1, [1, 2]), [1, 2], {2}, 1, EPOCH) is None


def test_no_election_changes_the_fields_that_a_resize_wrote() -> None:
    """Rule 2: a loser's last epoch stays in the loser's znode until each gainer of the loser's keys has read it."""
    led, offline = state(1, [1, 2, 3]), state(-1, [2])
    replicas, live, some = [1, 2, 3], {1, 2, 3}, {2, 3}
    elected = [
        leader_selection.after_broker_change(led, replicas, some, some, EPOCH),
        leader_selection.after_broker_change(led, replicas, {1, 2}, {1, 2}, EPOCH),
        leader_selection.after_broker_change(offline, replicas, {3}, {3}, EPOCH, unclean=True),
        leader_selection.after_unseen_restart(led, replicas, [1], live, live, EPOCH),
        leader_selection.preferred(state(2, [1, 2]), replicas, live, EPOCH),
        leader_selection.reassigned(led, [2, 3], live, live, EPOCH),
        leader_selection.before_shutdown(led, replicas, some, 1, EPOCH),
        leader_selection.resigned(led, replicas, some, [2, 3], EPOCH),
        leader_selection.offline(led, EPOCH),
    ]
    for changed in elected:
        assert changed is not None and changed.leader_epoch == led.leader_epoch + 1
        assert changed.replace(leader=1, leader_epoch=4, isr=[1, 2, 3], controller_epoch=1) == led
