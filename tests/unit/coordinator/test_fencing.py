"""Every API that names a member and a generation refuses the same requests, with the same errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from anabranch.broker.coordinator.membership import release_groups
from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.driver import GROUP, Driver

Call = Callable[[Driver, str, int, str | None], ErrorCode]


def _heartbeat(driver: Driver, member_id: str, generation: int, instance: str | None) -> ErrorCode:
    return driver.heartbeat(member_id, generation, instance=instance)


def _sync(driver: Driver, member_id: str, generation: int, instance: str | None) -> ErrorCode:
    return driver.error(driver.sync(member_id, generation, instance=instance))


def _commit(driver: Driver, member_id: str, generation: int, instance: str | None) -> ErrorCode:
    return driver.commit_error(driver.commit({("t", 0): 1}, member_id, generation, instance=instance))


def _poll(driver: Driver, member_id: str, generation: int, instance: str | None) -> ErrorCode:
    return driver.error(driver.poll(member_id, generation, instance=instance, max_wait_ms=0))


@pytest.fixture(params=[_heartbeat, _sync, _commit, _poll], ids=["heartbeat", "sync", "commit", "poll"])
def call(request: pytest.FixtureRequest) -> Call:
    found: Call = request.param
    return found


def _static_pair(driver: Driver) -> tuple[str, str]:
    """Return a static member that was replaced, and its successor, in generation 1."""
    (replaced,) = driver.stable_group("a", instance="i", v=5)
    return replaced, driver.replies[driver.join(client="a", instance="i", v=5)].member_id


def test_a_member_of_the_generation_is_served(call: Call) -> None:
    driver = Driver()
    _, member = _static_pair(driver)
    assert call(driver, member, 1, "i") is ErrorCode.NONE


def test_unknown_members_and_other_generations_are_refused(call: Call) -> None:
    driver = Driver()
    replaced, member = _static_pair(driver)
    assert call(driver, member, 0, "i") is ErrorCode.ILLEGAL_GENERATION
    assert call(driver, member, 2, "i") is ErrorCode.ILLEGAL_GENERATION
    assert call(driver, member, -1, "i") is ErrorCode.ILLEGAL_GENERATION
    assert call(driver, "nobody", 1, None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert call(driver, member, 1, "j") is ErrorCode.UNKNOWN_MEMBER_ID
    assert call(driver, replaced, 1, "i") is ErrorCode.FENCED_INSTANCE_ID


def test_the_member_is_checked_before_the_generation(call: Call) -> None:
    driver = Driver()
    replaced, _ = _static_pair(driver)
    assert call(driver, "nobody", 0, None) is ErrorCode.UNKNOWN_MEMBER_ID
    assert call(driver, replaced, 0, "i") is ErrorCode.FENCED_INSTANCE_ID


def test_a_released_group_refuses_every_member(call: Call) -> None:
    driver = Driver()
    _, member = _static_pair(driver)
    release_groups(driver.turn(), ErrorCode.NOT_COORDINATOR)
    assert call(driver, member, 1, "i") is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert call(driver, "nobody", 0, None) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_commit_without_member_or_generation_needs_a_group_without_members() -> None:
    driver = Driver()
    (member,) = driver.stable_group("a")
    assert _commit(driver, "", -1, None) is ErrorCode.UNKNOWN_MEMBER_ID
    driver.leave((member, None))
    assert driver.state(GROUP) == "Empty"
    assert _commit(driver, "", -1, None) is ErrorCode.NONE
