"""Random sequences of events against the invariants of a group.

- A group's generation never decreases, also across a hand-over.
- Every partition of a stable generation has one owner, and members receive only committed state.
- Replaying the log's bytes gives the durable state, also after lost writes.
- Every request is answered once, and nothing waits for ever.
- The memory that counts for members is that of the present members.
"""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, multiple, rule

from anabranch.broker.coordinator.config import GroupConfig
from anabranch.broker.coordinator.durable import GroupRecord
from anabranch.broker.coordinator.group import GROUP_BYTES, PENDING_BYTES
from anabranch.broker.coordinator.group_state import GroupState
from anabranch.broker.coordinator.join import UNKNOWN_MEMBER_ID
from anabranch.broker.coordinator.membership import release_groups
from anabranch.broker.coordinator.position_owners import owner_of
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.consumer_protocol import ConsumerProtocolAssignment, TopicPartition
from anabranch.protocol.message import decode_versioned, encode_versioned
from tests.unit.coordinator.driver import GROUP, Driver

PARTITIONS = 6
CLIENTS = 4


class GroupMachine(RuleBasedStateMachine):
    """Clients that join, sync, commit, crash and return, over a log that loses writes."""

    joins = Bundle("joins")

    @initialize(max_size=st.sampled_from([2, 3, 100]))
    def start(self, max_size: int) -> None:
        config = GroupConfig(
            max_size=max_size, initial_rebalance_delay_ms=1_000, offsets_retention_ms=50_000, min_session_timeout_ms=1
        )
        self.driver = Driver(config, auto_commit=False)
        self.waiting: set[str] = set()
        self.generations: list[int] = [0]
        self.committed: int | None = None

    def asked(self, token: str) -> None:
        self.waiting.add(token)

    # ------------------------------------------------------------ events

    @rule(target=joins, client=st.integers(0, CLIENTS - 1), static=st.booleans(), v=st.sampled_from([3, 3, 5, 5, 7]))
    def join_new(self, client: int, static: bool, v: int) -> str:
        instance = f"i{client}" if static and v >= 5 else None
        token = self.driver.join(client=f"c{client}", v=v, instance=instance, session_ms=10_000, rebalance_ms=15_000)
        self.asked(token)
        return token

    @rule(target=joins, token=joins, changed=st.booleans(), times=st.integers(1, 2))
    def join_again(self, token: str, changed: bool, times: int) -> Any:
        """Let a member rejoin, twice if its connection breaks in between."""
        member_id = self.member_of(token)
        if member_id is None:
            return multiple()
        metadata = b"new" if changed else b""
        instance = self.instance_of(member_id)
        again = [
            self.driver.join(member_id, v=7, instance=instance, metadata=metadata, rebalance_ms=15_000)
            for _ in range(times)
        ]
        self.waiting.update(again)
        return multiple(*again)

    @rule(token=joins)
    def sync(self, token: str) -> None:
        response = self.driver.replies.get(token)
        if response is None or response.error_code:
            return
        members = [member.member_id for member in response.members]
        assignments = self.assign(response.generation_id, members)
        self.asked(self.driver.sync(response.member_id, response.generation_id, assignments, v=3))

    @rule(settles=st.booleans())
    def everyone_answers(self, settles: bool) -> None:
        """Let members rejoin and sync as they should, the leader last, so that the group makes progress."""
        group = self.driver.shard.groups.get(GROUP)
        if group is None:
            return
        for member in list(group.members.values()):
            if group.state is GroupState.PREPARING_REBALANCE and member.join is None:
                instance = member.group_instance_id
                self.asked(self.driver.join(member.member_id, v=7, instance=instance, rebalance_ms=15_000))
        for _ in range(3):
            self.driver.advance(1_000)
        if group.state is not GroupState.COMPLETING_REBALANCE:
            return
        members = sorted(group.members, key=lambda member_id: member_id == group.leader_id)
        for member_id in members:
            assignments = self.assign(group.generation_id, members) if member_id == group.leader_id else {}
            self.asked(self.driver.sync(member_id, group.generation_id, assignments, v=3))
        if settles:
            self.driver.settle_all()
            for member_id in members:
                wants = [("t", index) for index in range(PARTITIONS)]
                polling = self.driver.poll(member_id, group.generation_id, *wants, instance=self.instance_of(member_id))
                self.asked(polling)

    @staticmethod
    def assign(generation_id: int, members: list[str]) -> dict[str, bytes]:
        """Return each member's share of the partitions, with the generation as user data."""
        generation = str(generation_id).encode()
        shares = {m: list(range(PARTITIONS)[at :: len(members)]) for at, m in enumerate(members)}
        return {
            m: encode_versioned(
                ConsumerProtocolAssignment(
                    assigned_partitions=[TopicPartition(topic="t", partitions=share)], user_data=generation
                ),
                1,
            )
            for m, share in shares.items()
        }

    @rule(token=joins, offset=st.integers(0, 1000), retention=st.sampled_from([-1, 5_000]))
    def commit(self, token: str, offset: int, retention: int) -> None:
        response = self.driver.replies.get(token)
        generation = -1 if response is None else response.generation_id
        member_id = "" if response is None else response.member_id
        partitions = {("t", offset % PARTITIONS): offset}
        self.asked(self.driver.commit(partitions, member_id, generation, retention_ms=retention, leader_epoch=3))

    @rule(token=joins)
    def heartbeat(self, token: str) -> None:
        response = self.driver.replies.get(token)
        if response is not None:
            self.driver.heartbeat(response.member_id, response.generation_id)

    @rule(
        token=joins,
        wants=st.sets(st.integers(0, PARTITIONS - 1)),
        reports=st.integers(0, PARTITIONS - 1),
        wait_ms=st.sampled_from([0, 5_000, 2**31 - 1]),
    )
    def poll(self, token: str, wants: set[int], reports: int, wait_ms: int) -> None:
        response = self.driver.replies.get(token)
        if response is None:
            return
        polling = self.driver.poll(
            response.member_id,
            response.generation_id,
            *[("t", index) for index in sorted(wants)],
            reports={("t", reports): 7},
            max_wait_ms=wait_ms,
            instance=self.instance_of(response.member_id),
        )
        self.asked(polling)

    @rule(token=consumes(joins))
    def leave(self, token: str) -> None:
        member_id = self.member_of(token)
        if member_id is not None:
            self.driver.leave((member_id, None))

    @rule(
        error=st.sampled_from(
            [ErrorCode.NONE] * 4 + [ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND]
        )
    )
    def settle(self, error: ErrorCode) -> None:
        if self.driver.in_flight:
            self.driver.settle(error)

    @rule()
    def overdue(self) -> None:
        if self.driver.in_flight:
            self.driver.overdue()

    @rule(by_ms=st.sampled_from([1, 999, 999, 4_000, 4_000, 10_000]))
    def advance(self, by_ms: int) -> None:
        self.driver.advance(by_ms)

    @rule(what=st.sampled_from(["wait", "expire", "delete", "hand over", "hand over"]))
    def once_in_a_while(self, what: str) -> None:
        if what == "wait":
            self.driver.advance(60_000)
        elif what == "expire":
            self.driver.expire()
        elif what == "delete":
            self.asked(self.driver.delete_group())
        else:
            self.hand_over()

    def hand_over(self) -> None:
        """Let the old coordinator answer every waiting request, and the new one start from the log."""
        driver = self.driver
        turn = driver.turn()
        release_groups(turn, ErrorCode.NOT_COORDINATOR)
        driver.perform(turn.out)
        while driver.in_flight:
            driver.settle(ErrorCode.NOT_COORDINATOR)
        assert self.waiting <= set(driver.replies)
        self.driver = driver.restarted()
        self.driver.replies = driver.replies

    def member_of(self, token: str) -> str | None:
        response = self.driver.replies.get(token)
        if response is None or response.error_code not in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
            return None
        found: str = response.member_id
        return found

    def instance_of(self, member_id: str) -> str | None:
        return member_id.split("-")[0] if member_id.startswith("i") else None

    # ------------------------------------------------------------ invariants

    @invariant()
    def replaying_the_log_gives_the_durable_state(self) -> None:
        durable = self.driver.shard.durable
        assert self.driver.replayed() == durable
        committers: dict[str, Counter[str]] = {}
        for group_id, of_group in durable.offsets.items():
            for tp in of_group:
                committers.setdefault(tp.topic, Counter())[group_id] += 1
        assert durable.committers == committers

    @invariant()
    def the_memory_of_groups_is_counted(self) -> None:
        shard = self.driver.shard
        members = sum(m.kept_bytes for group in shard.groups.values() for m in group.members.values())
        pending = sum(PENDING_BYTES + len(i) for group in shard.groups.values() for i in group.pending_members)
        of_groups = sum(
            GROUP_BYTES + group.assigned_bytes
            for group in shard.groups.values()
            if group.members or group.pending_members
        )
        assert shard.memory.taken_bytes == members + pending + of_groups
        for group in shard.groups.values():
            stored = shard.durable.generations.get(group.group_id)
            if group.state is GroupState.STABLE and stored is not None:
                assert group.assigned_bytes >= sum(len(member.assignment) for member in stored.members.values())

    @invariant()
    def generations_never_go_back(self) -> None:
        stored = [r.value.generation_id if r.value else 0 for r in self.driver.log if isinstance(r, GroupRecord)]
        for before, after in itertools.pairwise(stored):
            assert after >= before or after == 0, stored

    @invariant()
    def one_owner_per_partition(self) -> None:
        stored = self.driver.shard.durable.generations.get(GROUP)
        if stored is None:
            return
        owned: list[int] = []
        for member in stored.members.values():
            if member.assignment:
                _, assigned = decode_versioned(ConsumerProtocolAssignment, member.assignment)
                assert assigned.user_data is not None and int(assigned.user_data) == stored.generation_id
                owned.extend(assigned.assigned_partitions[0].partitions)
        assert len(owned) == len(set(owned))
        assert len(owned) == (PARTITIONS if stored.members else 0)

    @invariant()
    def a_stable_group_is_what_is_stored(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is not None and group.state is GroupState.STABLE:
            stored = self.driver.shard.durable.generations[GROUP]
            assert stored.generation_id == group.generation_id

    @invariant()
    def the_group_counts_right(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is None:
            return
        assert group.awaiting_join == sum(member.join is not None for member in group.members.values())
        static = {m.group_instance_id: m.member_id for m in group.members.values() if m.group_instance_id}
        assert group.static_members == static
        assert (group.leader_id in group.members) == bool(group.members)
        assert set(group.pending_sync) <= set(group.members)
        assert not set(group.pending_members) & set(group.members)
        assert len(group.members) <= 2 * CLIENTS + self.driver.ids

    @invariant()
    def positions_are_of_this_generation_and_its_members(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is None:
            return
        positions = group.positions
        if group.state is not GroupState.STABLE:
            assert not positions.pollers and not positions.reports and not positions.waiting
            return
        assert set(positions.pollers) <= {*group.members, UNKNOWN_MEMBER_ID}  # that id polls without membership
        assert not set(positions.pollers) & set(positions.without_poll or ())
        wanted = {(tp, m) for m, poller in positions.pollers.items() for tp in poller.wants}
        assert wanted == {(tp, m) for tp, waiting in positions.waiting.items() for m in waiting}
        for tp in positions.reports:
            assert owner_of(self.driver.shard, group, tp) in positions.pollers

    @invariant()
    def a_deadline_is_never_missed(self) -> None:
        group = self.driver.shard.groups.get(GROUP)
        if group is None or group.state is GroupState.DEAD:
            return
        deadlines = [m.deadline_ms for m in group.members.values() if m.deadline_ms is not None]
        deadlines += group.pending_members.values()
        deadlines += [d for d in (group.rebalance_deadline_ms, group.sync_deadline_ms) if d is not None]
        deadlines += group.positions.deadlines()
        if deadlines:
            assert group.wake_ms is not None
            assert group.wake_ms <= min(deadlines)

    def teardown(self) -> None:
        """Check that every waiting request is answered when the log is healthy and time passes."""
        if not hasattr(self, "driver"):
            return
        self.driver.settle_all()
        for _ in range(4):
            self.driver.advance(1_800_000)
            self.driver.settle_all()
        assert self.waiting <= set(self.driver.replies)


GroupMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
test_group_invariants = GroupMachine.TestCase
