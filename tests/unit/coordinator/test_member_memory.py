"""The members of all groups of a broker take bounded memory (``group.members.max.bytes``)."""

from __future__ import annotations

import pytest

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.group import GROUP_BYTES, MEMBER_BYTES
from anabranch.protocol.errors import ErrorCode
from tests.unit.coordinator.calls import join
from tests.unit.coordinator.conftest import Running
from tests.unit.coordinator.driver import GROUP, Driver

CLIENTS = 1_000
METADATA = bytes(10_000)
LIMIT = 50 * (len(METADATA) + 5_000)


def test_joins_of_many_clients_that_wait_take_bounded_memory() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    old = driver.join("", group="old")
    tokens = [driver.join(group=f"g{number}", client=f"c{number}", metadata=METADATA) for number in range(CLIENTS)]
    refused = [token for token in tokens if token in driver.replies]
    assert {driver.error(token) for token in refused} == {ErrorCode.COORDINATOR_NOT_AVAILABLE}
    assert 40 <= CLIENTS - len(refused) <= 60, "some wait"
    assert driver.shard.memory.taken_bytes <= LIMIT
    assert driver.shard.groups.keys() >= {"old", "g0"} and "g999" not in driver.shard.groups

    driver.advance(3_000)  # the initial delay: every join that waits is answered
    assert driver.error(old) is ErrorCode.NONE
    member_id = driver.replies[old].member_id
    again = driver.join(member_id, group="old")
    assert driver.error(again) is ErrorCode.NONE, "a member that needs no more joins again"
    assert driver.error(driver.join(group="late", metadata=METADATA)) is ErrorCode.COORDINATOR_NOT_AVAILABLE

    driver.advance(60_000)  # no member sends a heartbeat
    assert driver.shard.memory.taken_bytes == 0
    late = driver.join(group="late", metadata=METADATA)
    assert late not in driver.replies, "it waits for other members"


def test_members_with_much_metadata_do_not_keep_out_those_with_little() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    refused: list[str] = []
    driver.shard.on_refused = lambda: refused.append("refused")
    while not refused:
        driver.join(group=f"g{driver.tokens}", metadata=METADATA)
    assert driver.shard.memory.taken_bytes <= LIMIT * 3 // 4
    small = [driver.join(group=f"s{number}", metadata=bytes(500)) for number in range(50)]
    assert not driver.replies.keys() & set(small), "they wait for other members"
    assert len(refused) == 1


def test_a_static_member_rejoins_although_there_is_no_room() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    driver.join(group="old", instance="i", metadata=METADATA, v=5)
    driver.advance(3_000)
    while driver.shard.has_room(1_500):
        driver.join(group=f"g{driver.tokens}")
    again = driver.join(group="old", instance="i", metadata=METADATA, v=5)
    assert driver.error(again) is ErrorCode.NONE
    more = driver.join(group="old", instance="i", metadata=METADATA + METADATA, v=5)
    assert driver.error(more) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_member_ids_that_nobody_uses_count_until_they_are_forgotten() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    for _ in range(CLIENTS):
        driver.join(client="c" * 5_000, v=4)
    assert LIMIT - 10_000 <= driver.shard.memory.taken_bytes <= LIMIT + 10_000
    driver.advance(60_000)
    assert driver.shard.memory.taken_bytes == 0


def test_assignments_count_until_the_group_has_no_members() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    (leader,) = driver.stable_group("c")
    before = driver.shard.memory.taken_bytes

    def assign(length: int) -> ErrorCode:
        joined = driver.join(leader)
        return driver.error(driver.sync(leader, driver.replies[joined].generation_id, {leader: bytes(length)}))

    assert assign(100_000) is ErrorCode.NONE
    assert driver.shard.memory.taken_bytes == before + 100_000 - len(leader)
    assert assign(LIMIT) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert assign(90_000) is ErrorCode.NONE, "a shorter one needs nothing more"
    assert driver.restarted().shard.memory.taken_bytes == before + 90_000 - len(leader)
    driver.advance(60_000)  # the member sends no heartbeat
    assert driver.shard.memory.taken_bytes == 0


def test_the_assignments_of_a_group_may_grow_a_little_although_there_is_no_room() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    leader, follower = driver.stable_group("a", "b")
    while driver.shard.has_room(1_500):
        driver.join(group=f"g{driver.tokens}")

    def assign(length: int) -> ErrorCode:
        joins = [driver.join(leader), driver.join(follower)]
        generation = driver.replies[joins[0]].generation_id
        return driver.error(driver.sync(leader, generation, {leader: bytes(length), follower: b""}))

    assert assign(2 * MEMBER_BYTES) is ErrorCode.NONE
    assert driver.state() == "Stable"
    assert assign(2 * MEMBER_BYTES + 1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_a_leader_whose_assignments_find_no_room_is_not_waited_for_for_ever() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    leader, follower = driver.stable_group("a", "b")
    joins = [driver.join(leader), driver.join(follower)]
    generation = driver.replies[joins[0]].generation_id
    waiting = driver.sync(follower, generation)
    assert driver.error(driver.sync(leader, generation, {leader: bytes(LIMIT)})) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    for _ in range(20):
        driver.advance(2_000)
        driver.heartbeat(leader, generation)
    assert driver.error(waiting) is ErrorCode.REBALANCE_IN_PROGRESS
    assert leader not in driver.shard.groups[GROUP].members


def test_a_group_counts_while_it_has_members() -> None:
    driver = Driver(GroupConfig(members_max_bytes=LIMIT))
    driver.stable_group("a", "b")
    driver.stable_group("a", group="other")
    members = sum(member.kept_bytes for group in driver.shard.groups.values() for member in group.members.values())
    assigned = sum(group.assigned_bytes for group in driver.shard.groups.values())
    assert driver.shard.memory.taken_bytes == members + assigned + 2 * GROUP_BYTES


def test_there_may_be_no_limit() -> None:
    driver = Driver(GroupConfig(members_max_bytes=-1))
    tokens = [driver.join(group=f"g{number}", metadata=METADATA) for number in range(100)]
    assert not driver.replies.keys() & set(tokens)


@pytest.mark.trio
async def test_all_partitions_of_the_offsets_topic_share_the_limit(running: Running) -> None:
    partition = running.coordinator.partition_for("g")
    await running.loaded(partition)
    await running.loaded(partition + 1)
    join(running)
    of_group, other = running.coordinator.shards()
    assert (of_group.memory_elsewhere(), other.memory.taken_bytes) == (0, 0)
    assert other.memory_elsewhere() == of_group.memory.taken_bytes > 0
