"""``ordered.delivery.retention.waits`` on a whole cluster: unread records of a slow group stay, up to a bound.

A topic is split while a group lags in the partition that loses keys. Then more than the retention time passes. If any
rule that keeps the records is switched off, the records are removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial

import pytest
import trio

from anabranch.broker.log.partition_log import PartitionLog
from anabranch.broker.log.retention import NOTHING_RETAINED, RetainLease
from anabranch.broker.replication.partition import Partition
from anabranch.broker.retained_offsets import RetainedOffsets
from anabranch.client.admin.admin import NewTopic
from anabranch.controller.resize import unread_expiry
from anabranch.protocol.types import TopicPartition
from sim.scheduler import run_deterministic
from tests.sim.faults import BROKERS, CONTROLLERS, wait_until_whole
from tests.sim.scenes import LIMIT_S, TOPIC, Scene
from tests.sim.sim_cluster import SimCluster

Patch = pytest.MonkeyPatch
LOSER = TopicPartition(TOPIC, 0)
GROUP = "slow"
RECORDS, READ = 6, 2
"""The number of the loser's records from before the split, and how many of them the group has read."""
ROUND_S, RETENTION_S, BOUND_S, CHECK_S = 5, 30, 120, 2
LEASE_S = 3 * ROUND_S
CONFIGS = {
    "retention.ms": str(RETENTION_S * 1000),
    "segment.bytes": "14",  # a segment for each record
    "ordered.delivery.retention.waits": "true",
    "ordered.delivery.retention.waits.max.ms": str(BOUND_S * 1000),
}
TRIES = 5
EXPIRED_S = RETENTION_S + LEASE_S + 3 * CHECK_S
"""After this time, records without a hold are removed."""


class Waiting(Scene):
    """A topic of one partition that is split while a group without members lags in it."""

    async def start(self, partitions: int = 1, replication_factor: int = 3) -> None:
        for controller in CONTROLLERS:
            await self.cluster.start_controller(controller, retention_warning_interval_ms=ROUND_S * 1000)
        self.broker_keys["log_retention_check_interval_ms"] = CHECK_S * 1000
        self.broker_keys["ordered_delivery_retention_waits_lease_ms"] = LEASE_S * 1000
        for broker in BROKERS:
            await self.restart(f"broker{broker}")
        async with self._admin() as admin:
            await admin.create_topics([NewTopic(TOPIC, partitions, replication_factor, CONFIGS)])
        await self.until(lambda: len(self.watch.tps()) == partitions)

    async def split_behind_the_group(self) -> None:
        for _ in range(RECORDS):
            error, _ = await self.produce("key", self.layout)
            assert error == ""
        await self.commit(READ)
        await self.resize(2)

    async def commit(self, offset: int) -> None:
        async with self._admin() as admin:
            await admin.alter_group_offsets(GROUP, {LOSER: offset})

    async def log_start(self) -> int:
        async with self._admin() as admin:
            return (await admin.list_offsets({LOSER: "earliest"}))[LOSER].offset

    async def begins_at(self, offset: int, within_s: float = EXPIRED_S) -> bool:
        """Wait for this log start. Returns False when the log start passes ``offset`` or does not reach it in time."""
        with trio.move_on_after(within_s):
            while (start := await self.log_start()) < offset:
                await trio.sleep(1)  # polls: virtual time
            return start == offset
        return False

    async def stays_at(self, offset: int, for_s: float = EXPIRED_S) -> bool:
        with trio.move_on_after(for_s):
            while await self.log_start() == offset:
                await trio.sleep(1)  # polls: virtual time
            return False
        return True

    async def hand_over(self) -> None:
        """Kill the leader, wait for another one, and restart the old leader with its log."""
        before = self.leader(0)
        await self.cluster.kill(before)
        assert await self.until(lambda: self.leader_or_none(0) not in ("", before))
        await self.restart(before)
        await wait_until_whole(self.cluster, LIMIT_S)


async def a_slow_group(scene: Waiting) -> AsyncIterator[tuple[str, bool]]:
    """Records survive a change of leader and of controller, and are removed once the group has read them."""
    await scene.split_behind_the_group()
    yield "held", await scene.begins_at(READ) and await scene.stays_at(READ, LEASE_S)
    await scene.hand_over()
    yield "held by another leader", await scene.stays_at(READ, LEASE_S)
    await scene.cluster.kill(await scene.cluster.active_controller())
    yield "held for another controller", await scene.stays_at(READ, 2 * LEASE_S)
    await scene.commit(RECORDS)
    yield "read", await scene.begins_at(RECORDS)


async def a_deleted_group(scene: Waiting) -> AsyncIterator[tuple[str, bool]]:
    await scene.split_behind_the_group()
    yield "held", await scene.begins_at(READ) and await scene.stays_at(READ, LEASE_S)
    async with scene._admin() as admin:
        await admin.delete_groups([GROUP])
    yield "deleted", await scene.begins_at(RECORDS)


async def a_group_that_never_reads(scene: Waiting) -> AsyncIterator[tuple[str, bool]]:
    await scene.split_behind_the_group()
    yield "held", await scene.begins_at(READ) and await scene.stays_at(READ, BOUND_S / 2)
    yield "ended by the bound", await scene.begins_at(RECORDS, BOUND_S)


async def no_controller(scene: Waiting) -> AsyncIterator[tuple[str, bool]]:
    """Without any controller the records are not held for ever."""
    await scene.split_behind_the_group()
    yield "held", await scene.begins_at(READ) and await scene.stays_at(READ, LEASE_S)
    for controller in CONTROLLERS:
        await scene.cluster.kill(f"controller{controller}")
    yield "forgotten", await scene.begins_at(RECORDS, LEASE_S + 3 * CHECK_S)


Scenario = Callable[[Waiting], AsyncIterator[tuple[str, bool]]]


def broken(scenario: Scenario, seed: int = 0) -> str:
    """Run a scenario. Returns its first failed expectation; "" when all are met."""

    async def run() -> str:
        async with trio.open_nursery() as nursery:
            cluster = SimCluster(nursery, seed)
            scene = Waiting(cluster, nursery)
            try:
                await scene.start()
                async for what, is_so in scenario(scene):
                    if not is_so:
                        return what
            finally:
                with trio.CancelScope(shield=True):
                    await cluster.end()
                nursery.cancel_scope.cancel()
        return ""

    return run_deterministic(seed, partial(run))


@pytest.mark.parametrize("scenario", [a_slow_group, a_deleted_group, a_group_that_never_reads, no_controller])
def test_awaited_records_stay_until_they_are_read_or_no_group_reads_them(scenario: Scenario) -> None:
    assert broken(scenario) == ""


# ---------------------------------------------------------------- each rule switched off


def no_hold_is_sent(patch: Patch) -> None:
    patch.setattr(unread_expiry, "send", lambda context, found: None)


def followers_remove_by_their_own_clocks(patch: Patch) -> None:
    whole = RetainedOffsets.retained_from

    def retained_from(self: RetainedOffsets, log: PartitionLog) -> int:
        partition = self.hosted(log.partition)
        return whole(self, log) if partition is not None and partition.is_leader else NOTHING_RETAINED

    patch.setattr(RetainedOffsets, "retained_from", retained_from)


def a_new_leader_has_no_lease(patch: Patch) -> None:
    whole = Partition.make_leader

    def make_leader(self: Partition, *arguments: object) -> None:
        whole(self, *arguments)  # type: ignore[arg-type]
        self.retain_lease = RetainLease(0, self.services.clock.monotonic())

    patch.setattr(Partition, "make_leader", make_leader)


@pytest.mark.parametrize(
    ("switch_off", "what"),
    [
        (no_hold_is_sent, "held"),
        (followers_remove_by_their_own_clocks, "held by another leader"),
        (a_new_leader_has_no_lease, "held by another leader"),
    ],
)
@pytest.mark.mutation
def test_records_expire_unread_when_a_rule_is_switched_off(
    switch_off: Callable[[Patch], None], what: str, monkeypatch: Patch
) -> None:
    """Several schedules are run: in some, a leader without a lease gets the hold before retention runs."""
    switch_off(monkeypatch)
    assert any(broken(a_slow_group, seed) == what for seed in range(TRIES))


def test_holds_that_do_not_end_keep_records_when_no_controller_is_left(monkeypatch: Patch) -> None:
    monkeypatch.setattr(unread_expiry, "ROUNDS", 10**6)
    assert broken(no_controller) == "forgotten"


@pytest.mark.mutation
def test_without_the_bound_a_group_that_never_reads_keeps_all_records(monkeypatch: Patch) -> None:
    monkeypatch.setitem(CONFIGS, "ordered.delivery.retention.waits.max.ms", str(10**9))
    assert broken(a_group_that_never_reads) == "ended by the bound"
