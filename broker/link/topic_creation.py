"""Requests topics from the controller without a client's CreateTopics: auto-created ones, ``__consumer_offsets``."""

from __future__ import annotations

import structlog
import trio

from anabranch.broker.link.controller_client import ControllerClient
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.runtime.background import Background
from anabranch.zk_schemas.broker_keys import BrokerKeys

CREATE_TOPICS_VERSION = 7
MAX_WAIT_S = 1.0
"""The longest time that a Metadata request is parked for a topic that is being created."""

logger = structlog.get_logger(__name__)


def refused(response: CreateTopicsResponse) -> bool:
    """Whether the response is NOT_CONTROLLER."""
    return any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in response.topics)


def offsets_topic(values: BrokerKeys) -> CreatableTopic:
    """The request for ``__consumer_offsets``, with the broker's ``offsets.topic.*`` values."""
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(values.offsets_topic_segment_bytes),
    }
    return CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=values.offsets_topic_num_partitions,
        replication_factor=values.offsets_topic_replication_factor,
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )


class TopicCreator:
    """Requests topics from the controller: one request per topic at a time, for any number of clients."""

    def __init__(
        self,
        values: BrokerKeys,
        controller: ControllerClient,
        metadata: MetadataCache,
        background: Background,
        nursery: trio.Nursery,
    ) -> None:
        self._values = values
        self._controller = controller
        self._metadata = metadata
        self._background = background
        self._nursery = nursery
        self._errors: dict[str, ErrorCode] = {}
        self._running: dict[str, trio.Event] = {}

    def start(self, names: list[str]) -> bool:
        """Begin to create topics with the broker's defaults; returns whether any topic was not being created yet."""
        fresh = [name for name in names if name not in self._running]
        for name in fresh:
            self._running[name] = trio.Event()
            self._nursery.start_soon(self._create, name)
        return bool(fresh)

    async def create(self, names: list[str], waited_s: float) -> dict[str, ErrorCode]:
        """Create topics, and wait a moment for their leaders, unless another request waits for them already.

        Returns for each topic without leaders its error in Metadata: LEADER_NOT_AVAILABLE, or the error of its
        creation. The wait is short, because the client's next requests wait for the response: at most ``MAX_WAIT_S``
        with the ``waited_s`` seconds that the request has waited for other topics. The creation continues after the
        wait.
        """
        if self.start(names):
            with trio.move_on_after(max(0.0, MAX_WAIT_S - waited_s)):
                for event in [self._running[name] for name in names]:
                    await event.wait()
                await self._metadata.wait_for(
                    lambda: all(name in self._errors or self._metadata.has_leaders(name) for name in names), MAX_WAIT_S
                )
        return {name: self._errors.get(name, ErrorCode.LEADER_NOT_AVAILABLE) for name in names}

    async def _create(self, name: str) -> None:
        try:
            try:
                code = await self._ask(name)
            except Exception as error:
                self._background.failed_once("topic-creation", name, error)
                code = ErrorCode.UNKNOWN_SERVER_ERROR
            if code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
                self._errors.pop(name, None)
            else:
                self._errors[name] = code
        finally:
            self._running.pop(name).set()

    async def _ask(self, name: str) -> ErrorCode:
        values = self._values
        if name == OFFSETS_TOPIC:
            topic = offsets_topic(values)
        else:
            topic = CreatableTopic(
                name=name,
                num_partitions=values.num_partitions,
                replication_factor=values.default_replication_factor,
            )
        timeout_ms = values.request_timeout_ms
        request = CreateTopicsRequest(topics=[topic], timeout_ms=timeout_ms)
        try:
            response = await self._controller.request(request, CREATE_TOPICS_VERSION, timeout_ms / 1000, refused)
        except KafkaError as error:
            logger.warning("topic.not_created", topic=name, error=str(error))
            return error.code
        result = response.topics[0]
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            logger.warning("topic.not_created", topic=name, error=result.error_message)
        return ErrorCode.of(result.error_code)
