"""A group's leader assigns partitions by the metadata and layouts that the leader knows."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from anabranch.client.cluster import Cluster, PartitionInfo, TopicInfo
from anabranch.client.group.group_protocol import AssignedLayout, decode_assignment, encode_assignment, read_layouts
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment
from anabranch.protocol.generated.heartbeat import HeartbeatRequest, HeartbeatResponse
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupResponse, JoinGroupResponseMember
from anabranch.protocol.generated.sync_group import SyncGroupRequest
from anabranch.protocol.message import encode_versioned
from tests.unit.client.scripted_group import T0, T1, Fixture, ScriptedLink, reading


class LeaderLink(ScriptedLink):
    """Makes the member its group's leader; ``on_sync`` is called while the assignment is in flight."""

    def __init__(self) -> None:
        super().__init__([T0], [T0])
        self.on_sync: Callable[[], None] = lambda: None
        self.heartbeats = 0
        self.given: list[bytes] = []
        """The leader's own share of each assignment that the leader made."""

    async def request(self, body: Any, **others: Any) -> Any:
        if isinstance(body, HeartbeatRequest):
            self.heartbeats += 1
            return HeartbeatResponse()
        if isinstance(body, SyncGroupRequest):
            self.on_sync()
            self.given += [share.assignment for share in body.assignments]
        return await super().request(body, **others)

    async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
        joined = await super()._join(body)
        if body.member_id:
            joined.leader = body.member_id
            joined.protocol_name = body.protocols[0].name
            joined.members = [
                JoinGroupResponseMember(member_id=body.member_id, metadata=body.protocols[0].metadata),
            ]
        return joined


def described(total: int, undeleted: int, layout_version: int = -1) -> Cluster:
    partitions = {p: PartitionInfo(p, 1, 0) for p in range(total)}
    topic = TopicInfo(
        "t", uuid.UUID(int=1), partitions, undeleted_partition_count=undeleted, layout_version=layout_version
    )
    return Cluster(topics={"t": topic})


async def test_partitions_created_while_the_leader_joins_are_assigned_by_another_join() -> None:
    """Metadata notifies only once.

    At the end of the join, the leader therefore compares the partitions with the assigned partitions, too.
    """
    link = LeaderLink()
    async with anyio.create_task_group() as tasks:
        fixture = Fixture(tasks, link)
        fixture.metadata.cluster = described(1, 1)

        def grow() -> None:
            fixture.metadata.cluster = described(2, 2)
            fixture.metadata.update()

        link.on_sync = grow
        await fixture.poll_until(lambda: link.generation_id == 2)
        tasks.cancel_scope.cancel()


async def test_a_leader_that_assigned_marked_partitions_checks_whether_they_are_removed() -> None:
    """The leader is not notified of a removal, because another member may read the marked partitions."""
    for total in (1, 2):
        link = LeaderLink()
        async with anyio.create_task_group() as tasks:
            fixture = Fixture(tasks, link, heartbeat_interval_ms=5)
            fixture.metadata.cluster = described(total, 1)
            await fixture.poll_until(lambda fixture=fixture: fixture.held == {T0})
            tasks.start_soon(fixture.coordinator.run_heartbeats)
            while link.heartbeats < 3:
                await anyio.sleep(0.001)  # polls: until heartbeats were sent
            assert bool(fixture.metadata.asked) == (total > 1)
            tasks.cancel_scope.cancel()


async def test_a_member_that_knows_a_newer_layout_than_the_leader_used_asks_for_a_rebalance() -> None:
    """A leader that does not read the topic gets no refusal, so the leader does not notice the new layout."""
    link = ScriptedLink([T0], [T0], [T0, T1])
    link.layouts = [{}, {}, {"t": AssignedLayout(1, 2)}]
    async with reading(link) as (member, _):
        member.metadata.cluster = described(1, 1, 0)
        member.metadata.update()
        assert not member.coordinator.needs_poll()
        member.metadata.cluster = described(2, 2, 1)
        member.metadata.update()
        asked = member.metadata.asked
        await member.poll_until(lambda: link.generation_id == 2 and member.coordinator.settled_generation == 2)
        assert member.metadata.asked > asked, (
            "the leader may lack the new layout, too, so this member refreshes its own metadata first"
        )
        assert not member.coordinator.needs_poll(), "the rejoin waits for the refresh"
        member.metadata.update()
        await member.poll_until(lambda: member.held == {T0, T1})
        member.metadata.update()
        assert not member.coordinator.needs_poll()
        joins = [request for request in link.seen if isinstance(request, JoinGroupRequest)][-3:]
        metadata = [request.protocols[0].metadata for request in joins]
        assert len(set(metadata)) == 3, "a join with unchanged metadata would begin no rebalance"


COOPERATIVE = "cooperative-sticky"


@pytest.mark.parametrize(
    ("strategy", "counts", "layouts", "asks"),
    [
        pytest.param(COOPERATIVE, (2, 1), None, False, id="the leader is another client, with rules of its own"),
        pytest.param(COOPERATIVE, (2, 1), {"t": (2, 2)}, False, id="the leader knows this layout"),
        pytest.param(COOPERATIVE, (2, 1), {"t": (3, 2)}, False, id="the leader knows a newer layout"),
        pytest.param(COOPERATIVE, (2, 1), {"t": (2, 1)}, False, id="the leader sees one partition of this layout"),
        pytest.param(COOPERATIVE, (2, 1), {"t": (1, 2)}, False, id="a merge makes every partition still assigned"),
        pytest.param(COOPERATIVE, (2, 2), {}, True, id="a partition of a topic that the leader does not know"),
        pytest.param(COOPERATIVE, (2, 2), {"t": (1, 1)}, True, id="a partition that the leader does not know"),
        pytest.param(COOPERATIVE, (2, 2), {"u": (2, 2)}, True, id="the leader knows another topic"),
        pytest.param(COOPERATIVE, (2, 1), {"t": (1, 3)}, True, id="a merged partition was removed"),
        pytest.param("range", (3, 1), {"t": (1, 3)}, True, id="an eager assignor needs a rebalance after every merge"),
    ],
)
async def test_a_follower_requests_a_rebalance_only_for_what_its_leader_may_never_see(
    strategy: str, counts: tuple[int, int], layouts: dict[str, tuple[int, int]] | None, asks: bool
) -> None:
    """A static member that restarts may not know that it leads the group. Then no leader watches the partitions."""

    class Link(ScriptedLink):
        async def _join(self, body: JoinGroupRequest) -> JoinGroupResponse:
            joined = await super()._join(body)
            joined.protocol_name = strategy
            return joined

    link = Link([T0])
    link.layouts = [None if layouts is None else {name: AssignedLayout(*layout) for name, layout in layouts.items()}]
    async with reading(link, partition_assignment_strategy=strategy) as (member, _):
        member.metadata.cluster = described(*counts, 2)
        member.metadata.update()
        assert member.coordinator.needs_poll() is asks


@pytest.mark.parametrize(
    ("strategy", "cluster", "is_right"),
    [
        ("cooperative-sticky", described(3, 2, 1), True),
        ("cooperative-sticky", described(4, 4, 1), False),
        ("cooperative-sticky", described(2, 2, 1), False),
        ("range", described(3, 2, 1), False),
    ],
)
async def test_a_leader_begins_a_rebalance_only_if_its_assignment_is_no_longer_right(
    strategy: str, cluster: Cluster, is_right: bool
) -> None:
    link = LeaderLink()
    async with anyio.create_task_group() as tasks:
        fixture = Fixture(tasks, link, partition_assignment_strategy=strategy)
        fixture.metadata.cluster = described(3, 3, 0)
        await fixture.poll_until(lambda: fixture.held == {T0})
        fixture.metadata.cluster = cluster
        fixture.metadata.update()
        assert fixture.coordinator.needs_poll() != is_right
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize("fails", [False, True], ids=["refreshed", "the refresh fails"])
async def test_a_leader_refreshes_its_metadata_before_it_assigns_partitions(fails: bool) -> None:
    """Another member may have started the rebalance because it has newer metadata."""
    link = LeaderLink()
    async with anyio.create_task_group() as tasks:
        fixture = Fixture(tasks, link)
        fixture.metadata.cluster = described(1, 1, 0)

        def refreshed() -> None:
            if fails:
                raise KafkaError(ErrorCode.NETWORK_EXCEPTION, "gone")
            fixture.metadata.cluster = described(2, 2, 1)

        fixture.metadata.refreshed = refreshed
        await fixture.poll_until(lambda: fixture.held == {T0})
        (share,) = link.given
        known = (decode_assignment(share), read_layouts(share))
        assert known == (((T0,), {}) if fails else ((T0, T1), {"t": AssignedLayout(1, 2)}))
        tasks.cancel_scope.cancel()


@pytest.mark.parametrize(
    "layouts",
    [{}, {"t": AssignedLayout(1, 2)}, {"a.b-c_d": AssignedLayout(12, 9), "t": AssignedLayout(2**31 - 1, 10_000)}],
    ids=["no topic", "one topic", "two topics"],
)
def test_the_layouts_of_an_assignment_are_read_back(layouts: dict[str, AssignedLayout]) -> None:
    data = encode_assignment([T0], layouts)
    assert read_layouts(data) == layouts
    assert decode_assignment(data) == (T0,)


@pytest.mark.parametrize(
    "user_data",
    [
        None,
        b"",
        b"anything",
        b"anabranch.layouts t:1",  # of an older version
        b"anabranch.assignedt:1:2",
        b"anabranch.assigned t",
        b"anabranch.assigned t:1",
        b"anabranch.assigned t:1:x",
        b"anabranch.assigned t:1:2:3",
    ],
)
def test_other_user_data_names_no_layouts(user_data: bytes | None) -> None:
    body = ConsumerProtocolAssignment(assigned_partitions=[], user_data=user_data)
    assert read_layouts(encode_versioned(body, 1)) is None
    assert read_layouts(b"") is None
