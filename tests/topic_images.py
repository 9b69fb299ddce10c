"""A topic as a controller that takes office would read it, after each write of the resizes it went through."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence

from controller.image import PartitionImage, TopicImage
from controller.resize import plan
from controller.states import PartitionStatus
from zk_schemas.partition_state import PartitionState
from zk_schemas.topic import TopicZnode

REPLICAS = [1, 2, 3]
HISTORIES = [(4, 6, 4, 0, 6), (1, 8, 3, 0, 2, 0, 4), (1, 8, 5, 3, 0, 1, 0), (2, 3, 2, 0, 5)]
"""The count a topic is created with, and those it is given then; 0: what is marked is removed."""


def created(partitions: int, *, led: int | None = None) -> TopicImage:
    """A topic that was never resized, of whose partitions ``led`` had a leader."""
    znode = TopicZnode.new(uuid.UUID(int=1), {index: list(REPLICAS) for index in range(partitions)})
    topic = TopicImage("t", znode, 0, 0)
    for index in range(partitions):
        state = PartitionState(1, 1, 0, list(REPLICAS)) if index < (partitions if led is None else led) else None
        topic.partitions[index] = PartitionImage(PartitionStatus.ONLINE, state, acknowledged_epoch=0)
    return topic


def write(topic: TopicImage, changes: Sequence[plan.Change]) -> Iterator[None]:
    """Take each change over as if its multi were written and answered."""
    for change in changes:
        for index, state in {change.partition: change.state, **change.with_it}.items():
            partition = topic.partitions.setdefault(index, PartitionImage(PartitionStatus.NEW))
            partition.state, partition.acknowledged_epoch = state, state.leader_epoch
        yield


def resize(topic: TopicImage, count: int) -> Iterator[None]:
    """Carry out a resize; yields after each write to ZooKeeper."""
    znode = topic.znode
    topic.znode = znode = znode.replace(ordered_delivery=True)
    if count > znode.undeleted_partition_count:
        added = {index: list(REPLICAS) for index in range(len(znode.partitions), count)}
        topic.znode = znode.replace(partitions=znode.partitions | added)
        yield
        yield from write(topic, plan.records_of_new(topic, 1))
        yield from write(topic, plan.bumps_of_losers(topic, 1))
        layout = plan.grow_layout(topic, plan.new_partitions(topic))
        topic.znode = topic.znode.replace(**layout._asdict())
        yield
        led = ((index, topic.state(index)) for index in plan.waiting(topic))
        firsts = [(index, plan.first_leader(state, REPLICAS, REPLICAS, 1)) for index, state in led if state]
        yield from write(topic, [plan.Change(index, state) for index, state in firsts if state])
    else:
        topic.znode = znode.replace(undeleted_partition_count=count, layout_version=znode.layout_version + 1)
        yield
        yield from write(topic, plan.records_of_marked(topic, 1))
        yield from write(topic, plan.bumps_of_marked(topic, 1))
        for index in plan.marked(topic):
            state = topic.state(index)
            assert state is not None
            yield from write(topic, [plan.Change(index, state.replace(sealed_offset=0))])
        yield from write(topic, plan.bumps_of_survivors(topic, 1))


def drain(topic: TopicImage) -> Iterator[None]:
    """Remove what is marked, one by one."""
    for index in reversed(plan.marked(topic)):
        state = topic.state(index)
        assert state is not None
        yield from write(topic, [plan.Change(index, plan.removed(state, 1))])
        partitions = {number: replicas for number, replicas in topic.znode.partitions.items() if number < index}
        epochs = {**topic.znode.last_leader_epochs, index: state.leader_epoch}
        topic.znode = topic.znode.replace(partitions=partitions, last_leader_epochs=epochs)
        del topic.partitions[index]
        yield


def history(topic: TopicImage, *counts: int) -> Iterator[None]:
    """Each count in turn; 0: remove what is marked."""
    for count in counts:
        yield from resize(topic, count) if count else drain(topic)


def after(initial: int, *counts: int, steps: int | None = None) -> TopicImage:
    """A topic after all of its history, or after some steps of it."""
    topic = created(initial)
    for number, _ in enumerate(history(topic, *counts), 1):
        if number == steps:
            break
    return topic
