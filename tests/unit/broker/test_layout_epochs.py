"""The answers to PartitionLeaderEpochsForPartitions (25301): never more than was read, never "nothing to wait for"."""

from __future__ import annotations

from typing import Any

import pytest

from broker.layout_epochs import LayoutEpochs, recorded_ancestor
from broker.metadata_cache import MetadataCache, PartitionInfo, TopicInfo
from protocol.errors import ErrorCode
from protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponsePartition as PartitionEpochs,
)
from protocol.types import TopicPartition
from runtime.env import SessionState, ZkStore
from runtime.sim_zk import FakeSession, FakeZk
from zk_schemas.partition_state import PartitionState

T5 = TopicPartition("t", 5)
PATH = PartitionState.path("t", 5)
NOT_YET = ErrorCode.LEADER_NOT_AVAILABLE


class CountedZk:
    """A session that counts what is read through it."""

    def __init__(self, session: FakeSession) -> None:
        self.session = session
        self.reads = 0
        self.syncs = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.session, name)

    async def sync(self, path: str) -> None:
        self.syncs += 1
        await self.session.sync(path)

    async def get(self, path: str, watch: Any = None) -> Any:
        self.reads += 1
        return await self.session.get(path, watch)


class World:
    """A broker's view of topic ``t``, 4 partitions at first and 6 now, and the controller's session."""

    def __init__(self, max_partitions: int = 100) -> None:
        server = FakeZk()
        self.controller: ZkStore = server.session()
        self.own = server.session()
        self.zk = CountedZk(self.own)
        self.metadata = MetadataCache()
        store: Any = self.zk
        self.epochs = LayoutEpochs(store, self.metadata, max_partitions)

    async def create(self, key: TopicPartition = T5, **fields: Any) -> int:
        """A partition's znode, and metadata that names it; its incarnation."""
        path = PartitionState.path(*key)
        await self.controller.create(path, state(**fields), make_parents=True)
        incarnation = (await self.controller.get(path)).czxid
        self.tell(incarnation, key)
        return incarnation

    def tell(self, incarnation: int, key: TopicPartition = T5, initial: int = 4) -> None:
        topic = self.metadata.topics.setdefault("t", TopicInfo())
        topic.initial_partition_count, topic.undeleted_partition_count, topic.layout_version = initial, 6, 1
        topic.partitions[key.partition] = PartitionInfo(1, 0, [1], [1], [], incarnation)

    async def ask(self, key: TopicPartition = T5, incarnation: int = -1) -> PartitionEpochs:
        """As the handler does."""
        question = key, incarnation
        read = await self.epochs.read([key]) if self.epochs.answer_now(question) is None else {}
        return self.epochs.answer(question, read)


def state(
    created: dict[int, int] | None = None, merged: dict[int, int] | None = None, sealed_offset: int = -1
) -> bytes:
    found = PartitionState(
        controller_epoch=1,
        leader=1,
        leader_epoch=0,
        isr=[1],
        leader_epoch_after_creation={1: 0} if created is None else created,
        leader_epoch_before_deletion=merged or {},
        sealed_offset=sealed_offset,
    )
    return found.encode()


def told(answer: PartitionEpochs) -> tuple[int, ...]:
    """Both halves of an answer."""
    assert answer.error_code == 0
    return (
        answer.created_from,
        answer.leader_epoch_after_creation,
        answer.merged_into,
        answer.leader_epoch_before_deletion,
        answer.sealed_offset,
    )


@pytest.mark.trio
async def test_a_split_and_a_merge_as_the_znode_says() -> None:
    world = World()
    incarnation = await world.create()
    answer = await world.ask(incarnation=incarnation)
    assert (answer.incarnation, told(answer)) == (incarnation, (1, 0, -1, -1, -1))
    await world.controller.set(PATH, state(merged={1: 3}, sealed_offset=40))
    assert told(await world.ask(incarnation=incarnation)) == (1, 0, 1, 3, 40)


@pytest.mark.trio
async def test_one_of_the_first_partitions_needs_no_znode() -> None:
    world = World()
    world.tell(70, TopicPartition("t", 2))
    answer = await world.ask(TopicPartition("t", 2), 70)
    assert (answer.incarnation, told(answer)) == (70, (-1, -1, -1, -1, -1))
    assert (await world.ask(TopicPartition("t", 2), 71)).error_code == NOT_YET
    assert world.zk.reads == 0


@pytest.mark.trio
async def test_what_does_not_exist_is_unknown() -> None:
    world = World()
    assert (await world.ask()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    world.tell(70)
    assert (await world.ask()).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await world.ask(TopicPartition("t", 9))).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.trio
async def test_a_topic_whose_first_count_is_not_known_has_to_wait() -> None:
    world = World()
    world.tell(70, initial=-1)
    assert (await world.ask()).error_code == NOT_YET


@pytest.mark.trio
async def test_it_reads_once_and_after_a_sync() -> None:
    world = World()
    await world.create()
    for _ in range(3):
        await world.ask()
    assert (world.zk.syncs, world.zk.reads) == (1, 1)


@pytest.mark.trio
async def test_an_epoch_that_is_not_known_yet_is_looked_for_each_time() -> None:
    """-1 with created_from is "not yet", which blocks the consumer: it must not last longer than it has to."""
    world = World()
    await world.create(created={1: -1})
    assert told(await world.ask()) == (1, -1, -1, -1, -1)
    assert told(await world.ask()) == (1, -1, -1, -1, -1)
    assert world.zk.reads == 2
    await world.controller.set(PATH, state(created={1: 4}))
    assert told(await world.ask()) == (1, 4, -1, -1, -1)


@pytest.mark.trio
async def test_hole_9_an_earlier_incarnations_map_is_never_served_for_a_later_one() -> None:
    world = World()
    first = await world.create()
    assert told(await world.ask(incarnation=first)) == (1, 0, -1, -1, -1)
    assert (await world.ask(incarnation=first + 1)).error_code == NOT_YET
    await world.controller.delete(PATH)
    await world.controller.create(PATH, state(created={1: 8}))
    second = (await world.controller.get(PATH)).czxid
    # The metadata is still the first one's: its initial count may be another topic's.
    assert (await world.ask(incarnation=second)).error_code == NOT_YET
    world.tell(second)
    answer = await world.ask(incarnation=first)
    assert (answer.incarnation, told(answer)) == (second, (1, 8, -1, -1, -1))


@pytest.mark.trio
async def test_hole_9_metadata_that_is_ahead_of_what_was_read_is_enough_to_read_again() -> None:
    world = World()
    first = await world.create()
    await world.ask()
    world.tell(first + 1)
    assert (await world.ask()).error_code == NOT_YET


@pytest.mark.trio
async def test_a_later_partition_without_an_entry_has_to_wait() -> None:
    """Hole 1: "nothing recorded" is not "nothing to wait for"."""
    world = World()
    await world.create(created={})
    assert (await world.ask()).error_code == NOT_YET


@pytest.mark.trio
async def test_hole_15_a_lowered_sealed_offset_is_seen() -> None:
    """An unclean election loses records below the seal: the deletion half lives no longer than its data watch."""
    world = World()
    await world.create(merged={1: 3}, sealed_offset=40)
    assert told(await world.ask())[-1] == 40
    await world.controller.set(PATH, state(merged={1: 3}, sealed_offset=30))
    assert told(await world.ask())[-1] == 30


@pytest.mark.trio
async def test_without_zookeeper_what_may_have_changed_has_to_wait() -> None:
    world = World()
    await world.create()
    await world.ask()
    world.own.disconnect()
    assert world.own.state is SessionState.SUSPENDED
    assert (await world.ask()).error_code == NOT_YET
    world.own.reconnect()
    assert told(await world.ask()) == (1, 0, -1, -1, -1)


@pytest.mark.trio
async def test_a_malformed_znode_has_to_wait() -> None:
    world = World()
    await world.create()
    await world.controller.set(PATH, b"{")
    assert (await world.ask()).error_code == NOT_YET


@pytest.mark.parametrize(
    ("epochs", "found"),
    [
        ({}, (-1, -1)),
        ({3: 7}, (3, 7)),
        ({0: 1, 1: 2, 2: 3, 3: 4, 7: 5}, (7, 5)),  # the KIP writes every partition: the nearest ancestor counts
        ({0: 1, 1: 2, 2: 3, 3: 4}, (3, 4)),
        ({0: 1, 1: 2}, (-1, -1)),
    ],
)
def test_the_nearest_ancestor_in_a_map_counts(epochs: dict[int, int], found: tuple[int, int]) -> None:
    """23 split from 7, 7 from 3."""
    assert recorded_ancestor(23, 4, epochs) == found


@pytest.mark.trio
async def test_it_keeps_no_more_than_its_limit() -> None:
    world = World(max_partitions=2)
    keys = [TopicPartition("t", partition) for partition in (4, 5, 6, 7)]
    for key in keys:
        await world.create(key, created={key.partition - 4: 0})
    read = await world.epochs.read(keys)
    assert len(world.epochs) == 2
    for key in keys:
        assert told(world.epochs.answer((key, -1), read))[0] == key.partition - 4
        assert told(await world.ask(key))[0] == key.partition - 4
