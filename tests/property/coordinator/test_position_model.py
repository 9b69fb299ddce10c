"""Random sequences of events of a group: no returned position is ahead of an unsaved record.

Members process records. Periodically they commit processed records, saved or not. They report only saved positions, by
a poll or with a commit. Members are cooperative (KIP-429): they keep partitions across rebalances without saving. A
partition that a member loses has no owner for one generation. In that generation the member saves the partition before
its first poll or its next join, however long the save takes. Members crash, and coordinators fail over.

- Below a returned position there is no record that a live member processed and did not save.
- Once every member has saved, polled and reported, every member gets every position: no member waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from anabranch.broker.coordinator import position_owners
from anabranch.broker.coordinator.group import Group
from anabranch.broker.coordinator.shard import Shard
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.types import TopicPartition
from tests.unit.coordinator.driver import GROUP, Driver, assignment

PARTITIONS = [("t", n) for n in range(4)]
MEMBERS = 3
SESSION_MS = 10_000
Partition = tuple[str, int]


@dataclass
class Member:
    """A consumer that keeps order, reduced to its positions."""

    member_id: str
    owned: list[Partition] = field(default_factory=list)
    lost: list[Partition] = field(default_factory=list)
    """Partitions that the member owned in the previous generation and has not saved since."""
    next_offset: dict[Partition, int] = field(default_factory=dict)
    unsaved_from: dict[Partition, int] = field(default_factory=dict)


class PositionMachine(RuleBasedStateMachine):
    """The group of the module docstring."""

    @initialize()
    def start(self) -> None:
        self.driver = Driver()
        self.members: list[Member] = []
        self.generation = 0
        self.checked: set[str] = set()
        self.rebalance([0, 1, 2, 0])

    # ------------------------------------------------------------ events

    @rule(owners=st.lists(st.integers(-1, MEMBERS - 1), min_size=len(PARTITIONS), max_size=len(PARTITIONS)))
    def rebalance(self, owners: list[int]) -> None:
        """Assign each partition to the member with this index, or to no member for -1.

        A partition of another owner is revoked first, and has no owner in this generation.
        """
        driver = self.driver
        for member in self.members:
            self.give_up(member)
        group = driver.shard.groups.get(GROUP)
        leader_id = None if group is None else group.leader_id
        self.members.sort(key=lambda member: member.member_id != leader_id)  # the leader's join begins a rebalance
        new = [driver.join(client=f"c{n}") for n in range(MEMBERS - len(self.members))]
        joins = [driver.join(member.member_id) for member in self.members] + new
        if not self.members:
            driver.advance(3 * driver.config.initial_rebalance_delay_ms)
        answers = [driver.replies[token] for token in joins]
        self.generation = answers[0].generation_id
        self.members += [Member(answer.member_id) for answer in answers[len(self.members) :]]
        places = dict(zip(PARTITIONS, owners, strict=True))
        free = {tp for tp in PARTITIONS if not any(tp in member.owned for member in self.members)}
        for place, member in enumerate(self.members):
            owned = [tp for tp, owner in places.items() if owner == place and (tp in free or tp in member.owned)]
            member.lost = [tp for tp in member.owned if tp not in owned]
            member.owned = owned
        shares = {member.member_id: assignment(*member.owned) for member in self.members}
        for member in self.members:
            is_leader = member.member_id == answers[0].leader
            driver.sync(member.member_id, self.generation, shares if is_leader else {})
        assert driver.state() == "Stable"
        for member in self.members:
            for tp in member.owned:
                member.next_offset.setdefault(tp, driver.committed(*tp) or 0)
        self.check()

    @rule(which=st.integers(0, 3), records=st.integers(1, 3))
    def process(self, which: int, records: int) -> None:
        for member, tp in self.owned()[which : which + 1]:
            member.unsaved_from.setdefault(tp, member.next_offset[tp])
            member.next_offset[tp] += records

    @rule(which=st.integers(0, 3))
    def commit_periodically(self, which: int) -> None:
        for member, tp in self.owned()[which : which + 1]:
            self.commit(member, tp)

    @rule(
        at=st.integers(0, MEMBERS - 1),
        wants=st.sets(st.sampled_from(PARTITIONS)),
        saves=st.sets(st.sampled_from(PARTITIONS)),
    )
    def poll(self, at: int, wants: set[Partition], saves: set[Partition]) -> None:
        """Save and report some owned partitions, and wait for some positions."""
        member = self.members[at]
        self.give_up(member)
        reports = {tp: self.save(member, tp) for tp in member.owned if tp in saves}
        self.driver.poll(member.member_id, self.generation, *sorted(wants), reports=reports)
        self.check()

    @rule(at=st.integers(0, MEMBERS - 1), saves=st.sets(st.sampled_from(PARTITIONS), min_size=1))
    def report_with_a_commit(self, at: int, saves: set[Partition]) -> None:
        """Save some owned partitions and commit. Before the generation's first poll the commit is no report."""
        member = self.members[at]
        for tp in [tp for tp in member.owned if tp in saves]:
            member.unsaved_from.pop(tp, None)
            self.commit(member, tp, processed=True)

    @rule(at=st.integers(0, MEMBERS - 1))
    def crash(self, at: int) -> None:
        """Remove a member: its unsaved records are lost with it, and no member waits for them."""
        member = self.members.pop(at)
        self.driver.leave((member.member_id, None))
        self.rebalance([0, 1, 2, 0])

    @rule()
    def fail_over(self) -> None:
        self.driver = self.driver.restarted()
        self.checked = set()

    @rule()
    def time_passes(self) -> None:
        """Let more than a session timeout pass with heartbeats and without polls."""
        for _ in range(3):
            for member in self.members:
                error = self.driver.heartbeat(member.member_id, self.generation, polls_positions=True)
                assert error is ErrorCode.NONE
            self.driver.advance(SESSION_MS // 2)
            self.check()

    # ------------------------------------------------------------ members

    def owned(self) -> list[tuple[Member, Partition]]:
        return [(member, tp) for member in self.members for tp in member.owned]

    def give_up(self, member: Member) -> None:
        for tp in member.lost:
            self.save(member, tp)
            del member.next_offset[tp]
        member.lost = []

    def save(self, member: Member, tp: Partition) -> int:
        """Let the flush callback return, and commit the offset."""
        member.unsaved_from.pop(tp, None)
        self.commit(member, tp)
        return member.next_offset.get(tp, 0)

    def commit(self, member: Member, tp: Partition, *, processed: bool = False) -> None:
        if tp in member.next_offset:
            self.driver.commit({tp: member.next_offset[tp]}, member.member_id, self.generation, processed=processed)
            self.check()

    # ------------------------------------------------------------ invariants

    def check(self) -> None:
        """Check every answer since the last call."""
        for token, response in self.driver.replies.items():
            if token in self.checked:
                continue
            self.checked.add(token)
            answered = [
                ((topic.name, found.partition_index), found.position)
                for topic in getattr(response, "topics", [])
                for found in topic.partitions
                if hasattr(found, "need_position")
            ]
            for tp, position in answered:
                for member in self.members:
                    assert member.unsaved_from.get(tp, position) >= position, (
                        f"a position of {tp} was returned too early"
                    )

    def teardown(self) -> None:
        if not hasattr(self, "members"):
            return
        for _ in range(2):
            for at in range(len(self.members)):
                self.poll(at, set(PARTITIONS), set(PARTITIONS))
        owner_of = {tp: member for member in self.members for tp in member.owned}
        known = {}
        for tp in PARTITIONS:
            committed = self.driver.committed(*tp)
            known[tp] = owner_of[tp].next_offset[tp] if tp in owner_of else (-1 if committed is None else committed)
        for member in self.members:
            answered = self.driver.answered(
                self.driver.poll(member.member_id, self.generation, *PARTITIONS, max_wait_ms=0)
            )
            assert answered is not None
            assert {tp: position for tp, (position, _) in answered.items()} == known


TestPositions = PositionMachine.TestCase
TestPositions.settings = settings(max_examples=60, stateful_step_count=30)


# ---------------------------------------------------------------- rules switched off

SEARCH = settings(
    max_examples=300,
    stateful_step_count=30,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    report_multiple_bugs=False,
)


def committed_always_counts(group: Group) -> None:
    """Treat every commit as a sign that the flush callback returned."""
    group.positions.pollers = {}
    group.positions.without_poll = {}


def first_polls_are_not_waited_for(group: Group) -> None:
    """Treat a member without a poll as one without unsaved records."""
    group.positions.without_poll = {}


@pytest.mark.parametrize("switched_off", [committed_always_counts, first_polls_are_not_waited_for])
def test_without_a_rule_the_model_finds_a_position_that_is_returned_too_early(
    switched_off: Callable[[Group], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = position_owners.position_of

    def mutated(shard: Shard, group: Group, tp: TopicPartition, incarnation: int) -> int:
        kept = group.positions.pollers, group.positions.without_poll
        switched_off(group)
        try:
            return real(shard, group, tp, incarnation)
        finally:
            group.positions.pollers, group.positions.without_poll = kept

    monkeypatch.setattr(position_owners, "position_of", mutated)
    with pytest.raises(AssertionError, match="too early"):
        run_state_machine_as_test(PositionMachine, settings=SEARCH)
