"""Caches what this broker knows of the cluster: brokers, topics, leaders. Only UpdateMetadata changes the cache."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

import trio

from anabranch.broker.coordinator.counted import Creation
from anabranch.broker.log.slices import at_once
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol.generated.update_metadata import (
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.protocol.sentinels import (
    LEADER_DURING_DELETE,
    NO_COUNT,
    NO_EPOCH,
    NO_INCARNATION,
    NO_LAYOUT_VERSION,
    NO_LEADER,
    NO_NODE,
    NO_OFFSET,
)
from anabranch.protocol.types import ZERO_UUID, TopicPartition
from anabranch.runtime.wake_ups import WakeUps
from anabranch.zk_schemas.broker_registration import Endpoint

PARTITIONS_AT_ONCE = 256
"""The number of partitions that are updated or described in one step."""
DELETED_TOPICS = 10_000
"""The number of deleted topics whose leader epochs are remembered."""


@dataclass(slots=True)
class BrokerInfo:
    """A live broker; ``endpoints`` by listener name."""

    broker_id: int
    endpoints: Mapping[str, Endpoint]
    rack: str | None = None


@dataclass(slots=True)
class CachedPartition:
    """A partition as the controller last described it."""

    leader: int
    leader_epoch: int
    isr: list[int]
    replicas: list[int]
    offline_replicas: list[int]
    incarnation: int = NO_INCARNATION
    base_offset: int = NO_OFFSET
    """The offset where the partition's log begins and its predecessor's log ended; -1 without a predecessor."""


@dataclass(slots=True)
class CachedTopic:
    """A topic; ``partitions`` are kept in ascending order of their number."""

    topic_id: uuid.UUID = ZERO_UUID
    incarnation: int = NO_INCARNATION
    """Distinguishes the topic from others of the same name. The topic id does not: removals change it, too."""
    partitions: dict[int, CachedPartition] = field(default_factory=dict)
    initial_partition_count: int = NO_COUNT
    undeleted_partition_count: int = NO_COUNT
    layout_version: int = NO_LAYOUT_VERSION
    ordered_delivery: bool | None = None
    """Whether keys keep their order, fixed by the first resize. Before, it is None, and the configuration decides."""
    announced_partition_count: int = NO_COUNT
    """Before a split, the partition count announced to producers that name no layout; -1 if no count is announced."""
    announced_leaders: list[int] = field(default_factory=list)
    """The future leaders of the announced partitions, in the order of the partitions."""
    refreshes_stock_producers: bool = False
    """Whether producers are made to refresh metadata, because every live broker knows the announced count."""
    removed: set[int] = field(default_factory=set)
    """Numbers of partitions that existed and were merged away."""
    removed_leader_epoch: int = NO_EPOCH
    """The highest leader epoch of a removed partition; -1 if none was removed."""

    def remove(self, index: int, incarnation: int) -> int:
        """Drop a partition unless it was created again since; returns the removed incarnation, -1 if unknown."""
        known = self.partitions.get(index)
        if known is not None and 0 <= incarnation < known.incarnation:
            return incarnation
        self.partitions.pop(index, None)
        self.removed.add(index)
        if known is not None:
            self.removed_leader_epoch = max(self.removed_leader_epoch, known.leader_epoch)
        return incarnation if known is None else known.incarnation

    def coming_leader(self, index: int) -> int:
        """The future leader of a partition that never had a leader; -1 for others, or if no broker can lead it."""
        known = self.partitions.get(index)
        if known is not None:
            return known.replicas[0] if known.leader < 0 and not known.isr and known.replicas else NO_LEADER
        at = index - self.undeleted_partition_count
        return self.announced_leaders[at] if 0 <= at < len(self.announced_leaders) else NO_LEADER

    @property
    def layout(self) -> Layout:
        """The topic's layout (KIP-253). While a resize runs, the layout of a partition may be older or newer."""
        return Layout(self.undeleted_partition_count, self.layout_version, self.initial_partition_count)


def partition_info(state: UpdateMetadataPartitionState) -> CachedPartition:
    return CachedPartition(
        state.leader,
        state.leader_epoch,
        state.isr,
        state.replicas,
        state.offline_replicas,
        state.incarnation,
        state.base_offset,
    )


class MetadataCache:
    """Brokers and topics. It implements the group coordinator's ``Topics``."""

    def __init__(self) -> None:
        self.brokers: dict[int, BrokerInfo] = {}
        self.topics: dict[str, CachedTopic] = {}
        self._names: dict[uuid.UUID, str] = {}
        self._created: dict[TopicPartition, Creation] = {}
        self._deleted: dict[str, int] = {}
        """The highest leader epoch of each deleted topic, as far as this broker knew it; the last one deleted last."""
        self.is_withheld: Callable[[str], bool] = lambda _topic: False
        """Whether a topic's configuration withholds records from stock consumers."""
        self.update_lock = trio.Lock()
        """Held while an UpdateMetadata of many partitions is applied, so that no repeated request overtakes it."""
        self._updates = WakeUps()

    async def wait_for(self, condition: Callable[[], Any], timeout_s: float) -> bool:
        """Wait until ``condition()`` is true of this cache; returns whether it is."""
        with trio.move_on_after(timeout_s):
            while not condition():
                await self._updates.wait()
        return bool(condition())

    def was_updated(self) -> None:
        """Wake the tasks that wait for an update."""
        self._updates.wake()

    def contains(self, topic: str, partition: int) -> bool:
        info = self.topics.get(topic)
        return info is not None and partition in info.partitions

    def merged_away(self, topic: str, partition: int) -> bool:
        """Whether the partition is known to be removed. If it was in no metadata yet, it may be new."""
        info = self.topics.get(topic)
        return info is not None and partition in info.removed

    def withholds(self, topic: str) -> bool:
        """Whether leaders withhold records from the topic's stock consumers to keep the order of keys."""
        return self.is_withheld(topic)

    def is_resized(self, topic: str) -> bool:
        """Whether the topic's partition count was ever changed, as far as this broker knows."""
        info = self.topics.get(topic)
        return info is not None and info.layout_version > 0

    def take_created(self) -> dict[TopicPartition, Creation]:
        """The partitions that resizes created since the last call, as far as this broker has received them."""
        created, self._created = self._created, {}
        return created

    def goes_on(self, topic: str, partition: int) -> bool:
        """Whether offsets of a removed partition stay valid, because it was merged away, or was created again since."""
        return self.merged_away(topic, partition) or self.base_offset(topic, partition) >= 0

    def incarnation(self, topic: str, partition: int) -> int:
        """The present incarnation of a partition, -1 if it is not known or the partition does not exist."""
        info = self.topics.get(topic)
        found = None if info is None else info.partitions.get(partition)
        return NO_INCARNATION if found is None else found.incarnation

    def base_offset(self, topic: str, partition: int) -> int:
        """The first offset of a partition that was created again; -1 for other partitions, or if unknown."""
        info = self.topics.get(topic)
        found = None if info is None else info.partitions.get(partition)
        return NO_OFFSET if found is None else found.base_offset

    def is_of_deleted_topic(self, key: TopicPartition, leader_epoch: int) -> bool:
        """Whether the epoch belongs to an earlier, deleted topic of this name; False if this broker does not know.

        The leader epochs of a topic begin above every epoch of deleted topics, unless those are exhausted.
        """
        present = self.partition(key)
        deleted = self._deleted.get(key.topic, NO_EPOCH)
        return present is not None and NO_EPOCH < leader_epoch <= deleted < present.leader_epoch

    def partition_count(self, topic: str) -> int | None:
        """Number of partitions of a topic, None when it does not exist."""
        info = self.topics.get(topic)
        return None if info is None else len(info.partitions)

    def partition(self, key: TopicPartition) -> CachedPartition | None:
        info = self.topics.get(key.topic)
        return None if info is None else info.partitions.get(key.partition)

    def coming_leader(self, key: TopicPartition) -> int:
        """The future leader of a partition that never had a leader; -1 for any other partition, or if unknown."""
        info = self.topics.get(key.topic)
        return NO_LEADER if info is None else info.coming_leader(key.partition)

    def has_leaders(self, topic: str) -> bool:
        """Whether the topic exists and each of its partitions has a live leader."""
        info = self.topics.get(topic)
        return info is not None and all(partition.leader in self.brokers for partition in info.partitions.values())

    def topic_name(self, topic_id: uuid.UUID) -> str | None:
        return self._names.get(topic_id)

    def controller_id(self) -> int:
        """The broker that Metadata responses name as the controller: the lowest live id, -1 if no broker is live."""
        return min(self.brokers, default=NO_NODE)

    def endpoint(self, broker_id: int, listener: str) -> Endpoint | None:
        """A broker's endpoint on a listener; None when the broker is down or has no such listener."""
        broker = self.brokers.get(broker_id)
        return None if broker is None else broker.endpoints.get(listener)

    def endpoints(self, listener: str) -> list[tuple[BrokerInfo, Endpoint]]:
        """The live brokers that have this listener, each with its endpoint."""
        return [(info, info.endpoints[listener]) for info in self.brokers.values() if listener in info.endpoints]

    def update(self, request: UpdateMetadataRequest) -> dict[TopicPartition, int]:
        """``update_in_steps`` without pauses."""
        removed: dict[TopicPartition, int] = {}
        at_once(self.update_in_steps(request, removed))
        return removed

    def update_in_steps(
        self, request: UpdateMetadataRequest, removed: dict[TopicPartition, int]
    ) -> Generator[None, None, None]:
        """Apply an UpdateMetadata request topic by topic, in steps of ``PARTITIONS_AT_ONCE``.

        Puts the partitions that left the cluster into ``removed``, with their incarnations. If partitions were removed
        or the topic was created again, the request has a new topic id and names all partitions of the topic. So a
        partition that the request does not name was removed. (A broker that was not registered at that time got no
        request about the removal.)
        """
        self.brokers = {
            broker.id: BrokerInfo(
                broker.id,
                {e.listener: Endpoint(e.listener, e.host, e.port) for e in broker.endpoints},
                broker.rack,
            )
            for broker in sorted(request.live_brokers, key=lambda live: live.id)
        }
        partitions = 0
        for state in request.topic_states:
            described: dict[int, CachedPartition] = {}
            for found in state.partition_states:
                if found.leader != LEADER_DURING_DELETE:
                    described[found.partition_index] = partition_info(found)
                partitions += 1
                if partitions % PARTITIONS_AT_ONCE == 0:
                    yield
            self._update_topic(state, described, removed)

    def _update_topic(
        self,
        state: UpdateMetadataTopicState,
        described: dict[int, CachedPartition],
        removed: dict[TopicPartition, int],
    ) -> None:
        name = state.topic_name
        topic = self.topics.get(name)
        is_known = topic is not None and topic.incarnation == max(state.topic_incarnation, topic.incarnation)
        if topic is not None and topic.topic_id != state.topic_id and ZERO_UUID not in (topic.topic_id, state.topic_id):
            self._names.pop(topic.topic_id, None)
            named = {partition.partition_index for partition in state.partition_states}
            for index in [index for index in topic.partitions if index not in named]:
                removed[TopicPartition(name, index)] = topic.remove(index, topic.partitions[index].incarnation)
            if 0 <= topic.incarnation < state.topic_incarnation:
                self._note_deleted(name, topic)
                topic.removed.clear()  # the removed partitions belonged to another topic
                topic.removed_leader_epoch = NO_EPOCH
        if topic is None:
            topic = CachedTopic()
        if state.topic_id != ZERO_UUID:
            topic.topic_id = state.topic_id
        if state.topic_incarnation >= 0:
            topic.incarnation = state.topic_incarnation
        if state.layout_version >= 0:
            topic.initial_partition_count = state.initial_partition_count
            topic.undeleted_partition_count = state.undeleted_partition_count
            topic.layout_version = state.layout_version
            topic.announced_partition_count = state.announced_partition_count
            topic.refreshes_stock_producers = state.refreshes_stock_producers
            topic.announced_leaders = list(state.announced_leaders)
            topic.ordered_delivery = None if state.ordered_delivery < 0 else state.ordered_delivery == 1
        for partition in state.partition_states:
            index = partition.partition_index
            if partition.leader == LEADER_DURING_DELETE:
                incarnation = topic.remove(index, partition.incarnation)
                # The incarnation is unknown after a removal long ago. The partition may exist again, with offsets.
                if incarnation >= 0:
                    removed[TopicPartition(name, index)] = incarnation
        if is_known and topic.layout_version > 0:
            for index, info in described.items():
                before = topic.partitions.get(index)
                if before is None or before.incarnation < info.incarnation:
                    creation = Creation(max(info.base_offset, 0), info.incarnation)
                    self._created[TopicPartition(name, index)] = creation
        topic.removed -= described.keys()
        topic.partitions |= described
        if topic.partitions:
            topic.partitions = dict(sorted(topic.partitions.items()))
            self.topics[name] = topic
            self._names[topic.topic_id] = name
        else:
            for index in sorted(topic.removed):
                removed.setdefault(TopicPartition(name, index), -1)
            self._note_deleted(name, topic)
            self.topics.pop(name, None)
            self._names.pop(topic.topic_id, None)

    def _note_deleted(self, name: str, topic: CachedTopic) -> None:
        epochs = (partition.leader_epoch for partition in topic.partitions.values())
        highest = max((topic.removed_leader_epoch, self._deleted.pop(name, NO_EPOCH), *epochs))
        self._deleted[name] = highest
        if len(self._deleted) > DELETED_TOPICS:
            del self._deleted[next(iter(self._deleted))]
