"""A controller carries out a bounded number of due steps at a time, and never a part of a step.

It carries out no step of a topic that cannot be judged.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.controller.carry_out import carry_out, carry_out_all
from anabranch.controller.config import ControllerConfig
from anabranch.controller.effects import Effects
from anabranch.controller.events import ResizesDue
from anabranch.controller.feature_level_rules import for_new_cluster
from anabranch.controller.image import ClusterImage, Ending, LiveBroker, TopicImage
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.request_batch import RequestBatch
from anabranch.controller.resize import goal, steps
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.ordered_resize.next_step import next_steps
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest, UpdateMetadataTopicState
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint, VersionRange
from anabranch.zk_schemas.features import ORDERED_RESIZE, SUPPORTED
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.topic_images import asked, image_of, resized
from tests.support.resize.resized_topic import Topic

pytestmark = pytest.mark.trio


class Store:
    """Accepts every write and collects the writes in ``multis``."""

    def __init__(self) -> None:
        self.multis: list[list[ZkOp]] = []

    async def write(self, ops: Sequence[ZkOp]) -> list[int]:
        self.multis.append(list(ops))
        return [op.version + 1 if isinstance(op, SetOp) else -1 if isinstance(op, DeleteOp) else 0 for op in ops]

    async def children(self, _path: str) -> list[str]:
        return []

    async def exists(self, _path: str) -> SimpleNamespace:
        return SimpleNamespace(czxid=77)

    @property
    def written(self) -> list[str]:
        return [op.path for multi in self.multis for op in multi]


class ResizeFixture:
    """A controller's context with brokers 1 and 2 and one topic."""

    def __init__(self, topic: TopicImage) -> None:
        registration = BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)], features=SUPPORTED)
        self.brokers = {id: LiveBroker(id, 5, registration) for id in (1, 2)}
        self.image = ClusterImage(1000, 4, brokers=self.brokers, topics={"t": topic})
        self.image.features = for_new_cluster(SUPPORTED)
        self.topic, self.store, self.queued = topic, Store(), list[Any]()
        self.batch = RequestBatch(self.image, None)
        self.context: Any = SimpleNamespace(
            config=ControllerConfig(controller_id=1000, zookeeper_connect="z", stock_producer_grace_ms=0),
            rng=random.Random(1),
            image=self.image,
            store=self.store,
            batch=self.batch,
            senders=SimpleNamespace(last_flush=0),
            events=SimpleNamespace(put=self.queued.append, soon=lambda **_: None),
            metrics=ControllerMetrics(),
            clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 0),
        )

    async def advance(self) -> list[list[ZkOp]]:
        """Return the multis of one event."""
        self.store.multis.clear()
        self.queued.clear()
        await carry_out_all(self.context, steps.advance(self.context))
        return self.store.multis

    async def become(self, znode: TopicZnode) -> None:
        """Give the topic another goal."""
        await carry_out(self.context, goal.becoming(self.topic, znode, self.topic.version))

    def answer(self) -> None:
        """Let every leader acknowledge its last leader epoch."""
        for partition in self.topic.partitions.values():
            if partition.state is not None:
                partition.acknowledged_epoch = partition.state.leader_epoch

    def sent(self) -> UpdateMetadataTopicState:
        """Return the topic's state in the UpdateMetadata to broker 1."""
        requests = self.batch.build()[1]
        (request,) = [request for request in requests if isinstance(request, UpdateMetadataRequest)]
        (topic,) = request.topic_states
        return topic


def state_of(op: ZkOp) -> PartitionState:
    assert isinstance(op, SetOp | CreateOp)
    return PartitionState.decode(op.path, op.data)


def topic_of(op: ZkOp) -> TopicZnode:
    assert isinstance(op, SetOp) and op.path == paths.topic("t")
    return TopicZnode.decode(op.path, op.data)


async def test_a_grow_is_carried_out_losers_first() -> None:
    resize_fixture = ResizeFixture(image_of(asked(4, 6)))
    (bumps,) = await resize_fixture.advance()
    assert [op.path for op in bumps] == [paths.partition_state("t", p) for p in range(4)]
    assert [op.version for op in bumps if isinstance(op, SetOp)] == [5] * 4
    assert await resize_fixture.advance() == []  # no leader has answered
    resize_fixture.answer()
    (creation,) = await resize_fixture.advance()
    created = [state_of(op) for op in creation if op.path.endswith("/state")]
    assert [state.lineage for state in created] == [((0, {0: 0}),), ((0, {1: 0}),)]
    assert resize_fixture.topic.partitions[4].incarnation == 77


async def test_a_bounded_number_of_states_is_written_before_other_events() -> None:
    """An election waits for at most this number of writes."""
    resize_fixture = ResizeFixture(image_of(asked(600, 601)))
    counts = []
    while multis := await resize_fixture.advance():
        assert resize_fixture.queued.count(ResizesDue()) >= 1
        counts.append(sum(map(len, multis)))
    assert counts == [MAX_OPERATIONS, MAX_OPERATIONS, 600 - 2 * MAX_OPERATIONS]


async def test_topics_share_the_bound_on_written_states() -> None:
    resize_fixture = ResizeFixture(image_of(asked(200, 201)))
    for name in ("u", "v"):
        topic = resize_fixture.image.topics[name] = image_of(asked(200, 201))
        topic.name = name
    written = []
    for _ in range(3):
        await resize_fixture.advance()
        written.append(Counter(path.split("/")[3] for path in resize_fixture.store.written))
    assert written == [{"t": 200, "u": 56}, {"u": 144, "v": 112}, {"v": 88}]


def drained(*, end: int = 40) -> TopicImage:
    image = image_of(resized(4, 6, 4))
    for p in (4, 5):
        image.partitions[p].ending = Ending(1, end_offset=end, log_start_offset=end, is_processed=True)
    return image


async def test_log_ends_are_recorded_before_replicas_are_deleted() -> None:
    """A broker that deletes its replica and restarts no longer knows the end of the log."""
    resize_fixture = ResizeFixture(drained())
    ((znode, *states),) = await resize_fixture.advance()
    assert topic_of(znode).last_offsets == {4: 40, 5: 40}
    assert [state_of(op).being_removed for op in states] == [True, True]
    assert not any(isinstance(request, StopReplicaRequest) for request in resize_fixture.batch.build()[1])


async def test_a_removal_ends_once_every_replica_is_deleted() -> None:
    resize_fixture = ResizeFixture(drained())
    await resize_fixture.advance()
    await resize_fixture.advance()
    assert resize_fixture.store.multis == []
    stops = [request for request in resize_fixture.batch.build()[2] if isinstance(request, StopReplicaRequest)]
    assert [state.partition_index for state in stops[0].topic_states[0].partition_states] == [4, 5]
    for p, end in ((4, 41), (5, -1)):
        ending = resize_fixture.topic.partitions[p].ending
        assert ending is not None
        ending.stopped, ending.deleted_end_offset = {1, 2}, end
    ((znode, *deleted),) = await resize_fixture.advance()
    after = topic_of(znode)
    assert (after.last_leader_epochs, after.last_offsets) == ({4: 1, 5: 1}, {4: 41, 5: 40})
    assert sorted(after.partitions) == sorted(resize_fixture.topic.partitions) == [0, 1, 2, 3]
    assert len(deleted) == 4 and all(isinstance(op, DeleteOp) for op in deleted)
    orders = [request for request in resize_fixture.batch.build()[1] if isinstance(request, LeaderAndIsrRequest)]
    assert [topic.topic_id for request in orders for topic in request.topic_states] == [after.topic_id]


async def test_only_one_write_of_the_topic_znode_is_made_at_a_time() -> None:
    """If two writes were prepared together, each would undo the other."""
    image = drained()
    left = image.partitions[5]
    assert left.state is not None and left.ending is not None
    left.state = left.state.replace(leader=-2)
    left.ending.stopped, left.ending.deleted_end_offset = {1, 2}, 40
    resize_fixture = ResizeFixture(image)
    ((znode, *_),) = await resize_fixture.advance()
    assert topic_of(znode).last_leader_epochs == {5: 1}
    ((znode, *_),) = await resize_fixture.advance()
    assert topic_of(znode).last_offsets == {4: 40, 5: 40}


@pytest.mark.parametrize("change", [{"frozen": "odd"}, {"unreadable": {9}}])
async def test_nothing_is_written_for_a_topic_that_cannot_be_judged(change: dict[str, Any]) -> None:
    image = drained()
    assert image.partitions[5].state is not None
    image.partitions[5].state = image.partitions[5].state.replace(leader=-2)
    for name, value in change.items():
        setattr(image, name, value)
    resize_fixture = ResizeFixture(image)
    assert await resize_fixture.advance() == []
    assert resize_fixture.batch.build() == {}


async def test_nothing_is_written_while_the_level_is_not_finalized() -> None:
    """A broker of an earlier release may register at any time."""
    resize_fixture = ResizeFixture(image_of(asked(4, 6)))
    resize_fixture.image.features = for_new_cluster(SUPPORTED | {ORDERED_RESIZE: VersionRange(1, 1)})
    assert await resize_fixture.advance() == []


async def test_metadata_names_the_old_count_until_a_partition_stores_the_new_layout() -> None:
    resize_fixture = ResizeFixture(image_of(asked(4, 6)))
    resize_fixture.batch.metadata([TopicPartition("t", 0)])
    sent = resize_fixture.sent()
    assert (sent.undeleted_partition_count, sent.layout_version, len(sent.partition_states)) == (4, 0, 1)
    await resize_fixture.advance()
    sent = resize_fixture.sent()
    assert (sent.undeleted_partition_count, sent.layout_version, sent.topic_incarnation) == (6, 1, 7)
    coming = [(p.partition_index, p.leader, p.replicas) for p in sent.partition_states if p.leader < 0]
    assert coming == [(4, -1, [2, 1]), (5, -1, [2, 1])]


async def test_a_partition_that_is_being_removed_has_no_leader_in_the_metadata() -> None:
    """Rule 6: if metadata named a leader, a batch of the next layout could reach the partition's next incarnation."""
    resize_fixture = ResizeFixture(drained())
    await resize_fixture.advance()
    assert {p.partition_index: p.leader for p in resize_fixture.sent().partition_states} == {4: -2, 5: -2}


async def test_a_doubling_is_announced_to_brokers_before_it_begins() -> None:
    resize_fixture = ResizeFixture(image_of(asked(4, 8)))
    resize_fixture.context.config = ControllerConfig(
        controller_id=1000, zookeeper_connect="z", stock_producer_grace_ms=6_000
    )
    assert await resize_fixture.advance() == []
    sent = resize_fixture.sent()
    assert (sent.undeleted_partition_count, sent.layout_version, sent.announced_partition_count) == (4, 0, 8)
    assert sent.announced_leaders == [2, 2, 2, 2]


async def test_no_request_is_sent_to_brokers_before_the_first_bump() -> None:
    """A broker handles one request at a time, so other requests would delay the layout that producers wait for."""
    resize_fixture = ResizeFixture(image_of(Topic(4)))
    await resize_fixture.become(asked(4, 6).topic)
    assert resize_fixture.batch.build() == {}
    await resize_fixture.become(resize_fixture.topic.znode.replace(wanted=9))
    assert resize_fixture.batch.build() == {}


async def test_a_resize_that_is_taken_back_is_sent_to_brokers() -> None:
    topic = asked(4, 6)
    topic.write(next_steps(topic.snapshot())[0])
    resize_fixture = ResizeFixture(image_of(topic))
    topic.ask(4)
    await resize_fixture.become(topic.topic)
    sent = resize_fixture.sent()
    assert (sent.undeleted_partition_count, sent.layout_version) == (4, 2)


async def test_a_removed_partition_that_stays_assigned_has_no_state() -> None:
    resize_fixture = ResizeFixture(image_of(resized(4, 6)))
    znode = resize_fixture.topic.znode.replace(last_leader_epochs={5: 1})
    written = (SetOp(paths.topic("t"), znode.encode(), resize_fixture.topic.version),)
    await carry_out(resize_fixture.context, Effects("t", znode, writes=written, removed=(5,)))
    assert resize_fixture.topic.partitions[5].state is None
    assert resize_fixture.topic.partitions[4].state is not None


async def test_a_grow_over_draining_partitions_begins_at_once_and_revives_them() -> None:
    topic: Topic = resized(4, 6, 4)
    topic.ask(7)
    resize_fixture = ResizeFixture(image_of(topic))
    await resize_fixture.advance()
    resize_fixture.answer()
    multis = await resize_fixture.advance()
    gained = {op.path: state_of(op) for multi in multis for op in multi if op.path.endswith("/state")}
    revived = gained[paths.partition_state("t", 4)]
    assert (revived.leader_epoch, revived.lineage) == (2, ((0, {0: 0}), (2, {0: 2})))
    assert gained[paths.partition_state("t", 6)].lineage == ((0, {2: 2}),)
