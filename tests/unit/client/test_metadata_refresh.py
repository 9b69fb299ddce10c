"""The pauses between metadata requests while partitions have no leader, in virtual time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from anabranch.client.net.metadata import Metadata
from anabranch.protocol.generated.metadata import MetadataResponse
from tests.support.client.client_metadata import MetadataBrokers, metadata_over
from tests.unit.client.test_stale_metadata import described

pytestmark = pytest.mark.trio


class Brokers(MetadataBrokers):
    async def until_asked(self, times: int) -> list[float]:
        """Return the pauses between the first ``times`` requests, in ms."""
        while len(self.asked_at) < times:
            await trio.sleep(0.001)  # virtual time: until enough requests were sent
        return [1000 * (b - a) for a, b in zip(self.asked_at, self.asked_at[1:times], strict=False)]


@asynccontextmanager
async def refreshing(brokers: Brokers, first_seen: MetadataResponse) -> AsyncIterator[Metadata]:
    """Run the metadata of a topic that was first seen as ``first_seen``. Later responses come from the brokers."""
    answer, brokers.answer = brokers.answer, first_seen
    metadata = metadata_over(brokers)
    metadata.want("t")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(metadata.run)
        await metadata.ready(1_000)
        await trio.testing.wait_all_tasks_blocked()
        brokers.answer, brokers.asked_at = answer, []
        yield metadata
        nursery.cancel_scope.cancel()


async def test_missing_leaders_of_a_new_layout_are_requested_after_growing_pauses(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A consumer can read a child soon after the child has a leader.

    A leader that stays absent causes no more requests than a lost leader of an old layout.
    """
    brokers = Brokers(described(1, 4, leader=-1))
    async with refreshing(brokers, described(0, 2)) as metadata:
        metadata.request_update()
        pauses = await brokers.until_asked(12)
    assert pauses[:4] == [pytest.approx(ms, rel=0.25) for ms in (5, 10, 20, 40)]
    assert all(800 <= ms <= 1_200 for ms in pauses[8:])


async def test_a_lost_leader_is_requested_with_the_usual_backoff(autojump_clock: trio.testing.MockClock) -> None:
    brokers = Brokers(described(0, 2, leader=-1))
    async with refreshing(brokers, described(0, 2)) as metadata:
        metadata.request_update()
        pauses = await brokers.until_asked(4)
    assert pauses == [pytest.approx(ms, rel=0.25) for ms in (100, 200, 400)]


async def test_hurried_requests_do_not_lengthen_the_pauses_of_others(autojump_clock: trio.testing.MockClock) -> None:
    """Refusals cause hurried requests during a resize. Their number does not show how long an election takes."""
    brokers = Brokers(described(1, 4, leader=-1))
    async with refreshing(brokers, described(0, 2)) as metadata:
        metadata.request_update()
        await brokers.until_asked(1)
        for number in range(2, 7):
            metadata.hurry_update()
            await brokers.until_asked(number)
        pauses = await brokers.until_asked(8)
    assert pauses[-2:] == [pytest.approx(ms, rel=0.25) for ms in (5, 10)]


async def test_a_leader_that_a_hurried_request_finds_missing_is_requested_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The hurried request is sent in the pause after a complete response."""
    brokers = Brokers(described(0, 2))
    async with refreshing(brokers, described(0, 2)) as metadata:
        metadata.request_update()
        await brokers.until_asked(1)
        brokers.answer = described(0, 2, leader=-1)
        metadata.hurry_update()
        pauses = await brokers.until_asked(4)
    assert pauses[1:] == [pytest.approx(ms, rel=0.25) for ms in (100, 200)]


async def test_a_topic_that_is_absent_from_every_other_response_has_no_new_layout(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The client requests all topics, and every second response is from a lagging broker.

    A topic that a lagging broker leaves out does not count as new in the next response.
    """
    brokers = Brokers(described(1, 4, leader=-1))
    async with refreshing(brokers, described(0, 2)) as metadata:
        metadata.all_topics = True
        metadata.request_update()
        for number in range(1, 9):
            await brokers.until_asked(number)
            brokers.answer = described(1, 4, leader=-1)
            if number % 2:
                brokers.answer.topics = []
        pauses = await brokers.until_asked(8)
    assert pauses[-1] > 100
