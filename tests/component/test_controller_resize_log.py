"""An operator follows a resize in the controller's log: each step is logged once, and so is the end."""

from __future__ import annotations

import logging

import pytest
import trio

from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, finished, hold_records, led_by, resized
from tests.support.resize.resize_states import begun, release

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
GROW = [
    "asked-for initial=4 undeleted=6 assigned=6 layout_version=1 partitions=",
    "bump initial=4 undeleted=6 assigned=6 layout_version=1 partitions=0-3",
    "create initial=4 undeleted=6 assigned=6 layout_version=1 partitions=4,5",
    "finished initial=4 undeleted=6 assigned=6 layout_version=1 partitions=",
]
SHRINK = [
    "asked-for initial=4 undeleted=4 assigned=6 layout_version=2 partitions=",
    "bump initial=4 undeleted=4 assigned=6 layout_version=2 partitions=2-5",
    "bump initial=4 undeleted=4 assigned=6 layout_version=2 partitions=0,1",
    "finished initial=4 undeleted=4 assigned=6 layout_version=2 partitions=",
]
REMOVAL = [
    "leave initial=4 undeleted=4 assigned=6 layout_version=2 partitions=4,5",
    "forget initial=4 undeleted=4 assigned=4 layout_version=2 partitions=4,5",
]


def steps(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The log lines of the topic's resizes, from the name of the step on."""
    heads = [record.message.partition(f"event=resize.step topic={TOPIC} step=") for record in caplog.records]
    return [step for before, head, step in heads if head and not before]


async def test_each_step_of_a_grow_and_of_a_shrink_is_logged(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await resized(cluster, 6)
    assert steps(caplog) == GROW
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    assert steps(caplog) == GROW + SHRINK
    hold_records(cluster, range(4, 6), 40, start=40)
    await cluster.until(lambda: finished(cluster, 4))
    await cluster.until(lambda: len(steps(caplog)) == len(GROW + SHRINK + REMOVAL))
    assert steps(caplog) == GROW + SHRINK + REMOVAL


async def test_the_end_is_logged_once_when_the_last_leader_has_acknowledged(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Leaders also acknowledge after every election, and to every new controller."""
    caplog.set_level(logging.INFO)
    cluster.brokers[1].answering = trio.Event()
    await cluster.request(alter(6, timeout_ms=100))
    await trio.sleep(10)  # virtual time: longer than any wait
    assert steps(caplog) == GROW[:2]
    cluster.brokers[1].answering.set()
    await cluster.until(lambda: finished(cluster, 6))
    await trio.sleep(10)  # virtual time: longer than any wait
    assert steps(caplog) == GROW
    cluster.brokers[1].leave()
    await cluster.until(lambda: led_by(cluster, 3, 2))
    await cluster.brokers[1].register()
    await trio.sleep(10)  # virtual time: longer than any wait
    cluster.vacate()
    await cluster.start_controller(1001)
    await trio.sleep(10)  # virtual time: longer than any wait
    assert steps(caplog) == GROW
    await resized(cluster, 7)
    assert [step.partition(" initial=")[0] for step in steps(caplog)[len(GROW) :]] == [
        step.partition(" initial=")[0] for step in GROW
    ]


async def test_a_controller_that_continues_a_resize_logs_its_end(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    cluster.brokers[1].answering = trio.Event()
    await cluster.request(alter(6, timeout_ms=100))
    cluster.vacate()
    cluster.brokers[1].answering.set()
    await cluster.start_controller(1001)
    await cluster.until(lambda: steps(caplog) == GROW)


async def test_queued_and_cancelled_counts_are_logged(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await begun(cluster, 6)
    for count in (9, 6, 4):
        await cluster.request(alter(count, timeout_ms=100))
    release(cluster)
    await cluster.until(lambda: steps(caplog)[-1].startswith("finished"))
    assert steps(caplog)[2:] == [
        "queued initial=4 undeleted=6 assigned=6 layout_version=1 partitions=",
        "unqueued initial=4 undeleted=6 assigned=6 layout_version=1 partitions=",
        "cancelled initial=4 undeleted=4 assigned=4 layout_version=2 partitions=",
        "bump initial=4 undeleted=4 assigned=4 layout_version=2 partitions=0-3",
        "finished initial=4 undeleted=4 assigned=4 layout_version=2 partitions=",
    ]
