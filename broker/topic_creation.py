"""Topics that a broker asks the controller for by itself: auto-created ones and ``__consumer_offsets``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.topic_names import OFFSETS_TOPIC
from protocol.errors import ErrorCode, KafkaError
from protocol.generated.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from broker.node import Node

CREATE_TOPICS_VERSION = 7
_WAIT_FOR_LEADERS_S = 1.0


def refused(response: CreateTopicsResponse) -> bool:
    """Whether the answer says NOT_CONTROLLER."""
    return any(topic.error_code == ErrorCode.NOT_CONTROLLER for topic in response.topics)


def offsets_topic(node: Node) -> CreatableTopic:
    """``__consumer_offsets`` as this broker's ``offsets.topic.*`` keys want it."""
    values = node.config.values
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(values["offsets.topic.segment.bytes"]),
    }
    return CreatableTopic(
        name=OFFSETS_TOPIC,
        num_partitions=values["offsets.topic.num.partitions"],
        replication_factor=values["offsets.topic.replication.factor"],
        configs=[CreatableTopicConfig(name=name, value=value) for name, value in configs.items()],
    )


async def auto_create(node: Node, names: list[str]) -> dict[str, ErrorCode]:
    """Create topics with the broker's defaults. Returns what Metadata says of each that has no leaders yet."""
    values = node.config.values
    topics = [
        offsets_topic(node)
        if name == OFFSETS_TOPIC
        else CreatableTopic(
            name=name,
            num_partitions=values["num.partitions"],
            replication_factor=values["default.replication.factor"],
        )
        for name in names
    ]
    timeout_s = values["request.timeout.ms"] / 1000
    request = CreateTopicsRequest(topics=topics, timeout_ms=values["request.timeout.ms"])
    try:
        response = await node.controller.request(request, CREATE_TOPICS_VERSION, timeout_s, refused)
    except KafkaError:
        return dict.fromkeys(names, ErrorCode.LEADER_NOT_AVAILABLE)
    errors = {}
    for topic in response.topics:
        if topic.error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS, ErrorCode.REQUEST_TIMED_OUT):
            errors[topic.name] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            errors[topic.name] = ErrorCode.of(topic.error_code)
    await node.wait_for_metadata(
        lambda: all(
            node.metadata.has_leaders(name) for name, code in errors.items() if code is ErrorCode.LEADER_NOT_AVAILABLE
        ),
        _WAIT_FOR_LEADERS_S,
    )
    return errors
