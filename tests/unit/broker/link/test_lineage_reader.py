"""Responses to PartitionLeaderEpochsForPartitions (25301) name only state that the broker has read.

A broker that has not read a partition's lineage must not report that the partition waits for nothing.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing

from anabranch.broker.link.lineage_reader import LineageQuestion, LineageReader
from anabranch.broker.metadata_cache import BrokerInfo, CachedPartition, CachedTopic, MetadataCache
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.lineage import BELOW_EVERY_EPOCH
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition as PartitionAnswer,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SessionState, SetOp, ZkStore
from anabranch.zk_schemas.partition_state import Before, LineageEntry, PartitionLayout, PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from sim.zk import FakeSession, FakeZk

T1, T5 = TopicPartition("t", 1), TopicPartition("t", 5)
TOPIC, STATE = TopicZnode.path("t"), PartitionState.path("t", 5)
NOT_YET = ErrorCode.LEADER_NOT_AVAILABLE
LINEAGE = (LineageEntry(0, {1: 0}), LineageEntry(2, {1: 2}))

pytestmark = pytest.mark.trio


class WatchedZk:
    """A session that counts reads through it, and lets a test act before a read."""

    def __init__(self, session: FakeSession) -> None:
        self.session = session
        self.reads: list[str] = []
        self.syncs = 0
        self.before: dict[str, Callable[[], Awaitable[Any]]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    async def sync(self, path: str) -> None:
        self.syncs += 1
        await self.session.sync(path)

    async def get(self, path: str, watch: Any = None) -> Any:
        self.reads.append(path)
        if (act := self.before.pop(path, None)) is not None:
            await act()
        return await self.session.get(path, watch)


class LineageFixture:
    """A broker's view of topic ``t``, which had 4 partitions and now has 6, and the controller's session."""

    def __init__(self, max_bytes: int = 1 << 20, latency_s: Callable[[], float] = lambda: 0.0) -> None:
        server = FakeZk(latency_s)
        self.controller: ZkStore = server.session()
        self.own = server.session()
        self.zk = WatchedZk(self.own)
        self.metadata = MetadataCache()
        self.metadata.brokers[1] = BrokerInfo(1, {})
        partitions = {index: CachedPartition(1, 0, [1], [1], [], 100 + index) for index in range(6)}
        self.metadata.topics["t"] = CachedTopic(partitions=partitions)
        store: Any = self.zk
        self.lineages = LineageReader(store, self.metadata, max_bytes)

    async def create(self, topic: TopicZnode | None = None, **states: PartitionState) -> int:
        """Create the topic's znode, and the state of each partition ``p<number>``. Return the topic's incarnation."""
        await self.controller.create(TOPIC, (topic or resized()).encode(), make_parents=True)
        for name, found in (states or {"p5": state()}).items():
            path = PartitionState.path("t", int(name[1:]))
            await self.controller.create(path, found.encode(), make_parents=True)
        return (await self.controller.get(TOPIC)).czxid

    async def remove(self, topic: TopicZnode) -> None:
        """Complete a removal, which is a single write."""
        await self.controller.multi([SetOp(TOPIC, topic.encode()), DeleteOp(STATE)])

    async def ask(self, tp: TopicPartition = T5, topic_incarnation: int = -1) -> PartitionAnswer | None:
        """Answer a question as the handler does."""
        question = LineageQuestion(tp, topic_incarnation)
        known = self.lineages.answer(question)
        return known or self.lineages.answer(question, await self.lineages.read([question]))


@pytest.fixture
async def lineage_fixture() -> LineageFixture:
    return LineageFixture()


def resized(last_leader_epochs: dict[int, int] | None = None, count: int = 6, version: int = 3) -> TopicZnode:
    return TopicZnode.new(uuid.UUID(int=1), {p: [1] for p in range(count)}).replace(
        initial_partition_count=4, layout_version=version, last_leader_epochs=last_leader_epochs or {}
    )


def state(leader_epoch: int = 2, lineage: tuple[LineageEntry, ...] = LINEAGE, floor: int = -1) -> PartitionState:
    layout, before = PartitionLayout(6, 3), Before(PartitionLayout(4, 2), 1)
    found = PartitionState(1, 1, leader_epoch, [1], layout, initial_partition_count=4)
    return found.replace(lineage=lineage, floor=floor, before=before if leader_epoch > 1 else None)


def answer_of(answer: PartitionAnswer | None) -> tuple[int, int, int, list[tuple[int, dict[int, int]]]]:
    """Return as_of, over, floor and the entries of an answer."""
    assert answer is not None and answer.error_code == 0
    entries = [(entry.epoch, {q.partition_index: q.leader_epoch for q in entry.losers}) for entry in answer.lineage]
    return answer.as_of, answer.over, answer.floor, entries


async def test_the_answer_has_the_times_that_the_znode_has(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    await lineage_fixture.controller.set(STATE, state().replace(lineage_times={2: 300}).encode())
    answer = await lineage_fixture.ask()
    assert answer is not None and [entry.written_ms for entry in answer.lineage] == [-1, 300]
    assert Lineage.of_answer(answer) == Lineage(2, -1, LINEAGE, {2: 300})


async def test_the_answer_is_the_lineage_in_the_znodes(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    assert answer_of(await lineage_fixture.ask()) == (2, -1, -1, [(0, {1: 0}), (2, {1: 2})])
    await lineage_fixture.controller.set(STATE, state(4, LINEAGE[1:], 0).encode())
    await lineage_fixture.controller.set(TOPIC, resized({5: 0, 7: 3}).encode())
    assert answer_of(await lineage_fixture.ask()) == (4, 0, 0, [(2, {1: 2})]), (
        "``over`` is also set for a partition that exists again"
    )
    assert answer_of(await lineage_fixture.ask(TopicPartition("t", 7))) == (-1, 3, -1, []), (
        "``over`` is also set for a partition that no longer exists"
    )


async def test_the_answer_has_the_end_offset_of_a_removed_partition(lineage_fixture: LineageFixture) -> None:
    """A removed log without records has no entry in the topic's znode."""
    await lineage_fixture.create()
    never_removed = await lineage_fixture.ask()
    assert never_removed is not None and never_removed.over_end_offset == -1
    await lineage_fixture.controller.set(
        TOPIC, resized({5: 0, 6: 2, 7: 3}).replace(last_offsets={5: 40, 7: 9}).encode()
    )
    for number, end in {5: 40, 6: 0, 7: 9}.items():
        answer = await lineage_fixture.ask(TopicPartition("t", number))
        assert answer is not None and (number, answer.over_end_offset) == (number, end)


async def test_a_partition_that_never_existed_is_unknown_and_causes_no_read(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    await lineage_fixture.ask()
    lineage_fixture.zk.reads.clear()
    for partition in (6, 2**31 - 1, -1):
        answer = await lineage_fixture.ask(TopicPartition("t", partition))
        assert answer is not None and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    answer = await lineage_fixture.ask(TopicPartition("../config", 0))
    assert answer is not None and answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert lineage_fixture.zk.reads == []


async def test_before_the_first_update_metadata_an_unknown_partition_may_exist(lineage_fixture: LineageFixture) -> None:
    lineage_fixture.metadata.brokers.clear()
    assert await lineage_fixture.ask(TopicPartition("u", 0)) is None


async def test_an_assigned_partition_that_is_not_created_yet_gets_no_answer(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create(p1=state())
    assert await lineage_fixture.ask() is None
    await lineage_fixture.controller.create(STATE, state(0, LINEAGE[:1]).encode(), make_parents=True)
    assert answer_of(await lineage_fixture.ask())[0] == 0


async def test_a_partition_that_was_never_led_gets_no_answer(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create(p5=PartitionState(1, -1, -1, []))
    assert await lineage_fixture.ask() is None


@pytest.mark.parametrize("before", [TOPIC, STATE])
async def test_a_partition_removed_during_the_read_is_answered_with_its_last_epoch(
    lineage_fixture: LineageFixture, before: str
) -> None:
    """An answer with neither state nor last epoch would not show that the partition was removed."""
    await lineage_fixture.create()
    lineage_fixture.zk.before[before] = lambda: lineage_fixture.remove(resized({5: 2}))
    assert answer_of(await lineage_fixture.ask()) == (-1, 2, -1, [])


async def test_a_partition_that_is_created_again_is_read_again(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    await lineage_fixture.ask()
    await lineage_fixture.remove(resized({5: 2}))
    assert answer_of(await lineage_fixture.ask()) == (-1, 2, -1, [])
    await lineage_fixture.controller.create(STATE, state(3, (LineageEntry(3, {1: 4}),)).encode())
    assert answer_of(await lineage_fixture.ask()) == (3, 2, -1, [(3, {1: 4})])


async def test_repeated_requests_read_each_znode_once_after_a_sync(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    for _ in range(3):
        await lineage_fixture.ask()
    assert (lineage_fixture.zk.syncs, lineage_fixture.zk.reads) == (1, [TOPIC, STATE])


async def test_concurrent_requests_share_one_read(lineage_fixture: LineageFixture) -> None:
    await lineage_fixture.create()
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(lineage_fixture.ask)
    assert lineage_fixture.zk.reads == [TOPIC, STATE]


async def test_a_new_topic_of_the_same_name_never_gets_the_lineage_of_the_old_one(
    lineage_fixture: LineageFixture,
) -> None:
    first = await lineage_fixture.create()
    answer = await lineage_fixture.ask(topic_incarnation=first)
    assert (answer_of(answer)[0], lineage_fixture.lineages.topic_incarnation("t")) == (2, first)
    assert await lineage_fixture.ask(topic_incarnation=first + 1) is None, "the metadata of this broker is behind"
    for path in (STATE, STATE.removesuffix("/state"), f"{TOPIC}/partitions", TOPIC):
        await lineage_fixture.controller.delete(path)
    assert await lineage_fixture.ask() is None
    second = await lineage_fixture.create(p5=state(0, LINEAGE[:1]))
    assert answer_of(await lineage_fixture.ask(topic_incarnation=second)) == (0, -1, -1, [(0, {1: 0})])
    assert lineage_fixture.lineages.topic_incarnation("t") == second


async def test_a_topic_created_again_between_two_reads_gives_no_mixture_of_both(
    lineage_fixture: LineageFixture,
) -> None:
    await lineage_fixture.create(p5=state(7))

    async def again() -> None:
        for path in (STATE, STATE.removesuffix("/state"), f"{TOPIC}/partitions", TOPIC):
            await lineage_fixture.controller.delete(path)
        await lineage_fixture.create(resized({5: 9}), p5=state(10))

    lineage_fixture.zk.before[STATE] = again
    assert answer_of(await lineage_fixture.ask())[:2] == (10, 9)


async def test_without_zookeeper_a_lineage_that_may_have_changed_gets_no_answer(
    lineage_fixture: LineageFixture,
) -> None:
    await lineage_fixture.create()
    await lineage_fixture.ask()
    lineage_fixture.own.disconnect()
    assert lineage_fixture.own.state is SessionState.SUSPENDED
    assert await lineage_fixture.ask() is None
    lineage_fixture.own.reconnect()
    assert answer_of(await lineage_fixture.ask())[0] == 2


@pytest.mark.parametrize("path", [TOPIC, STATE])
async def test_a_malformed_znode_is_named_and_read_once_until_it_is_repaired(
    lineage_fixture: LineageFixture, path: str
) -> None:
    await lineage_fixture.create()
    intact = (await lineage_fixture.controller.get(path)).data
    await lineage_fixture.controller.set(path, b"{")
    for _ in range(3):
        answer = await lineage_fixture.ask()
        assert answer is not None and answer.error_code == NOT_YET
        assert str(answer.error_message).startswith(f"znode {path}: ")
    assert lineage_fixture.zk.reads.count(path) == 1
    await lineage_fixture.controller.set(path, intact)
    assert answer_of(await lineage_fixture.ask())[0] == 2


async def test_a_lineage_whose_epochs_do_not_ascend_gets_leader_not_available(lineage_fixture: LineageFixture) -> None:
    """The entries descend, as after an edit by hand."""
    await lineage_fixture.create(p5=state(lineage=(LineageEntry(2, {1: 2}), LineageEntry(0, {1: 0}))))
    answer = await lineage_fixture.ask()
    assert answer is not None and answer.error_code == NOT_YET


async def test_a_partition_with_a_layout_and_no_initial_count_gets_leader_not_available(
    lineage_fixture: LineageFixture,
) -> None:
    await lineage_fixture.create(
        p5=PartitionState(1, 1, 2, [1], PartitionLayout(6, 1)), p1=PartitionState(1, 1, 2, [1])
    )
    answer = await lineage_fixture.ask()
    assert answer is not None and answer.error_code == NOT_YET
    assert answer_of(await lineage_fixture.ask(T1)) == (2, -1, -1, []), "the partition still has the first layout"


async def test_the_cache_stays_within_its_limit_and_every_partition_is_answered() -> None:
    lineage_fixture = LineageFixture(max_bytes=2_000)
    await lineage_fixture.create(**{f"p{number}": state(number, ()) for number in range(6)})
    questions = [LineageQuestion(TopicPartition("t", number)) for number in range(6)]
    read = await lineage_fixture.lineages.read(questions)
    kept = sum(known.size for known in lineage_fixture.lineages._known.values())
    assert 0 < lineage_fixture.lineages.size_bytes == kept <= 2_000
    for number, question in enumerate(questions):
        assert answer_of(lineage_fixture.lineages.answer(question, read))[0] == number
        assert answer_of(await lineage_fixture.ask(question.tp))[0] == number


@pytest.mark.parametrize("seed", range(20))
async def test_an_answer_is_one_consistent_state_of_both_znodes_during_writes(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """Each answer is the state of both znodes at one time, while partition 5 is bumped, removed and created again."""
    rng = random.Random(seed)
    lineage_fixture = LineageFixture(latency_s=lambda: rng.random() * 0.02)
    await lineage_fixture.create(p5=state(0, ()))
    states = {(0, -1)}
    epoch, over, exists = 0, -1, True
    answers: list[tuple[int, int]] = []

    async def write() -> None:
        nonlocal epoch, over, exists
        if not exists:
            epoch, exists = over + 1, True
            await lineage_fixture.controller.create(STATE, state(epoch, ()).encode())
        elif rng.random() < 0.5:
            epoch += 1
            await lineage_fixture.controller.set(STATE, state(epoch, ()).encode())
        else:
            over, exists = epoch, False
            await lineage_fixture.remove(resized({5: over}))
        states.add((epoch if exists else -1, over))

    async def ask() -> None:
        for _ in range(40):
            await trio.sleep(rng.random() * 0.03)  # virtual time: at any moment of a write
            if (answer := await lineage_fixture.ask()) is not None:
                answers.append(answer_of(answer)[:2])

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(ask)
        for _ in range(30):
            await trio.sleep(rng.random() * 0.05)  # virtual time: several questions between two writes
            await write()
    assert set(answers) <= states
    assert len(set(answers)) > 10
    with trio.fail_after(5):  # the watch event of the last write is under way
        while (last := await lineage_fixture.ask()) is None or answer_of(last)[:2] != (epoch if exists else -1, over):
            await trio.sleep(0.01)  # polls: virtual time


async def test_the_first_kept_epoch_moves_past_entries_whose_ancestors_are_removed(
    lineage_fixture: LineageFixture,
) -> None:
    await lineage_fixture.create(p5=state(4))
    assert await lineage_fixture.lineages.first_kept_epoch(T5) == 0
    reads = len(lineage_fixture.zk.reads)
    assert await lineage_fixture.lineages.first_kept_epoch(T5) == 0
    assert len(lineage_fixture.zk.reads) == reads, "a watched znode is not read again"
    for removed, kept_from in (({1: 0}, 2), ({1: 2}, 5)):
        await lineage_fixture.controller.set(TOPIC, resized(removed).encode())
        assert await lineage_fixture.lineages.first_kept_epoch(T5) == kept_from


async def test_all_tombstones_stay_while_the_lineage_is_not_known(lineage_fixture: LineageFixture) -> None:
    assert await lineage_fixture.lineages.first_kept_epoch(T5) == BELOW_EVERY_EPOCH, "there is no znode"
    await lineage_fixture.create(p1=state(-1, ()), p5=state().replace(initial_partition_count=None))
    assert await lineage_fixture.lineages.first_kept_epoch(T1) == BELOW_EVERY_EPOCH, "the partition was never led"
    assert await lineage_fixture.lineages.first_kept_epoch(T5) == BELOW_EVERY_EPOCH, (
        "the state is of a release without lineages"
    )
    assert await lineage_fixture.lineages.first_kept_epoch(TopicPartition("other", 0)) == BELOW_EVERY_EPOCH
    await lineage_fixture.controller.set(STATE, state().encode())
    lineage_fixture.own.expire()
    assert await lineage_fixture.lineages.first_kept_epoch(T5) == BELOW_EVERY_EPOCH, "ZooKeeper does not answer"
