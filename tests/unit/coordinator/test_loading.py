"""A coordinator starts to lead: its first answers, the leader epoch of its writes, and the slices of its loads."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.coordinator.broker_services import KeyValue
from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.loaded_partition import LoadedPartition
from anabranch.broker.coordinator.loader import adopt_groups
from anabranch.broker.coordinator.service import GroupCoordinator
from anabranch.broker.log.slices import SLICE_S, TimeSlice
from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.calls import (
    commit,
    commit_error,
    fetched,
    group_record,
    heartbeat,
    join,
    live,
    offset_record,
    others_have_run,
    sync,
    value,
)
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.fakes import EveryTopic, LoopClock, MemoryLog, pass_time

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]

LOADING = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR


# ---------------------------------------------------------------- when a new leader may answer


async def test_a_new_leader_serves_once_every_loaded_record_is_committed(running: Running) -> None:
    """A record above the high watermark could be returned now and be lost with this leader."""
    running.log.records[0] = [group_record(), offset_record(5)]
    running.log.watermark = trio.Event()
    await running.loaded()
    assert fetched(running) == (-1, LOADING)
    assert commit_error(commit(running, 6)) == LOADING
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE
    running.log.watermark.set()
    await others_have_run()
    assert fetched(running) == (5, 0)
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE


async def test_a_leader_deposed_while_it_waits_for_the_watermark_serves_nothing(running: Running) -> None:
    running.log.records[0] = [offset_record(5)]
    running.log.watermark = trio.Event()
    await running.loaded(0, 1)
    running.coordinator.on_not_leader(0, 2)
    running.log.watermark.set()
    await others_have_run()
    assert fetched(running) == (-1, NOT_COORDINATOR)


async def test_sessions_start_at_the_end_of_the_load(running: Running) -> None:
    running.log.records[0] = [group_record()]
    running.log.watermark = trio.Event()
    await running.loaded()
    await pass_time(60)  # far beyond the member's session of ten seconds
    running.log.watermark.set()
    await pass_time(9.9)
    assert heartbeat(running, "m-1", 3) == ErrorCode.NONE
    await pass_time(10.1)
    assert heartbeat(running, "m-1", 3) == ErrorCode.UNKNOWN_MEMBER_ID


STEPS = 12
"""More turns of the event loop than the load in these tests takes."""


@pytest.mark.parametrize("step", range(STEPS))
@pytest.mark.parametrize("event", ["unload", "next epoch", "later epoch", "close"])
@pytest.mark.parametrize("groups", [10, 300], ids=["one slice", "two slices"])
async def test_an_event_at_every_step_of_a_load_takes_effect(
    running: Running, groups: int, event: str, step: int
) -> None:
    """KAFKA-10614, HOTFIX #2436: no event is lost during a load."""
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(groups)]
    running.log.epochs[0] = 5
    running.coordinator.on_leader(0, 5)
    for _ in range(step):
        await trio.lowlevel.checkpoint()
    if event == "unload":
        running.coordinator.on_not_leader(0, 6)
    elif event == "close":
        running.coordinator.close()
    elif event == "next epoch":
        running.log.epochs[0] = 6
        running.coordinator.on_leader(0, 6)
    else:
        running.log.records[0].append(offset_record(99, "g7"))  # a record of the leader in between
        running.log.epochs[0] = 7
        running.coordinator.on_leader(0, 7)
    await others_have_run()
    gone = {"unload": NOT_COORDINATOR, "close": ErrorCode.COORDINATOR_NOT_AVAILABLE}.get(event)
    assert commit_error(commit(running, 1, group="simple")) == (gone or ErrorCode.NONE)
    assert fetched(running, "g7") == ((-1, gone) if gone else (99 if event == "later epoch" else 7, 0))
    assert running.log.reads <= (2 if event == "later epoch" else 1)
    assert live(LoadedPartition) == (0 if gone else 1)


async def test_a_load_takes_fewer_turns_than_the_tests_assume(running: Running) -> None:
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(300)]
    running.coordinator.on_leader(0, 5)
    leadership: Any = running.coordinator._leadership
    steps = 0
    while leadership.is_loading:
        await trio.lowlevel.checkpoint()
        steps += 1
    assert 5 < steps < STEPS


# ---------------------------------------------------------------- every append names its leader epoch


async def test_a_coordinator_writes_only_in_the_epoch_it_loaded_in(running: Running) -> None:
    await running.loaded(0, 5)
    joining = join(running)
    await pass_time(3.001)
    member_id = value(joining).member_id
    running.log.epochs[0] = 7  # the broker leads in a later epoch, and the coordinator does not know it
    assert commit_error(commit(running, 1, group="simple")) == NOT_COORDINATOR
    assert value(sync(running, member_id, 1)).error_code == NOT_COORDINATOR
    assert running.log.records.get(0, []) == []
    await running.loaded(0, 7)
    assert commit_error(commit(running, 1, group="simple")) == ErrorCode.NONE


@pytest.mark.parametrize("held_by", ["read", "watermark"])
async def test_a_leader_that_continues_during_a_load_serves_in_the_newest_epoch(running: Running, held_by: str) -> None:
    held = trio.Event()
    if held_by == "read":
        running.log.gate = held
    else:
        running.log.watermark = held
    await running.loaded(0, 5)
    running.log.epochs[0] = 6
    await running.loaded(0, 6)
    held.set()
    await others_have_run()
    assert running.log.reads == 1
    assert commit_error(commit(running, 1)) == ErrorCode.NONE


# ---------------------------------------------------------------- loads share the loop


class CountingLog(MemoryLog):
    """Counts the records that are read between two turns of another task."""

    def __init__(self) -> None:
        super().__init__()
        self.since_others_ran = 0
        self.most = 0

    async def read_all(self, partition: int, leader_epoch: int) -> AsyncIterator[Iterable[KeyValue]]:
        yield self._counted(self.records.get(partition, []))

    def _counted(self, records: list[KeyValue]) -> Iterator[KeyValue]:
        for record in records:
            self.since_others_ran += 1
            self.most = max(self.most, self.since_others_ran)
            yield record


async def others_run(log: CountingLog) -> None:
    while True:
        await trio.lowlevel.checkpoint()
        log.since_others_ran = 0


async def test_fifty_loads_at_once_block_the_event_loop_no_longer_than_one(nursery: Any) -> None:
    """Each load pauses after a slice, but fifty slices in one turn of the loop would block it for long."""
    log = CountingLog()
    coordinator = GroupCoordinator(GroupConfig(), LoopClock(), random.Random(1), log, EveryTopic())
    nursery.start_soon(coordinator.run)
    leadership = coordinator._leadership
    for partition in range(50):
        log.records[partition] = [offset_record(n) for n in range(600)]
        coordinator.on_leader(partition, 0)
    with trio.CancelScope() as others:
        async with trio.open_nursery() as inner:
            inner.start_soon(others_run, log)
            while leadership.is_loading:
                await trio.lowlevel.checkpoint()
            others.cancel()
    assert len(leadership.loaded) == 50
    assert log.most <= 2 * 256  # a slice ends after 256 steps if no time passes


async def test_one_partition_that_waits_for_its_watermark_holds_up_no_other(running: Running) -> None:
    running.log.watermark = trio.Event()
    await running.loaded(0, 1)
    running.log.watermark = None
    running.topics.offsets_partitions = 2
    await running.loaded(1, 1)
    leadership: Any = running.coordinator._leadership
    assert list(leadership.loaded) == [1]


async def test_groups_are_built_in_slices(running: Running) -> None:
    running.log.records[0] = [offset_record(n, f"g{n}") for n in range(100)]
    await running.loaded()
    leadership: Any = running.coordinator._leadership
    loaded = leadership.loaded[0]
    loaded.shard.groups.clear()
    turns = 0

    class SlowClock:
        time = 0.0

        def monotonic(self) -> float:
            self.time += SLICE_S
            return self.time

        def now_ms(self) -> int:
            return 0

    async def other() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with trio.open_nursery() as inner:
        inner.start_soon(other)
        await adopt_groups(loaded, TimeSlice(SlowClock()))
        inner.cancel_scope.cancel()
    assert len(loaded.shard.groups) == 100
    assert turns >= 50
