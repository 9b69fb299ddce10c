"""Stock consumers of a topic with ``ordered.delivery.stock.consumers=withhold`` keep the order of keys (Hold.tla).

A scenario returns its fault. With ``accept``, or with a rule switched off, the scenario must have a fault.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Collection
from functools import partial

import pytest
import trio

from anabranch.broker import stock_consumer_facts
from anabranch.broker.coordinator import readers
from anabranch.broker.coordinator.counted import Creation
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.ordered_resize import earlier_records, withheld_from_stock_consumers
from anabranch.ordered_resize.explain import Wait
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.ordered_resize.progress import Reader, ReadProgress
from anabranch.ordered_resize.withheld_from_stock_consumers import Requirements
from anabranch.protocol.types import TopicPartition
from sim.scheduler import run_deterministic
from tests.sim.group_scenarios import CHILD, GroupScene
from tests.sim.scenes import TOPIC
from tests.sim.sim_cluster import SimCluster
from tests.sim.stock_groups import LATEST, StockGroup

Scenario = Callable[[GroupScene, trio.Nursery], Awaitable[str]]
Patch = pytest.MonkeyPatch
WELL = ""
TRIES = 10
"""The number of seeds. Without the rule, at least one seed must fail."""
SOON_S = 10.0
"""Longer than any response takes, and shorter than any withhold lasts."""


async def _stage(scenario: Scenario, seed: int, rule: str, replicas: int, max_hold_ms: int) -> str:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        scene = GroupScene(cluster, nursery)
        try:
            await scene.start(1, replication_factor=replicas)
            await scene.configure(
                ordered_delivery_stock_consumers=rule,
                ordered_delivery_stock_consumers_max_withhold_ms=str(max_hold_ms),
            )
            return await scenario(scene, nursery)
        finally:
            with trio.CancelScope(shield=True):
                scene.stop()
                await cluster.end()
            nursery.cancel_scope.cancel()


def run(
    scenario: Scenario, *, rule: str = "withhold", replicas: int = 1, seed: int = 0, max_hold_ms: int = 600_000
) -> str:
    return run_deterministic(seed, partial(_stage, scenario, seed, rule, replicas, max_hold_ms))


async def judged(scene: GroupScene, group: StockGroup, values: Collection[str], limit_s: float = 60.0) -> str:
    """Give the group time to read all records. Returns the first fault in its deliveries; empty without a fault."""
    await scene.until(lambda: set(group.values) >= set(values) or not group.is_in_order(), limit_s)
    if not group.is_in_order():
        return f"{group.name}: out of order: {group.delivered}"
    if missing := sorted(set(values) - set(group.values)):
        return f"{group.name}: not delivered: {missing}"
    is_twice = not group.begins_again and len(group.values) > len(set(group.values))
    return f"{group.name}: delivered twice: {group.delivered}" if is_twice else WELL


async def split_behind(scene: GroupScene, busy: StockGroup, *others: StockGroup, after_one: bool = False) -> list[str]:
    """Split 0 while a user of ``busy`` processes a key's last record there; returns the key's values.

    The key's last value is in partition 1. All groups read both partitions. With ``after_one`` they have read an
    earlier value in partition 0.
    """
    key, groups, values = scene.key(1, 2), (*others, busy), list[str]()
    for group in groups:
        group.read(0)
    if after_one:
        values.append(await scene.write(key))
        assert await scene.until(lambda: all(values[0] in group.values for group in groups))
    busy.make_busy(0)
    values.append(await scene.write(key))
    await scene.resize(2)
    values.append(await scene.write(key))
    for group in groups:
        group.read(1)
    return values


# ---------------------------------------------------------------- the rule


async def a_slow_reader(scene: GroupScene, tasks: trio.Nursery) -> str:
    """A user is busy with a key's older record in the loser when the key's newer record is written to the gainer."""
    group = StockGroup(scene, tasks, "slow")
    values = await split_behind(scene, group)
    await scene.until(lambda: values[1] in group.values, SOON_S)
    group.go_on(0)
    return await judged(scene, group, values)


async def one_of_two_groups_is_slow(scene: GroupScene, tasks: trio.Nursery) -> str:
    fast, slow = (StockGroup(scene, tasks, name) for name in ("fast", "slow"))
    values = await split_behind(scene, slow, fast)
    await scene.until(lambda: values[1] in slow.values, SOON_S)
    slow.go_on(0)
    return "".join([await judged(scene, group, values) for group in (fast, slow)])


async def a_chain(scene: GroupScene, tasks: trio.Nursery) -> str:
    """1 -> 2 -> 4: the middle partition of the chain has no record of the key, and itself waits for partition 0."""
    group = StockGroup(scene, tasks, "g")
    key = scene.key(3, 4, of=1, before=2)
    group.read(0)
    group.make_busy(0)
    values = [await scene.write(key)]
    await scene.resize(2)
    group.read(1)
    await scene.resize(4)
    values.append(await scene.write(key))
    group.read(2, 3)
    await scene.until(lambda: values[1] in group.values, SOON_S)
    group.go_on(0)
    return await judged(scene, group, values)


def fetches_count(patch: Patch) -> None:
    """Fetched records count as processed."""
    original_readers = stock_consumer_facts.readers_in
    patch.setattr(
        stock_consumer_facts,
        "readers_in",
        lambda groups: (r._replace(positions=dict.fromkeys(range(9), 99)) for r in original_readers(groups)),
    )


def no_commit_holds_no_group(patch: Patch) -> None:
    original_readers = stock_consumer_facts.readers_in
    patch.setattr(
        stock_consumer_facts, "readers_in", lambda groups: (r for r in original_readers(groups) if r.positions)
    )


def the_first_group_opens(patch: Patch) -> None:
    original = Requirements.waits

    def waits(requirements: Requirements, progress: ReadProgress) -> list[Wait]:
        alone = (ReadProgress(progress.facts, [reader]) for reader in progress.readers)
        return min((original(requirements, of_one) for of_one in alone), key=len, default=[])

    patch.setattr(Requirements, "waits", waits)


def entries_of_the_partition_alone(patch: Patch) -> None:
    original = earlier_records.behind
    patch.setattr(
        earlier_records, "behind", lambda known, *epochs: original(known, *epochs) if EVERY_EPOCH in epochs else []
    )


@pytest.mark.parametrize("scenario", [a_slow_reader, one_of_two_groups_is_slow, a_chain])
def test_a_record_waits_for_the_older_ones_of_its_key(scenario: Scenario) -> None:
    assert run(scenario) == WELL
    assert "out of order" in run(scenario, rule="accept")


@pytest.mark.parametrize(
    ("scenario", "rule"),
    [
        (a_slow_reader, fetches_count),
        (a_slow_reader, no_commit_holds_no_group),
        (one_of_two_groups_is_slow, the_first_group_opens),
        (a_chain, entries_of_the_partition_alone),
    ],
)
@pytest.mark.mutation
def test_records_are_out_of_order_when_a_rule_of_the_cap_is_switched_off(
    scenario: Scenario, rule: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    rule(monkeypatch)
    assert "out of order" in run(scenario)


async def describe_a_slow_reader(scene: GroupScene, tasks: trio.Nursery) -> str:
    """The leaders' DescribeWithheld responses, which ``anabranch topics describe`` shows, during a wait and after."""
    group = StockGroup(scene, tasks, "slow")
    values = await split_behind(scene, group, after_one=True)
    assert not await scene.until(lambda: values[2] in group.values, SOON_S)
    withheld = await scene.withheld()
    assert not withheld[0].is_withheld and withheld[1].is_withheld
    (wait,) = withheld[1].waits
    assert wait[:5] == ("slow", 0, 0, 2, 1) and wait.waited_ms > 5_000 and not wait.is_let_go
    group.go_on(0)
    if problem := await judged(scene, group, values):
        return problem
    withheld = await scene.withheld()
    return WELL if not withheld[1].is_withheld and not withheld[1].waits else str(withheld)


def test_leaders_name_the_group_they_wait_for() -> None:
    assert run(describe_a_slow_reader) == WELL


# ---------------------------------------------------------------- leaders that change


async def a_leader_changes(scene: GroupScene, tasks: trio.Nursery) -> str:
    """The gainer gets a new leader, which no coordinator has responded to yet."""
    group = StockGroup(scene, tasks, "g")
    values = await split_behind(scene, group)
    before = scene.leader(1)
    await scene.cluster.kill(before)
    await scene.until(lambda: scene.leader_or_none(1) not in ("", before))
    await scene.until(lambda: values[1] in group.values, SOON_S)
    await scene.restart(before)
    group.go_on(0)
    return await judged(scene, group, values)


def a_new_leader_opens_at_once(patch: Patch) -> None:
    patch.setattr(withheld_from_stock_consumers, "ANY_GROUP", Reader("", positions=dict.fromkeys(range(9), 99)))


def test_a_new_leader_serves_nothing_new_before_every_coordinator_has_answered(monkeypatch: Patch) -> None:
    assert run(a_leader_changes, replicas=3) == WELL
    a_new_leader_opens_at_once(monkeypatch)
    assert "out of order" in run(a_leader_changes, replicas=3)


async def a_coordinator_changes(scene: GroupScene, tasks: trio.Nursery) -> str:
    group = StockGroup(scene, tasks, "g")
    values = await split_behind(scene, group, after_one=True)
    before = await scene.replace_coordinator()
    await scene.until(lambda: values[2] in group.values, SOON_S)
    group.go_on(0)
    await scene.restart(before)
    return await judged(scene, group, values)


def test_the_next_coordinator_continues_to_hold_records() -> None:
    assert run(a_coordinator_changes, replicas=3) == WELL


# ---------------------------------------------------------------- groups that start later


async def a_group_comes_later(scene: GroupScene, tasks: trio.Nursery) -> str:
    """The first group may already read the gainer. A later group reads the gainer before the loser."""
    first, later = StockGroup(scene, tasks, "first"), StockGroup(scene, tasks, "later")
    first.read(0)
    key = scene.key(1, 2)
    values = [await scene.write(key)]
    await scene.resize(2)
    values.append(await scene.write(key))
    first.read(1)
    assert await scene.until(lambda: set(first.values) == set(values))
    later.read(1)
    await scene.until(lambda: bool(later.values), SOON_S)
    later.read(0)
    return await judged(scene, later, values)


def a_group_begins_uncounted(patch: Patch) -> None:
    patch.setattr(readers, "MARGIN", 0)


def test_a_group_that_comes_later_is_counted_before_it_begins(monkeypatch: Patch) -> None:
    assert run(a_group_comes_later) == WELL
    a_group_begins_uncounted(monkeypatch)
    assert "out of order" in run(a_group_comes_later)


async def a_group_is_deleted(scene: GroupScene, tasks: trio.Nursery) -> str:
    """A group that lags is deleted, and its waits end. A new group with the same name is served as any other group."""
    first, second = StockGroup(scene, tasks, "first"), StockGroup(scene, tasks, "second")
    first.read(0)
    second.read(0)
    key = scene.key(1, 2)
    values = [await scene.write(key)]
    assert await scene.until(lambda: values[0] in first.values and values[0] in second.values)
    second.make_busy(0)
    values.append(await scene.write(key))
    await scene.resize(2)
    values.append(await scene.write(key))
    first.read(1)
    assert not await scene.until(lambda: values[2] in first.values, SOON_S)
    await second.delete()
    if problem := await judged(scene, first, values):
        return problem
    second.read(1)
    await scene.until(lambda: bool(second.values), SOON_S)
    second.read(0)
    return await judged(scene, second, values)


def test_a_group_that_was_deleted_is_forgotten_and_another_of_its_name_is_counted() -> None:
    assert run(a_group_is_deleted) == WELL


# ---------------------------------------------------------------- time


async def a_group_never_commits(scene: GroupScene, tasks: trio.Nursery) -> str:
    """After ``max.withhold.ms`` leaders stop waiting for the group. The other group still gets all records in order."""
    mute, other = StockGroup(scene, tasks, "mute", commits=False), StockGroup(scene, tasks, "other")
    for group in (mute, other):
        group.read(0)
    key = scene.key(1, 2)
    values = [await scene.write(key)]
    assert await scene.until(lambda: set(mute.values) == {values[0]} == set(other.values))
    await scene.resize(2)
    values.append(await scene.write(key))
    for group in (mute, other):
        group.read(1)
    return "".join([await judged(scene, group, values) for group in (mute, other)])


def test_a_group_that_never_commits_is_waited_for_up_to_max_hold_ms() -> None:
    assert run(a_group_never_commits, max_hold_ms=20_000) == WELL
    assert "not delivered" in run(a_group_never_commits)


# ---------------------------------------------------------------- beginnings


async def a_group_with_latest(scene: GroupScene, tasks: trio.Nursery) -> str:
    """Records are written to a new partition before its member knows of it."""
    group = StockGroup(scene, tasks, "latest", reset=LATEST)
    group.read(0)
    assert await scene.until(lambda: 0 in group.begun)
    key = scene.key(1, 2)
    values = [await scene.write(key)]
    assert await scene.until(lambda: values[0] in group.values)
    await scene.resize(2)
    values.append(await scene.write(key))
    group.read(1)
    return await judged(scene, group, values, 30)


async def a_revived_partition_keeps_its_commits(scene: GroupScene, tasks: trio.Nursery) -> str:
    """2 -> 1 -> 2: when the marked partition is revived, its remaining records are not skipped."""
    group = StockGroup(scene, tasks, "g")
    key = scene.key(1, 2)
    group.read(0)
    assert await scene.until(lambda: 0 in group.begun)
    await scene.resize(2)
    group.read(1)
    assert await scene.until(lambda: 1 in group.begun)
    group.make_busy(1)
    values = [await scene.write(key)]
    await scene.resize(1)
    values.append(await scene.write(key))
    await scene.resize(2)
    values.append(await scene.write(key))
    group.read(1)
    return await judged(scene, group, values)


def test_a_group_with_latest_skips_no_record_of_a_new_partition() -> None:
    assert run(a_group_with_latest) == WELL
    assert "not delivered" in run(a_group_with_latest, rule="accept")


def test_a_group_with_latest_skips_records_if_no_beginning_is_written(monkeypatch: Patch) -> None:
    monkeypatch.setattr(readers, "note_created", lambda *_: None)
    assert "not delivered" in run(a_group_with_latest)


def a_revived_partition_gets_a_beginning(patch: Patch) -> None:
    def revived(cache: MetadataCache) -> dict[TopicPartition, Creation]:
        is_there = cache.contains(TOPIC, 1) and cache.topics[TOPIC].layout_version == 3
        return {CHILD: Creation(1, cache.incarnation(TOPIC, 1))} if is_there else {}

    patch.setattr(MetadataCache, "take_created", revived)


def test_a_revived_partition_gets_no_beginning(monkeypatch: Patch) -> None:
    """The partition's readers have begun. A commit at the partition's end would skip their uncommitted records."""
    assert run(a_revived_partition_keeps_its_commits) == WELL
    a_revived_partition_gets_a_beginning(monkeypatch)
    assert "not delivered" in run(a_revived_partition_keeps_its_commits)


# ---------------------------------------------------------------- anything


async def anything(scene: GroupScene, tasks: trio.Nursery) -> str:
    """Random resizes with two groups of slow users, members that restart, and a third group that starts late.

    The late group may miss records that the other groups had read and that were removed before its first commit.
    """
    rng = random.Random(scene.cluster.rng.random())
    groups = [StockGroup(scene, tasks, name) for name in ("a", "b", "c")]
    readers_of = groups[:2]
    values: list[str] = []
    late_from = 0
    count = known = 1
    for group in readers_of:
        group.read(0)
    for number in range(5):
        busy = [(group, p) for group in readers_of for p in range(known) if rng.random() < 0.5]
        for group, p in busy:
            group.make_busy(p)
        values += [await scene.write(f"key-{rng.randrange(6)}") for _ in range(8)]
        count = rng.choice([n for n in (1, 2, 3, 4) if n != count])
        await scene.resize(count)
        values += [await scene.write(f"key-{rng.randrange(6)}") for _ in range(8)]
        new = range(known, max(count, known))
        known = max(count, known)
        for group in readers_of:
            group.read(*new)
            if rng.random() < 0.5:
                group.read(rng.randrange(known))
        if number == 2:
            readers_of = groups
            groups[2].read(*range(known))
            await scene.until(lambda: groups[2].has_committed)
            late_from = len(values)
        await trio.sleep(rng.uniform(0, 3))  # pause: virtual time
        for group, p in busy:
            group.go_on(p)
    expected = (values, values, values[late_from:])
    return "".join([await judged(scene, group, due) for group, due in zip(groups, expected, strict=True)])


@pytest.mark.parametrize("seed", range(3))
def test_slow_groups_keep_the_order_through_a_random_sequence_of_resizes(seed: int) -> None:
    assert run(anything, seed=seed) == WELL


@pytest.mark.mutation
def test_without_holding_a_random_sequence_of_resizes_breaks_the_order() -> None:
    assert any("out of order" in run(anything, seed=seed, rule="accept") for seed in range(TRIES))
