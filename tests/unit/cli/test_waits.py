"""Who waits for whom, by the example of the design: key 5 of a topic of four partitions, 4 -> 6 -> 4."""

from __future__ import annotations

from dataclasses import replace

import pytest

from anabranch.cli.waits import GroupOnTopic, Wait, questions, waits
from client.admin_types import PartitionEpochs

GROWN = GroupOnTopic(
    initial_partition_count=4,
    undeleted_partition_count=6,
    partitions=[0, 1, 2, 3, 4, 5],
    leader_epochs={0: 1, 1: 1, 2: 1, 3: 1, 4: 0, 5: 0},
    epochs={4: PartitionEpochs(9, 0, 0), 5: PartitionEpochs(9, 1, 0)},
    epoch_ends={(0, 0): 70, (1, 0): 100},
    positions={0: 70, 1: 60},
)
SHRUNK = replace(
    GROWN,
    undeleted_partition_count=4,
    leader_epochs={0: 2, 1: 2, 2: 2, 3: 2, 4: 1, 5: 1},
    epochs={4: PartitionEpochs(9, 0, 0, 0, 1, 30), 5: PartitionEpochs(9, 1, 0, 1, 1, 40)},
    epoch_ends={(0, 0): 70, (1, 0): 100, (0, 1): 90, (1, 1): 150},
    positions={0: 80, 1: 150, 4: 30, 5: 25},
)


def test_a_new_partition_waits_for_the_old_records_of_its_parent() -> None:
    assert waits(GROWN) == [Wait(5, 1, "split", 60, 100, True)]
    assert questions(GROWN) == {(0, 0), (1, 0)}


@pytest.mark.parametrize(
    ("change", "position", "until"),
    [
        ({"positions": {0: 70}}, None, 100),
        ({"leader_epochs": {**GROWN.leader_epochs, 1: 0}}, 60, None),
        ({"epochs": {4: GROWN.epochs[4], 5: PartitionEpochs(9, 1, -1)}}, 60, None),
        ({"epochs": {4: GROWN.epochs[4]}}, None, None),
        ({"epoch_ends": {(0, 0): 70}}, 60, None),
    ],
)
def test_what_is_not_known_blocks(change: dict, position: int | None, until: int | None) -> None:
    assert waits(replace(GROWN, **change)) == [Wait(5, 1, "split", position, until, True)]


def test_what_retention_removed_is_not_waited_for() -> None:
    assert waits(replace(GROWN, log_start_offsets={1: 100})) == []


def test_a_grandchild_waits_for_the_whole_chain_although_its_parent_is_empty() -> None:
    """Hole 5: partition 13 was split from 5, which nothing was ever written to, and 1 is not read to its threshold."""
    chain = replace(
        GROWN,
        undeleted_partition_count=14,
        partitions=list(range(14)),
        leader_epochs=dict.fromkeys(range(14), 2),
        epochs={**GROWN.epochs, **{p: PartitionEpochs(9, p - 8, 1) for p in range(6, 14)}},
        epoch_ends={**GROWN.epoch_ends, **{(p, 1): 0 for p in range(14)}},
        positions=dict.fromkeys(range(14), 0) | {0: 70, 1: 60},
    )
    assert [wait for wait in waits(chain) if wait.partition == 13] == [Wait(13, 1, "split", 60, 100, True)]


def test_a_survivor_waits_for_what_merges_into_it_once_it_is_there() -> None:
    assert waits(SHRUNK) == [Wait(1, 5, "merge", 25, 40, True)]
    before = replace(SHRUNK, positions={**SHRUNK.positions, 1: 149})
    assert waits(before) == [Wait(1, 5, "merge", 25, 40, False)]
    assert waits(replace(SHRUNK, positions={**SHRUNK.positions, 5: 40})) == []


def test_an_unsealed_partition_has_no_end_to_wait_for_yet() -> None:
    unsealed = {**SHRUNK.epochs, 5: PartitionEpochs(9, 1, 0, 1, 1, -1)}
    assert waits(replace(SHRUNK, epochs=unsealed)) == [Wait(1, 5, "merge", 25, None, True)]
