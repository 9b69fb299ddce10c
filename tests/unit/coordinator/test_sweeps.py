"""Removals in thousands of groups are split into slices for the event loop and the replicas."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from anabranch.broker.coordinator import expiry
from anabranch.broker.coordinator.consumer_offsets_records import encode
from anabranch.broker.coordinator.durable import OffsetRecord, StoredOffset
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.outcome import Turn
from anabranch.broker.log.slices import MAX_STEPS
from anabranch.protocol.types import TopicPartition
from tests.support.broker.loop_probe import LoopProbe
from tests.unit.coordinator.calls import others_have_run
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.fakes import WALL_START_MS, pass_time

pytestmark = pytest.mark.trio

GROUPS = 5_000
T0 = TopicPartition("t", 0)
COMMITTED_MS = WALL_START_MS - 7 * 24 * 3_600_000 + 60_000
"""An offset that was committed at this time is not expired yet, and expires before the first check."""


def committed(group: str) -> tuple[bytes, bytes | None]:
    return encode(OffsetRecord(group, T0, StoredOffset(1, commit_timestamp_ms=COMMITTED_MS)))


async def delete_the_topic(running: Running) -> None:
    running.topics.missing.add("t")
    running.coordinator.on_partitions_deleted({T0: -1})
    await others_have_run()


async def find_the_topic_deleted_after_loading(running: Running) -> None:
    running.topics.missing.add("t")
    running.coordinator.on_not_leader(0, 1)
    running.coordinator.on_partitions_deleted({T0: -1})
    await running.loaded(0, 2)


async def expire(running: Running) -> None:
    await pass_time(601)
    await others_have_run()


SWEEPS = [delete_the_topic, find_the_topic_deleted_after_loading, expire]


@pytest.fixture
def removed(monkeypatch: pytest.MonkeyPatch) -> LoopProbe:
    """Count the visited groups, and the groups with removals."""
    probe = LoopProbe()
    for name in ("remove_partitions", "expire_offsets"):
        real = getattr(expiry, name)

        def counted(turn: Turn, group: Group, *rest: object, real: Callable[..., None] = real) -> None:
            before = len(turn.out.writes)
            real(turn, group, *rest)
            probe.step(len(turn.out.writes) - before)

        monkeypatch.setattr(expiry, name, counted)
    return probe


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.__name__)
async def test_very_many_groups_are_swept_in_slices(
    sweep: Callable[[Running], Awaitable[None]], running: Running, removed: LoopProbe
) -> None:
    """Only one slice of one partition runs at a time."""
    for partition in range(3):
        running.log.records[partition] = [committed(f"g{partition}-{n}") for n in range(GROUPS)]
        await running.loaded(partition, 0)
    with removed.watching():
        await sweep(running)
    assert removed.steps == 3 * GROUPS and removed.most_steps <= MAX_STEPS
    assert [len(records) for records in running.log.records.values()] == [2 * GROUPS] * 3


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.__name__)
async def test_a_slice_is_replicated_before_the_next_one_is_decided(
    sweep: Callable[[Running], Awaitable[None]], running: Running
) -> None:
    """When a follower returns to the ISR, many writes are committed and completed at once."""
    running.log.records[0] = [committed(f"g{n}") for n in range(GROUPS)]
    await running.loaded(0, 0)
    running.log.hold = True
    await sweep(running)
    slices = 0
    while running.log.waiting:
        assert len(running.log.waiting) <= MAX_STEPS
        slices += 1
        for _ in range(len(running.log.waiting)):
            running.log.settle()
        await others_have_run()
    assert slices >= GROUPS // MAX_STEPS and len(running.log.records[0]) == 2 * GROUPS


async def test_a_sweep_of_one_partition_does_not_wait_for_the_replicas_of_another(running: Running) -> None:
    running.topics.offsets_partitions = 2
    at = running.coordinator.partition_for
    names = {at(name): name for name in (f"g{number}" for number in range(20))}
    running.log.records = {partition: [committed(name)] for partition, name in names.items()}
    for partition in names:
        await running.loaded(partition)
    running.log.hold = True
    await delete_the_topic(running)
    assert sorted(partition for partition, _, _ in running.log.waiting) == [0, 1]


async def test_a_sweep_ends_when_the_partition_loses_its_coordinator(running: Running) -> None:
    running.log.records[0] = [committed(f"g{n}") for n in range(GROUPS)]
    await running.loaded(0, 0)
    running.log.hold = True
    await delete_the_topic(running)
    written = len(running.log.waiting)
    running.coordinator.on_not_leader(0, 1)
    await others_have_run()
    assert len(running.log.waiting) == written < GROUPS
    running.coordinator.on_partitions_deleted({T0: -1})
    await others_have_run()
    assert len(running.log.waiting) == written
