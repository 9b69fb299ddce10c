"""Leaders and ISRs after brokers come and go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller import elections
from zk_schemas.partition_state import Layout, PartitionState

EPOCH = 9


def state(leader: int, isr: list[int], leader_epoch: int = 4) -> PartitionState:
    return PartitionState(1, leader, leader_epoch, isr, layout=Layout(6, 2))


def test_the_first_live_replica_leads_a_new_partition() -> None:
    first = elections.first_state([3, 1, 2], {1, 2}, EPOCH)
    assert first == PartitionState(EPOCH, 1, 0, [1, 2])
    assert elections.first_state([3], {1, 2}, EPOCH) is None


def test_a_partition_that_comes_again_continues_above_its_last_leader_epoch() -> None:
    first = elections.first_state([1], {1}, EPOCH, last_leader_epoch=7)
    assert first is not None and first.leader_epoch == 8


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
def test_after_brokers_came_or_went(
    before: tuple[int, list[int]], live: set[int], electable: set[int], after: tuple[int, list[int]] | None
) -> None:
    changed = elections.after_broker_change(state(*before), [1, 2, 3], live, electable, EPOCH)
    if after is None:
        assert changed is None
    else:
        assert changed is not None
        assert (changed.leader, changed.isr) == after
        assert (changed.leader_epoch, changed.controller_epoch, changed.layout) == (5, EPOCH, Layout(6, 2))


@given(st.sets(st.integers(1, 5)), st.permutations([1, 2, 3, 4, 5]), st.data())
def test_a_leader_is_live_and_was_in_sync_and_a_second_look_changes_nothing(
    live: set[int], replicas: list[int], data: st.DataObject
) -> None:
    isr = data.draw(st.lists(st.sampled_from(replicas), min_size=1, unique=True))
    before = state(data.draw(st.sampled_from([*isr, -1])), isr)
    after = elections.after_broker_change(before, replicas, live, live, EPOCH) or before
    assert after.leader == -1 or (after.leader in live and after.leader in isr)
    assert (after.leader == -1) == (not live & set(isr))
    assert set(after.isr) <= set(isr) and after.isr
    assert elections.after_broker_change(after, replicas, live, live, EPOCH) is None


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
def test_before_broker_1_shuts_down(
    before: tuple[int, list[int]], replicas: list[int], after: tuple[int, list[int]] | None
) -> None:
    changed = elections.before_shutdown(state(*before), replicas, {2, 3}, 1, EPOCH)
    assert after == (None if changed is None else (changed.leader, changed.isr))


def test_a_failed_disk_is_like_a_broker_that_is_gone() -> None:
    alone = elections.after_log_dir_failure(state(1, [1]), 1, EPOCH)
    assert alone is not None and (alone.leader, alone.isr, alone.leader_epoch) == (-1, [1], 5)
    other = elections.after_log_dir_failure(state(1, [1, 2]), 1, EPOCH)
    assert other is not None and (other.leader, other.isr) == (2, [2])
