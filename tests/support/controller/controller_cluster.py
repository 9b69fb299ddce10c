"""Controllers on a simulated ZooKeeper and network, and fake brokers that only record requests."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import trio

from anabranch.controller.config import ControllerConfig
from anabranch.controller.process import run
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.framing import ServerConnection, encode_response
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.protocol.generated.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionError,
    LeaderAndIsrRequest,
    LeaderAndIsrResponse,
    LeaderAndIsrTopicError,
)
from anabranch.protocol.generated.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from anabranch.protocol.generated.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from anabranch.protocol.generated.stop_replica import StopReplicaPartitionError, StopReplicaRequest, StopReplicaResponse
from anabranch.protocol.generated.topic_readers import (
    TopicReadersRequest,
    TopicReadersRequestTopic,
    TopicReadersResponse,
    TopicReadersResponseCoordinator,
    TopicReadersResponseGroup,
    TopicReadersResponsePartition,
    TopicReadersResponseTopic,
)
from anabranch.protocol.generated.update_metadata import (
    AppendedBytesOfTopic,
    StockProducersOfTopic,
    UpdateMetadataRequest,
    UpdateMetadataResponse,
)
from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.runtime.channel import Channel
from anabranch.runtime.env import Env, NoNodeError, SessionState, Stream
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint, VersionRange
from anabranch.zk_schemas.controller import ControllerZnode
from anabranch.zk_schemas.features import SUPPORTED
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from sim.clock import SimClock
from sim.network import SimFabric
from sim.zk import FakeSession, FakeZk

BROKER_PORT = 9092


class FakeBroker:
    """A fake broker for the controller. ``requests`` has the received requests, in order."""

    def __init__(self, cluster: ControllerCluster, broker_id: int, rack: str | None) -> None:
        self.id = broker_id
        self.requests: list[Any] = []
        self.answered: list[Any] = []
        self.errors: dict[tuple[str, int], ErrorCode] = {}
        """The errors of responses, as ``{(topic, partition): error}``."""
        self.logs: dict[tuple[str, int], Log] = {}
        """The offsets of the logs that the broker leads; empty logs are left out."""
        self.forgets_ends = False
        """Whether the broker has forgotten the log ends of deleted replicas."""
        self.groups: dict[str, dict[tuple[str, int], tuple[int, int]]] = {}
        """The commits of the broker's groups: ``{(topic, partition): (offset, incarnation)}``."""
        self.topics: dict[str, set[str]] = {}
        """The topics to which the members of groups subscribe."""
        self.unreadable: set[str] = set()
        """Groups with a member whose subscription cannot be read."""
        self.has_no_room = False
        """Whether its log dir is full, so that it cannot follow to the offset up to which records are deleted."""
        self.keeps: set[tuple[str, int]] = set()
        """Partitions for which the broker closes the connection instead of deleting records."""
        self.is_loading = False
        """Whether it answers for no partition of the offsets topic that it leads."""
        self.rebalancing: set[str] = set()
        self.positions: dict[str, dict[tuple[str, int], int]] = {}
        """The groups' positions in partitions that members wait for: ``{(topic, partition): position}``."""
        self.stock_producers: dict[str, tuple[int, int]] = {}
        """``{topic: (ms since a stock producer wrote, ms since one partitioned a key by the old count)}``"""
        self.appended: dict[str, int] = {}
        """The bytes appended to topics since the broker's start."""
        self.features = dict(cluster.features)
        self.timestamp_ms = NO_TIMESTAMP
        """The time in its registrations."""
        self.answering = trio.Event()
        self.answering.set()
        self._cluster = cluster
        self._rack = rack
        self.session: FakeSession | None = None

    async def register(self) -> None:
        """Take a new ZooKeeper session and register in it."""
        self.session = self._cluster.zk.session()
        endpoints = [Endpoint("PLAINTEXT", f"broker{self.id}", BROKER_PORT)]
        registration = BrokerRegistration(
            endpoints, rack=self._rack, features=self.features, timestamp_ms=self.timestamp_ms
        )
        path = paths.broker_id(self.id)
        await self.session.create(path, registration.encode(), ephemeral=True, make_parents=True)

    def leave(self) -> None:
        assert self.session is not None
        self.session.close()

    def sent(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    def led(self) -> dict[tuple[str, int], tuple[int, int]]:
        """``{(topic, partition): (leader, leader epoch)}`` from the last LeaderAndIsr requests."""
        return {
            (topic.topic_name, state.partition_index): (state.leader, state.leader_epoch)
            for request in self.sent(LeaderAndIsrRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    def metadata(self) -> dict[tuple[str, int], int]:
        """``{(topic, partition): leader}`` from the last UpdateMetadata requests."""
        return {
            (topic.topic_name, state.partition_index): state.leader
            for request in self.sent(UpdateMetadataRequest)
            for topic in request.topic_states
            for state in topic.partition_states
        }

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        listener = await self._cluster.fabric.node(f"broker{self.id}").listen(f"broker{self.id}", BROKER_PORT)
        async with trio.open_nursery() as nursery:
            task_status.started()
            while True:
                nursery.start_soon(self._connection, await listener.accept())

    async def _connection(self, stream: Stream) -> None:
        frames = ServerConnection()
        try:
            while True:
                await stream.wait_readable()
                received = await stream.receive_into(frames.buffer())
                if received == 0:
                    return
                frames.received(received)
                while (request := frames.next_request()) is not None:
                    self.requests.append(request.body)
                    self._cluster.received(self, request.body)
                    await self.answering.wait()
                    self._cluster.changed()
                    header, body = request.header, self._answer(request.body)
                    await stream.send(encode_response(header.api_key, header.api_version, header.correlation_id, body))
                    self.answered.append(request.body)
        except OSError:
            return

    def _stock_reports(self, request: UpdateMetadataRequest) -> list[StockProducersOfTopic]:
        named = {topic.topic_name for topic in request.topic_states}
        return [
            StockProducersOfTopic(topic_name=name, written_ms_ago=written, misplaced_ms_ago=misplaced)
            for name, (written, misplaced) in self.stock_producers.items()
            if name in named
        ]

    def _answer(self, request: Any) -> Any:
        if isinstance(request, UpdateMetadataRequest):
            wanted = [topic.topic_name for topic in request.topic_states if topic.wants_appended_bytes]
            return UpdateMetadataResponse(
                stock_producers=self._stock_reports(request),
                appended_bytes=[
                    AppendedBytesOfTopic(topic_name=name, bytes_since_start=self.appended.get(name, 0))
                    for name in wanted
                ],
            )
        if isinstance(request, LeaderAndIsrRequest):
            return LeaderAndIsrResponse(
                topics=[
                    LeaderAndIsrTopicError(
                        topic_id=topic.topic_id,
                        partition_errors=[
                            LeaderAndIsrPartitionError(
                                partition_index=state.partition_index,
                                error_code=self.errors.get((topic.topic_name, state.partition_index), ErrorCode.NONE),
                            )
                            for state in topic.partition_states
                        ],
                    )
                    for topic in request.topic_states
                ]
            )
        if isinstance(request, ListOffsetsRequest):
            return self._offsets(request)
        if isinstance(request, OffsetForLeaderEpochRequest):
            return self._epoch_ends(request)
        if isinstance(request, TopicReadersRequest):
            return self._readers(request)
        if isinstance(request, DeleteRecordsRequest):
            return self._deleted(request)
        assert isinstance(request, StopReplicaRequest)
        return StopReplicaResponse(
            partition_errors=[
                StopReplicaPartitionError(
                    topic_name=topic.topic_name,
                    partition_index=state.partition_index,
                    error_code=self.errors.get((topic.topic_name, state.partition_index), ErrorCode.NONE),
                    log_end_offset=self._end_of_deleted(topic.topic_name, state.partition_index),
                )
                for topic in request.topic_states
                for state in topic.partition_states
            ]
        )

    def _readers(self, request: TopicReadersRequest) -> TopicReadersResponse:
        """The groups that may read topics, as a coordinator of the offsets partitions led here answers."""
        led = [p for (topic, p), (leader, _) in self.led().items() if topic == OFFSETS_TOPIC and leader == self.id]
        silent = self.is_loading or self.session is None or self.session.state is not SessionState.CONNECTED
        return TopicReadersResponse(
            coordinators=[TopicReadersResponseCoordinator(partition_index=p) for p in led if not silent],
            topics=[
                TopicReadersResponseTopic(
                    name=topic.name,
                    groups=[
                        self._reader(name, topic)
                        for name in self.groups
                        if self._may_read(name, topic.name) and (not request.group_ids or name in request.group_ids)
                    ],
                )
                for topic in request.topics
            ],
        )

    def _may_read(self, name: str, topic: str) -> bool:
        return name in self.unreadable | self.rebalancing or self._reads(name, topic)

    def _reads(self, name: str, topic: str) -> bool:
        is_subscribed = name not in self.rebalancing and topic in self.topics.get(name, ())
        return is_subscribed or any(of == topic for of, _ in self.groups[name])

    def _reader(self, name: str, topic: TopicReadersRequestTopic) -> TopicReadersResponseGroup:
        """One group. No member waits for a partition that is not in ``positions``."""
        partitions = []
        for asked in topic.questions:
            offset, incarnation = self.groups[name].get((topic.name, asked.partition_index), (-1, -1))
            position = self.positions.get(name, {}).get((topic.name, asked.partition_index))
            partitions.append(
                TopicReadersResponsePartition(
                    partition_index=asked.partition_index,
                    committed_offset=offset if incarnation in (-1, asked.incarnation) else -1,
                    position=-1 if position is None else position,
                    need_position=position is not None,
                    is_reported=position is not None and topic.name in self.topics.get(name, ()),
                )
            )
        return TopicReadersResponseGroup(
            group_id=name,
            is_reading=self._reads(name, topic.name),
            has_committed=any(of == topic.name for of, _ in self.groups[name]),
            is_settled=name not in self.rebalancing,
            unreadable_member=f"{name}-0" if name in self.unreadable else "",
            partitions=partitions,
        )

    def _end_of_deleted(self, topic: str, partition: int) -> int:
        log = self.logs.get((topic, partition))
        return -1 if log is None or self.forgets_ends else log.end_offset

    def _deleted(self, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Raise the log start on every broker, because all have replicas of the partition."""
        topics = []
        for topic in request.topics:
            results = []
            for asked in topic.partitions:
                if (topic.name, asked.partition_index) in self.keeps:
                    raise OSError("closed")
                code = ErrorCode.NONE
                for broker in self._cluster.brokers.values():
                    if broker.has_no_room:
                        code = ErrorCode.REQUEST_TIMED_OUT
                    else:
                        broker.logs[topic.name, asked.partition_index].start_offset = asked.offset
                results.append(DeleteRecordsPartitionResult(partition_index=asked.partition_index, error_code=code))
            topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
        return DeleteRecordsResponse(topics=topics)

    def _offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        def found(topic: str, asked: ListOffsetsPartition) -> ListOffsetsPartitionResponse:
            log = self.logs.get((topic, asked.partition_index), Log())
            latest = log.end_offset if request.replica_id >= 0 else log.high_watermark
            return ListOffsetsPartitionResponse(
                partition_index=asked.partition_index,
                error_code=self.errors.get((topic, asked.partition_index), ErrorCode.NONE),
                offset={-2: log.start_offset, -1: latest}.get(asked.timestamp, log.offset_of_time),
            )

        topics = [
            ListOffsetsTopicResponse(
                name=topic.name, partitions=[found(topic.name, asked) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
        return ListOffsetsResponse(topics=topics)

    def _epoch_ends(self, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        topics = []
        for topic in request.topics:
            ends = [
                EpochEndOffset(
                    error_code=self.errors.get((topic.topic, asked.partition), ErrorCode.NONE),
                    partition=asked.partition,
                    leader_epoch=asked.leader_epoch,
                    end_offset=self.logs.get((topic.topic, asked.partition), Log()).epoch_ends.get(
                        asked.leader_epoch, -1
                    ),
                )
                for asked in topic.partitions
            ]
            topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=ends))
        return OffsetForLeaderEpochResponse(topics=topics)


@dataclass(slots=True)
class Log:
    """The offsets of a log, from its leader."""

    end_offset: int = 0
    high_watermark: int = 0
    start_offset: int = 0
    offset_of_time: int = -1
    """The offset in responses to ListOffsets by a timestamp."""
    epoch_ends: Mapping[int, int] = field(default_factory=dict)
    """The end offsets of past leader epochs."""


class ControllerCluster:
    """One cluster. ``zk`` is the ZooKeeper server; ``store`` is the test's own session."""

    def __init__(self, nursery: trio.Nursery, seed: int = 1) -> None:
        self.nursery = nursery
        self.zk = FakeZk()
        self.fabric = SimFabric(random.Random(seed))
        self.store = self.zk.session()
        self.sessions: dict[int, FakeSession] = {}
        self.scopes: dict[int, trio.CancelScope] = {}
        self.brokers: dict[int, FakeBroker] = {}
        self.features: Mapping[str, VersionRange] = SUPPORTED
        """The features of brokers that are started from now on."""
        self._seed = seed
        self._changed = trio.Event()
        self.received: Callable[[FakeBroker, Any], None] = lambda _broker, _request: None
        """Called with each request that a broker receives, before the response."""

    def changed(self) -> None:
        event, self._changed = self._changed, trio.Event()
        event.set()

    async def start_controller(self, controller_id: int = 1000, **keys: object) -> None:
        """Start a controller, and return once its listener is bound."""
        host = f"controller{controller_id}"
        config = ControllerConfig.parse(
            {
                "controller.id": controller_id,
                "controller.listener": f"PLAINTEXT://{host}:9090",
                "zookeeper.connect": "simulated",
                **{name.replace("_", "."): value for name, value in keys.items()},
            }
        )
        session = self.zk.session()
        env = Env(
            SimClock(),
            self.fabric.node(host),
            random.Random(self._seed + controller_id),
            zk=session,
            propagate_bugs=True,
        )
        self.sessions[controller_id] = session
        scope = self.scopes[controller_id] = trio.CancelScope()
        ready = trio.Event()

        async def process() -> None:
            with scope:
                await run(config, env, on_ready=lambda _host, _port: ready.set())

        self.nursery.start_soon(process)
        await ready.wait()

    def kill_controller(self, controller_id: int) -> None:
        """End the process at once. Its session stays until the session times out."""
        self.scopes[controller_id].cancel()
        self.sessions[controller_id].crash()

    def vacate(self, controller_id: int = 1000) -> None:
        """Kill the controller and end its session, so that it is not active any more."""
        self.kill_controller(controller_id)
        self.zk.end_session(self.sessions[controller_id].session_id)

    async def start_broker(self, broker_id: int, rack: str | None = None) -> FakeBroker:
        broker = self.brokers[broker_id] = FakeBroker(self, broker_id, rack)
        await self.nursery.start(broker.serve)
        await broker.register()
        return broker

    async def active(self) -> ControllerZnode | None:
        try:
            found = await self.store.get(paths.CONTROLLER)
        except NoNodeError:
            return None
        return ControllerZnode.decode(paths.CONTROLLER, found.data)

    async def request(self, body: Any, version: int | None = None, controller_id: int | None = None) -> Any:
        """Send a request to a controller, by default to the active one."""
        if controller_id is None:
            await self.until(self.active)
            active = await self.active()
            assert active is not None
            controller_id = active.controller_id
        host = f"controller{controller_id}"
        async with Channel.open(self.fabric.node("client"), host, 9090, "test") as channel:
            return await channel.request(body, version=version, timeout_s=120)

    async def topic(self, name: str) -> TopicZnode:
        return TopicZnode.decode(paths.topic(name), (await self.store.get(paths.topic(name))).data)

    async def state(self, name: str, partition: int) -> PartitionState:
        path = paths.partition_state(name, partition)
        return PartitionState.decode(path, (await self.store.get(path)).data)

    async def alter_isr(self, name: str, partition: int, isr: Sequence[int], version: int = -1) -> int:
        """Propose an ISR as the leader's broker does, for the present znode version; returns the error code."""
        state = await self.state(name, partition)
        if version < 0:
            version = (await self.store.get(paths.partition_state(name, partition))).version
        asked = PartitionData(
            partition_index=partition, leader_epoch=state.leader_epoch, new_isr=list(isr), current_isr_version=version
        )
        broker_epoch = (await self.store.get(paths.broker_id(state.leader))).czxid
        topics = [TopicData(name=name, partitions=[asked])]
        request = AlterPartitionRequest(broker_id=state.leader, broker_epoch=broker_epoch, topics=topics)
        response = await self.request(request)
        return int(response.error_code or response.topics[0].partitions[0].error_code)

    async def until(self, condition: Callable[[], Any | Awaitable[Any]], within_s: float = 60) -> Any:
        """Return the first true value of ``condition``. The wait is in virtual time."""
        with trio.fail_after(within_s):
            while True:
                value = condition()
                if isinstance(value, Awaitable):
                    value = await value
                if value:
                    return value
                await trio.sleep(0.01)  # polls: virtual time
