"""What the delivery gate may still decide by when facts come late, or are about what is no more."""

from __future__ import annotations

from client.ordered_delivery.barriers import Missing, PartitionMap
from tests.layouts import topic, tp
from tests.unit.client.test_gate import FROM_1, Gate


def test_an_end_that_an_earlier_leader_told_does_not_count() -> None:
    """It was on its way when the metadata named another leader, after an unclean election perhaps."""
    gate = Gate(topic(4, 6, [1, 2, 1, 1, 0, 0]), 5)
    gate.map(5, FROM_1)
    gate.position(1, 100)
    gate.end(1, 0, 1, 100)
    assert gate.missing() == [(1, Missing.END_OFFSET)]


def test_an_end_in_the_partition_before_does_not_count() -> None:
    """3 splits from 1, which was removed and created again meanwhile."""
    info = topic(1, 4, [2, 1, 0, 0], version=2)
    gate = Gate(info, 3)
    gate.end(1, 0, 1, 0)
    gate.metadata(topic(1, 4, [2, 1, 0, 0], version=4, incarnations={1: 201, 3: 203}))
    gate.map(3, PartitionMap(203, created_from=1, epoch_after_creation=0))
    assert (1, Missing.END_OFFSET) in gate.missing()


def test_a_map_of_what_is_to_come_lifts_nothing_above_the_metadata() -> None:
    """The survivor's bump has raised the map already: its records of an epoch that nobody named here wait for that."""
    gate = Gate(topic(4, 4, [2, 3, 2, 2, 1, 1], version=2), 1)
    gate.map(5, PartitionMap(105, 1, 0, merged_into=1, epoch_before_deletion=4, sealed_offset=40))
    assert gate.cap(1) == 3


def test_keys_of_a_merge_nobody_was_told_of_wait_although_it_is_gone_and_another_is_pending() -> None:
    """2 -> 0 in epoch 2, 1 -> 0 in epoch 3: 2 is gone, and its keys come from epoch 3 on, after the callback."""
    gate = Gate(topic(1, 1, [4, 3, 2], version=3), 0)
    gate.map(1, PartitionMap(101, 0, 0, merged_into=0, epoch_before_deletion=3, sealed_offset=10))
    gate.map(2, PartitionMap(102, 0, 0, merged_into=0, epoch_before_deletion=2, sealed_offset=20))
    gate.gate.on_metadata({"t": topic(1, 1, [4, 3], version=3)})
    gate.gate.evaluate()
    assert gate.cap(0) == 2 and gate.gate.keys_assigned() == [tp(0)]
    gate.run()
    gate.run()
    assert gate.cap(0) == 3 and not gate.gate.keys_assigned()
