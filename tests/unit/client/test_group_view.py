"""A consumer describes a wait by the parent's owner and the group's committed offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anabranch import Consumer, WaitsFor
from anabranch.client.group.group_protocol import encode_assignment
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.describe_groups import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from tests.unit.client.fake_broker import DROP
from tests.unit.client.resized_broker import CHILD, FAST, PARENT, Grouped

INCARNATION = 1000
"""The incarnation of the parent."""
PAUSE_MS = 10


def reads_the_parent(assignment: bytes) -> DescribeGroupsResponse:
    members = [("member", encode_assignment([CHILD])), ("other", assignment)]
    found = [DescribedGroupMember(member_id=name, member_assignment=memoryview(data)) for name, data in members]
    return DescribeGroupsResponse(groups=[DescribedGroup(group_id="g", members=found)])


def waiting_child(assignment: bytes = encode_assignment([PARENT]), incarnation: int = INCARNATION) -> Grouped:
    """A group whose child waits for the parent. The group has committed offset 7 of the parent's incarnation."""
    broker = Grouped([CHILD])
    broker.committed = {0: (7, incarnation)}
    broker.answers[ApiKey.DESCRIBE_GROUPS] = lambda body: reads_the_parent(assignment)
    return broker


async def wait_of(broker: Grouped, until: Callable[[WaitsFor], bool]) -> WaitsFor:
    """Return the child's wait for its parent, once ``until`` is true for the wait."""
    async with broker.client(Consumer, group_id="g", retry_backoff_max_ms=PAUSE_MS, **FAST) as consumer:
        consumer.subscribe(["t"])
        while True:
            await consumer.getmany(timeout_ms=5)
            for wait in (wait for one in consumer.explain_blocked() for wait in one.waits_for):
                if wait.on == PARENT and until(wait):
                    return wait


async def test_a_wait_shows_the_owner_and_the_committed_offset_of_the_parent() -> None:
    """DescribeGroups names the owner, and OffsetFetch the committed offset.

    The owner reports its position only when the report may free a member.
    """
    wait = await wait_of(waiting_child(), lambda wait: wait.member is not None and wait.until >= 0)
    assert (wait.on, wait.member, wait.position, wait.committed) == (PARENT, "other", -1, 7)
    assert wait.sentence(1) == (
        "partition 1 from epoch 0 waits for partition 0 until offset 10, owned by other, position not known"
        " (7 committed)"
    )


async def test_a_commit_of_an_incarnation_that_was_removed_is_not_shown() -> None:
    broker = waiting_child(incarnation=INCARNATION - 1)
    assert (await wait_of(broker, lambda wait: wait.member is not None)).committed == -1


async def test_members_of_another_protocol_are_left_out() -> None:
    assert (await wait_of(waiting_child(b"?"), lambda wait: wait.committed == 7)).member is None


async def test_a_description_of_the_group_that_fails_is_requested_again() -> None:
    broker, tries = waiting_child(), []

    def describe(body: Any) -> Any:
        tries.append(body)
        return DROP if len(tries) == 1 else reads_the_parent(encode_assignment([PARENT]))

    broker.answers[ApiKey.DESCRIBE_GROUPS] = describe
    assert (await wait_of(broker, lambda wait: wait.member is not None)).committed == 7
    assert len(tries) > 1
