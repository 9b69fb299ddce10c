"""A controller dies at any point of a resize, and its successor finishes from the znodes alone.

Each run stops the controller after one of its writes, or after one of its requests has arrived. No rule of ordered
resize is broken. Multis are as small as possible, so that the controller can die between any two writes. Another
disturbance is an election between any two writes. The election raises a leader epoch, and must not count as a step of
the resize (holes 2 and 3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import trio

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.zk_schemas import paths
from tests.sim import resize_mutations as off
from tests.support.controller.controller_cluster import ControllerCluster, Log
from tests.support.resize import lineage_mutations as rules_off
from tests.support.resize.resize_rules import TOPIC, Rules, alter, creation, finished, layouts_sent

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
BROKERS = (1, 2, 3)
OPERATIONS = {"grow": (4, 6), "shrink": (4, 6, 4), "merge-two-into-one": (1, 5, 1), "revive": (2, 4, 2, 5)}
"""For each operation the partition counts: at the creation, of earlier resizes, and of the tested resize.

Partitions that the tested resize marks drain at once. Partitions that were marked before do not.
"""
MOST_POINTS = 60


@pytest.fixture(autouse=True)
def small_multis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each bump is a multi of its own."""
    monkeypatch.setattr("anabranch.controller.store.MAX_OPERATIONS", 1)


async def start(nursery: trio.Nursery, operation: str) -> tuple[ControllerCluster, Rules]:
    """Two controllers, three brokers, and a topic with the partitions that the operation begins with."""
    created, *earlier, after = OPERATIONS[operation]
    cluster = ControllerCluster(nursery)
    rules = Rules(cluster)
    await cluster.start_controller(1000)
    await cluster.until(cluster.active)
    await cluster.start_controller(1001)
    for broker_id in BROKERS:
        await cluster.start_broker(broker_id)
    await cluster.until(lambda: all(broker.sent(UpdateMetadataRequest) for broker in cluster.brokers.values()))
    await cluster.until(lambda: len(cluster.brokers[1].sent(UpdateMetadataRequest)[-1].live_brokers) == len(BROKERS))
    await cluster.request(creation(created, *BROKERS))
    rules.watch(1000)
    rules.watch(1001)
    for count in earlier:
        for broker in cluster.brokers.values():
            broker.logs = {(TOPIC, index): Log(7, 7, 0) for index in range(count, 8)}
        assert (await cluster.request(alter(count))).results[0].error_code == 0
    for broker in cluster.brokers.values():
        broker.logs = {(TOPIC, index): Log(7, 7, 7) for index in range(after, 8)}
    rules.writes = 0
    return cluster, rules


async def resize(cluster: ControllerCluster, nursery: trio.Nursery, operation: str) -> None:
    """Request the resize; if the controller dies before its response, request it from the successor."""
    count = OPERATIONS[operation][-1]

    async def ask() -> None:
        while True:
            for controller_id in (1000, 1001):
                with contextlib.suppress(Exception):  # a client may get any error from a controller that dies
                    answer = await cluster.request(alter(count), controller_id=controller_id)
                    if answer.results[0].error_code == ErrorCode.NONE:
                        return
            await trio.sleep(0.1)  # polls: virtual time

    nursery.start_soon(ask)
    await cluster.until(lambda: finished(cluster, count), within_s=120)


def broken(cluster: ControllerCluster, rules: Rules) -> list[str]:
    sent = layouts_sent(cluster).items()
    return rules.broken + [f"{key} was sent with {layouts}" for key, layouts in sent if len(layouts) > 1]


def disturb_at_write(rules: Rules, number: int, disturb: Callable[[], None]) -> trio.Event:
    done = trio.Event()

    def after(write: int) -> None:
        if write == number:
            done.set()
            disturb()

    rules.after_write = after
    return done


def disturb_at_request(cluster: ControllerCluster, number: int, disturb: Callable[[], None]) -> trio.Event:
    done, seen = trio.Event(), 0

    def received(_broker: Any, request: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == number:
            done.set()
            disturb()

    cluster.received = received
    return done


Arm = Callable[[ControllerCluster, Rules, int, trio.Nursery], trio.Event]
"""Prepares a disturbance at the n-th point of a resize. The event is set after the disturbance."""


def kill_at_write(cluster: ControllerCluster, rules: Rules, number: int, _nursery: trio.Nursery) -> trio.Event:
    return disturb_at_write(rules, number, cluster.vacate)


def kill_at_request(cluster: ControllerCluster, _rules: Rules, number: int, _nursery: trio.Nursery) -> trio.Event:
    return disturb_at_request(cluster, number, cluster.vacate)


async def bounce(cluster: ControllerCluster) -> None:
    """Stop broker 1, which leads all partitions, and start it again once broker 2 has been informed."""
    cluster.brokers[1].leave()
    await cluster.until(lambda: len(cluster.brokers[2].sent(UpdateMetadataRequest)[-1].live_brokers) == 2)
    await cluster.brokers[1].register()


def bounce_at_write(cluster: ControllerCluster, rules: Rules, number: int, nursery: trio.Nursery) -> trio.Event:
    return disturb_at_write(rules, number, lambda: nursery.start_soon(bounce, cluster))


def kill_both_at_write(cluster: ControllerCluster, rules: Rules, number: int, nursery: trio.Nursery) -> trio.Event:
    """Holes 2 and 3: the next controller first elects leaders. An election raises a leader epoch, but is no bump."""

    def both() -> None:
        cluster.vacate()
        nursery.start_soon(bounce, cluster)

    return disturb_at_write(rules, number, both)


async def broken_at_any_point(operation: str, arm: Arm) -> list[str]:
    """Disturb every point in turn, until a rule is broken or the resize ends before the disturbance.

    Returns the broken rules.
    """
    for number in range(1, MOST_POINTS):
        async with trio.open_nursery() as nursery:
            cluster, rules = await start(nursery, operation)
            happened = arm(cluster, rules, number, nursery)
            await resize(cluster, nursery, operation)
            nursery.cancel_scope.cancel()
        if found := broken(cluster, rules):
            return found
        if not happened.is_set():
            assert number > 5
            return []
    raise AssertionError(f"{operation} has more than {MOST_POINTS} points")


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("arm", [kill_at_write, kill_at_request, bounce_at_write, kill_both_at_write])
async def test_a_resize_ends_as_requested_after_a_crash_at_any_point(operation: str, arm: Arm) -> None:
    assert await broken_at_any_point(operation, arm) == []


@pytest.mark.parametrize(
    ("operation", "arm", "switch_off", "what"),
    [
        ("grow", kill_at_write, rules_off.an_entry_is_written_after_the_bump, "the lineage of 4 is ()"),
        ("grow", bounce_at_write, rules_off.a_losers_epoch_is_read_when_its_gainer_is_bumped, "the lineage of 4 is"),
        (
            "revive",
            kill_at_write,
            rules_off.a_revived_partition_gets_no_entry,
            "the lineage of 2 is (LineageEntry(epoch=0",
        ),
        ("shrink", kill_at_write, off.a_removal_is_two_writes, "is not in the assignment, but its state still exists"),
    ],
)
@pytest.mark.mutation
async def test_a_check_fails_when_a_rule_is_switched_off(
    operation: str,
    arm: Arm,
    switch_off: Callable[[pytest.MonkeyPatch], None],
    what: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    found = await broken_at_any_point(operation, arm)
    assert any(what in text for text in found), found


async def test_a_leader_whose_session_expired_has_not_acknowledged(nursery: trio.Nursery) -> None:
    """Hole 8: an expired leader may still serve. Gainers of its keys wait for the response of the next leader."""
    cluster, rules = await start(nursery, "grow")
    cluster.brokers[1].answering = trio.Event()  # this broker leads everything, and does not respond
    nursery.start_soon(cluster.request, alter(6))
    await cluster.until(lambda: rules.writes >= 5)
    assert not await exist(cluster, 4, 5)
    cluster.brokers[2].answering = trio.Event()
    cluster.brokers[1].leave()
    await cluster.until(lambda: any(leader == 2 for leader, _ in cluster.brokers[3].led().values()))
    await trio.sleep(5)  # virtual time: longer than anything the controller waits for
    assert not await exist(cluster, 4, 5)
    cluster.brokers[2].answering.set()
    await cluster.until(lambda: finished(cluster, 6))
    assert broken(cluster, rules) == []
    assert cluster.brokers[2].sent(LeaderAndIsrRequest)


async def exist(cluster: ControllerCluster, *partitions: int) -> bool:
    """Whether any of these partitions has a state."""
    return any([await cluster.store.exists(paths.partition_state(TOPIC, p)) is not None for p in partitions])


async def test_a_check_fails_when_gainers_do_not_wait_for_losers(
    nursery: trio.Nursery, monkeypatch: pytest.MonkeyPatch
) -> None:
    off.losers_need_not_answer(monkeypatch)
    cluster, rules = await start(nursery, "grow")
    cluster.brokers[1].answering = trio.Event()  # this broker leads everything
    nursery.start_soon(cluster.request, alter(6))
    await cluster.until(lambda: exist(cluster, 5))
    assert any("gains keys before 0 has acknowledged" in found for found in broken(cluster, rules))
