"""A batch of requests: at most one request of each kind per broker.

The batch collects names, and builds the requests from the image when it is sent. So a request never mixes two
states of the cluster.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from anabranch.controller import view
from anabranch.controller.image import ClusterImage, LiveBroker, OffsetQuestion, PartitionImage, TopicImage
from anabranch.ordered_resize.layout import Layout
from anabranch.protocol import offset_requests
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrLiveLeader,
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import (
    StopReplicaPartitionState,
    StopReplicaRequest,
    StopReplicaTopicState,
)
from anabranch.protocol.generated.update_metadata import (
    RetainedFrom,
    UpdateMetadataBroker,
    UpdateMetadataEndpoint,
    UpdateMetadataPartitionState,
    UpdateMetadataRequest,
    UpdateMetadataTopicState,
)
from anabranch.protocol.sentinels import (
    CONSUMER_REPLICA_ID,
    EARLIEST_TIMESTAMP,
    EPOCH_DURING_DELETE,
    LATEST_TIMESTAMP,
    LEADER_DURING_DELETE,
    NO_EPOCH,
    NO_INCARNATION,
    NO_LEADER,
    NO_OFFSET,
)
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.broker_registration import PLAINTEXT, Endpoint
from anabranch.zk_schemas.partition_state import PartitionState

BrokerRequest: TypeAlias = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest | ListOffsetsRequest

_INCREMENTAL, _FULL = 1, 2
_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


@dataclass(slots=True)
class _BrokerBatch:
    leader_and_isr: dict[TopicPartition, bool] = field(default_factory=dict)
    """``{partition: is new}``"""
    full_leader_and_isr: bool = False
    metadata: dict[TopicPartition, None] = field(default_factory=dict)
    wants_metadata: bool = False
    retained: dict[TopicPartition, RetainedFrom] = field(default_factory=dict)
    stop: dict[TopicPartition, bool] = field(default_factory=dict)
    """``{partition: delete}``"""
    questions: dict[OffsetQuestion, list[TopicPartition]] = field(default_factory=dict)


class RequestBatch:
    """Collects the contents of requests. ``build`` returns the requests and empties the batch."""

    def __init__(self, image: ClusterImage, listener: str | None) -> None:
        self._image = image
        self._listener = listener
        self._brokers: dict[int, _BrokerBatch] = {}

    def leader_and_isr(self, tp: TopicPartition, *, is_new: bool = False) -> None:
        """Send a partition's state to its replicas, and its metadata to every live broker.

        Only the metadata of a partition that was never led or is being removed is sent: no broker serves the partition.
        """
        topic = self._image.topics[tp.topic]
        state = topic.state(tp.partition)
        has_leaders = state is not None and not state.never_led and not state.being_removed
        for broker in topic.replicas(tp.partition) if has_leaders else ():
            if broker in self._image.brokers:
                batch = self._of(broker)
                batch.leader_and_isr[tp] = batch.leader_and_isr.get(tp, False) or is_new
                batch.stop.pop(tp, None)
        self.metadata([tp])

    def everything_to(self, broker: int) -> None:
        """Send a newly registered broker all metadata, and the state of every partition assigned to the broker."""
        batch = self._of(broker)
        batch.full_leader_and_isr = True
        batch.wants_metadata = True
        for tp, topic, partition in self._image.all_partitions():
            batch.metadata[tp] = None
            state = partition.state
            if state is None or state.never_led or state.being_removed or tp.topic in self._image.deletions:
                continue
            if broker in topic.replicas(tp.partition):
                batch.leader_and_isr.setdefault(tp, False)

    def metadata(self, tps: Iterable[TopicPartition] = ()) -> None:
        """Send the live brokers and these partitions to every live broker."""
        named = dict.fromkeys(tps)
        for broker in self._image.brokers:
            batch = self._of(broker)
            batch.wants_metadata = True
            batch.metadata.update(named)

    def retain(self, leader: int, tp: TopicPartition, retained: RetainedFrom) -> None:
        """Send the order to retain records against retention by time to the leader of a partition."""
        batch = self._of(leader)
        batch.wants_metadata = True
        batch.metadata[tp] = None
        batch.retained[tp] = retained

    def stop_replica(self, broker: int, tp: TopicPartition, *, delete: bool) -> None:
        """Ask a broker to stop its replica. Of several calls for a broker and a partition, the last counts."""
        batch = self._of(broker)
        batch.stop[tp] = delete
        batch.leader_and_isr.pop(tp, None)

    def ask(self, broker: int, tp: TopicPartition, question: OffsetQuestion) -> None:
        """Ask the leader of a partition for one of its offsets, after the other requests of this batch."""
        self._of(broker).questions.setdefault(question, []).append(tp)

    def topics(self) -> set[str]:
        """Topics that the batch names."""
        named: set[str] = set()
        for batch in self._brokers.values():
            named.update(tp.topic for tps in (batch.leader_and_isr, batch.metadata, batch.stop) for tp in tps)
        return named

    def build(self) -> dict[int, list[BrokerRequest]]:
        """``{broker: requests in the order they are to be sent}``, for brokers that are live now."""
        built: dict[int, list[BrokerRequest]] = {}
        live_brokers = [self._metadata_broker(self._image.brokers[id]) for id in sorted(self._image.brokers)]
        for id in sorted(self._brokers):
            broker = self._image.brokers.get(id)
            if broker is None:
                continue
            batch = self._brokers[id]
            requests: list[BrokerRequest] = []
            if batch.leader_and_isr or batch.full_leader_and_isr:
                requests.append(self._leader_and_isr_request(broker, batch))
            if batch.wants_metadata:
                requests.append(self._metadata_request(broker, batch, live_brokers))
            stopped = self._stop_request(broker, batch)
            if stopped.topic_states:
                requests.append(stopped)
            requests += [self._offsets_request(question, tps) for question, tps in batch.questions.items()]
            built[id] = requests
        self._brokers = {}
        return built

    def _of(self, broker: int) -> _BrokerBatch:
        return self._brokers.setdefault(broker, _BrokerBatch())

    def _known(self, tps: Iterable[TopicPartition]) -> dict[str, list[tuple[int, TopicImage, PartitionImage]]]:
        """Partitions that exist and have a state, by topic."""
        by_topic: dict[str, list[tuple[int, TopicImage, PartitionImage]]] = {}
        for tp in sorted(tps):
            topic = self._image.topics.get(tp.topic)
            partition = topic.partitions.get(tp.partition) if topic is not None else None
            if topic is not None and partition is not None and partition.state is not None:
                by_topic.setdefault(tp.topic, []).append((tp.partition, topic, partition))
        return by_topic

    def _leader_and_isr_request(self, broker: LiveBroker, batch: _BrokerBatch) -> LeaderAndIsrRequest:
        """The LeaderAndIsr request to a broker.

        A full request lists all partitions of the broker, so it is not sent while some znode cannot be read.
        """
        topics, leaders = [], set()
        for name, partitions in self._known(batch.leader_and_isr).items():
            states = []
            for index, topic, partition in partitions:
                assert partition.state is not None
                is_new = batch.leader_and_isr[TopicPartition(name, index)]
                states.append(leader_and_isr_state(index, topic, partition, partition.state, is_new))
                leaders.add(partition.state.leader)
            topic_id = partitions[0][1].znode.topic_id
            topics.append(LeaderAndIsrTopicState(topic_name=name, topic_id=topic_id, partition_states=states))
        live = [self._image.brokers[leader] for leader in sorted(leaders) if leader in self._image.brokers]
        endpoints = [(leader.id, self.inter_broker_endpoint(leader)) for leader in live]
        return LeaderAndIsrRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._image.controller_epoch,
            broker_epoch=broker.epoch,
            type=_FULL if batch.full_leader_and_isr and self._image.complete else _INCREMENTAL,
            image_number=self._image.number,
            topic_states=topics,
            live_leaders=[LeaderAndIsrLiveLeader(broker_id=id, host_name=e.host, port=e.port) for id, e in endpoints],
        )

    def _metadata_request(
        self, broker: LiveBroker, batch: _BrokerBatch, live_brokers: list[UpdateMetadataBroker]
    ) -> UpdateMetadataRequest:
        topics = []
        for name, partitions in self._known(batch.metadata).items():
            topic = partitions[0][1]
            states = [
                self._metadata_state(index, topic, partition, batch.retained.get(TopicPartition(name, index)))
                for index, _, partition in partitions
            ]
            states += self._coming_states(topic)
            if batch.full_leader_and_isr:
                states += _merged_away(topic)
            layout = view.client_layout(topic)
            topics.append(
                UpdateMetadataTopicState(
                    topic_name=name,
                    topic_id=topic.znode.topic_id,
                    partition_states=states,
                    undeleted_partition_count=layout.undeleted_partition_count,
                    initial_partition_count=topic.znode.initial_partition_count,
                    ordered_delivery=_ordered_delivery(topic),
                    layout_version=layout.layout_version,
                    topic_incarnation=topic.czxid,
                    announced_partition_count=view.announced_count(topic),
                    announced_leaders=self._announced_leaders(topic),
                    refreshes_stock_producers=topic.announcement is not None and topic.announcement.refreshes,
                    wants_appended_bytes=topic.append_window is not None,
                )
            )
        return UpdateMetadataRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._image.controller_epoch,
            broker_epoch=broker.epoch,
            topic_states=topics,
            live_brokers=live_brokers,
        )

    def _announced_leaders(self, topic: TopicImage) -> list[int]:
        """The expected leaders of the announced partitions, in order; -1 where no replica can lead."""
        leaders = []
        for index in range(view.client_layout(topic).undeleted_partition_count, view.announced_count(topic)):
            if (state := topic.state(index)) is not None:  # a draining partition that the grow counts again
                leaders.append(max(state.leader, NO_LEADER))
                continue
            electable = self._image.electable(TopicPartition(topic.name, index))
            leaders.append(next((replica for replica in topic.replicas(index) if replica in electable), NO_LEADER))
        return leaders

    def _coming_states(self, topic: TopicImage) -> list[UpdateMetadataPartitionState]:
        """The states of partitions that a grow is about to create, once clients place by the grow's count.

        These partitions have no leader yet.
        """
        coming = [p for p in topic.moves.losers_of if topic.state(p) is None and p in topic.partitions]
        if view.client_layout(topic) != Layout.goal(topic.znode).stored:
            return []
        return [
            UpdateMetadataPartitionState(
                partition_index=p,
                controller_epoch=self._image.controller_epoch,
                leader=NO_LEADER,
                leader_epoch=topic.znode.last_leader_epochs.get(p, NO_EPOCH),
                replicas=list(topic.replicas(p)),
            )
            for p in coming
        ]

    def _metadata_state(
        self, index: int, topic: TopicImage, partition: PartitionImage, retained: RetainedFrom | None
    ) -> UpdateMetadataPartitionState:
        state = partition.state
        assert state is not None
        replicas = topic.replicas(index)
        serving = self._image.serving(TopicPartition(topic.name, index))
        return UpdateMetadataPartitionState(
            partition_index=index,
            controller_epoch=state.controller_epoch,
            leader=LEADER_DURING_DELETE if topic.name in self._image.deletions else state.leader,
            leader_epoch=state.leader_epoch,
            isr=list(state.isr),
            zk_version=partition.epoch,
            replicas=list(replicas),
            offline_replicas=[replica for replica in replicas if replica not in serving],
            incarnation=partition.incarnation,
            base_offset=topic.znode.base_offset(index) if topic.znode.has_predecessor(index) else NO_OFFSET,
            retained=retained,
        )

    def _stop_request(self, broker: LiveBroker, batch: _BrokerBatch) -> StopReplicaRequest:
        """One StopReplica request with all replicas that the broker has to stop or delete (KIP-570)."""
        by_topic: dict[str, list[StopReplicaPartitionState]] = {}
        for tp, delete in sorted(batch.stop.items()):
            named = self._stopped_epoch(tp)
            if named is None:
                continue
            leader_epoch, incarnation = named
            by_topic.setdefault(tp.topic, []).append(
                StopReplicaPartitionState(
                    partition_index=tp.partition,
                    leader_epoch=leader_epoch,
                    delete_partition=delete,
                    incarnation=incarnation,
                )
            )
        return StopReplicaRequest(
            controller_id=self._image.controller_id,
            controller_epoch=self._image.controller_epoch,
            broker_epoch=broker.epoch,
            topic_states=[StopReplicaTopicState(topic_name=name, partition_states=s) for name, s in by_topic.items()],
        )

    def _stopped_epoch(self, tp: TopicPartition) -> tuple[int, int] | None:
        """The leader epoch and incarnation of a StopReplica. None if they are not known: no StopReplica is then sent.

        A StopReplica without both would delete any replica that exists when the request arrives, even a replica of a
        later incarnation. If a partition's state cannot be read, the zxid of the request to delete the topic is sent as
        the last incarnation.
        """
        topic, partition = self._image.topics.get(tp.topic), self._image.partition(tp)
        incarnation = partition.incarnation if partition is not None else NO_INCARNATION
        if topic is not None and tp.topic in self._image.deletions:
            return EPOCH_DURING_DELETE, incarnation if incarnation >= 0 else topic.deletion_zxid
        if partition is None or partition.state is None:
            return None
        return partition.state.leader_epoch, incarnation

    def _offsets_request(self, question: OffsetQuestion, tps: Iterable[TopicPartition]) -> ListOffsetsRequest:
        """A request for one kind of offset.

        Leaders send the log end only to replicas, so a request for the log end has the controller's id as replica id.
        """
        asked = {
            name: [(index, partition.state.leader_epoch) for index, _, partition in partitions if partition.state]
            for name, partitions in self._known(tps).items()
        }
        timestamp = EARLIEST_TIMESTAMP if question is OffsetQuestion.START else LATEST_TIMESTAMP
        replica_id = self._image.controller_id if question is OffsetQuestion.END else CONSUMER_REPLICA_ID
        return offset_requests.list_offsets(asked, timestamp, replica_id)

    def _metadata_broker(self, broker: LiveBroker) -> UpdateMetadataBroker:
        protocols = broker.registration.security_protocols
        return UpdateMetadataBroker(
            id=broker.id,
            rack=broker.registration.rack,
            endpoints=[
                UpdateMetadataEndpoint(
                    port=endpoint.port,
                    host=endpoint.host,
                    listener=endpoint.listener,
                    security_protocol=_SECURITY_PROTOCOLS.get(protocols.get(endpoint.listener, endpoint.listener), 0),
                )
                for endpoint in broker.registration.endpoints
            ],
        )

    def inter_broker_endpoint(self, broker: LiveBroker) -> Endpoint:
        """The endpoint where brokers and the controller reach a broker: ``listener``, or the first plain listener."""
        return inter_broker_endpoint(broker, self._listener)


def inter_broker_endpoint(broker: LiveBroker, listener: str | None) -> Endpoint:
    """The endpoint of ``listener``; if the broker lacks it, the first plain endpoint, or else the first."""
    registration = broker.registration
    named = registration.endpoint(listener) if listener is not None else None
    plain = (
        endpoint
        for endpoint in registration.endpoints
        if registration.security_protocols.get(endpoint.listener, endpoint.listener) == PLAINTEXT
    )
    return named or next(plain, registration.endpoints[0])


def leader_and_isr_state(
    index: int, topic: TopicImage, partition: PartitionImage, state: PartitionState, is_new: bool
) -> LeaderAndIsrPartitionState:
    layout = topic.layout(index)
    return LeaderAndIsrPartitionState(
        partition_index=index,
        controller_epoch=state.controller_epoch,
        leader=state.leader if state.leader >= 0 else NO_LEADER,
        leader_epoch=state.leader_epoch,
        isr=list(state.isr),
        zk_version=partition.epoch,
        replicas=list(topic.replicas(index)),
        adding_replicas=topic.znode.adding_replicas.get(index, []),
        removing_replicas=topic.znode.removing_replicas.get(index, []),
        is_new=is_new,
        undeleted_partition_count=layout.undeleted_partition_count,
        initial_partition_count=topic.znode.initial_partition_count,
        ordered_delivery=_ordered_delivery(topic),
        incarnation=partition.incarnation,
        layout_version=layout.layout_version,
        base_offset=topic.znode.base_offset(index),
    )


def _merged_away(topic: TopicImage) -> list[UpdateMetadataPartitionState]:
    """The removed partitions, for a broker that may have missed the removal and would treat them as new."""
    return [
        UpdateMetadataPartitionState(partition_index=index, leader=LEADER_DURING_DELETE, leader_epoch=epoch)
        for index, epoch in topic.znode.last_leader_epochs.items()
        if index not in topic.znode.partitions
    ]


def _ordered_delivery(topic: TopicImage) -> int:
    """1 or 0 once the first resize has fixed ordered delivery; -1 before."""
    settled = topic.znode.ordered_delivery
    return -1 if settled is None else int(settled)
