"""A broker without support for resizes registers during a resize, and is refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest
import trio

from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from tests.support.controller.controller_cluster import ControllerCluster
from tests.support.resize.resize_rules import TOPIC, alter, finished, hold_records, resized

pytestmark = [pytest.mark.trio, pytest.mark.usefixtures("autojump_clock")]
STRANGER = 4
"""The id of that broker. It has no replica of the topic, so the resize waits for no election or response of it."""


class Held(NamedTuple):
    """A resize to ``count`` partitions that has begun and continues once ``release`` is called."""

    count: int
    release: Callable[[], None]


async def held_before_gainers_are_led(cluster: ControllerCluster) -> Held:
    cluster.brokers[1].answering = trio.Event()
    await cluster.request(alter(6, timeout_ms=100))
    return Held(6, cluster.brokers[1].answering.set)


async def held_before_survivors_gain(cluster: ControllerCluster) -> Held:
    await resized(cluster, 6)
    leader = cluster.brokers[(await cluster.state(TOPIC, 5)).leader]
    leader.answering = trio.Event()
    await cluster.request(alter(4, timeout_ms=100))
    return Held(4, leader.answering.set)


async def held_while_it_drains(cluster: ControllerCluster) -> Held:
    await resized(cluster, 6)
    hold_records(cluster, range(4, 6), 40)
    await resized(cluster, 4)
    return Held(4, lambda: hold_records(cluster, range(4, 6), 40, start=40))


@pytest.mark.parametrize("hold", [held_before_gainers_are_led, held_before_survivors_gain, held_while_it_drains])
async def test_a_resize_continues_without_a_broker_that_does_not_support_resizes(
    cluster: ControllerCluster, caplog: pytest.LogCaptureFixture, hold: Callable[[ControllerCluster], Awaitable[Held]]
) -> None:
    """KIP-584: the controller refuses the registration, and the broker leads nothing. With features it is accepted."""
    await cluster.start_broker(STRANGER)
    await cluster.until(lambda: is_live(cluster))
    stranger = cluster.brokers[STRANGER]
    stranger.leave()
    await cluster.until(lambda: not is_live(cluster))
    held = await hold(cluster)
    stranger.requests.clear()
    stranger.features = {}
    await stranger.register()
    held.release()
    await cluster.until(lambda: finished(cluster, held.count))
    assert not is_live(cluster) and stranger.requests == []
    line = f"event=broker.refused broker={STRANGER} reason=consumer_offsets_topic_schema is finalized at level 2, "
    assert caplog.text.count(line) == 1
    stranger.leave()
    stranger.features = cluster.brokers[1].features
    await stranger.register()
    await cluster.until(lambda: is_live(cluster))


def is_live(cluster: ControllerCluster) -> bool:
    """Whether the controller's last UpdateMetadata lists that broker as live."""
    sent = cluster.brokers[2].sent(UpdateMetadataRequest)[-1]
    return STRANGER in {broker.id for broker in sent.live_brokers}
