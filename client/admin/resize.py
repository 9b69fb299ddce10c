"""Converts messages about ordered resizes (KIP-253) from and to the types of ``Admin``. No IO."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.client.admin.codec import code_error
from anabranch.client.admin.types import GroupPosition, PartitionLineage, WithheldFor, WithheldPartition
from anabranch.ordered_resize.facts import Lineage
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.consumer_group_position import (
    ConsumerGroupPositionRequest,
    ConsumerGroupPositionRequestPartition,
    ConsumerGroupPositionRequestTopic,
    ConsumerGroupPositionResponse,
)
from anabranch.protocol.generated.describe_withheld import DescribeWithheldResponse
from anabranch.protocol.generated.partition_leader_epochs_for_partitions import (
    PartitionLeaderEpochsForPartitionsResponse,
)
from anabranch.protocol.sentinels import NO_GENERATION
from anabranch.protocol.types import TopicPartition

ASK_AGAIN = frozenset({ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
"""Errors after which brokers are asked again: a broker may lag, or not reach ZooKeeper. The error may also be true."""


def read_lineages(
    response: PartitionLeaderEpochsForPartitionsResponse,
) -> tuple[dict[TopicPartition, PartitionLineage], KafkaError | None]:
    """The lineages that the broker knows, and the first error of ``ASK_AGAIN``. Raises any other error."""
    found: dict[TopicPartition, PartitionLineage] = {}
    open_error: KafkaError | None = None
    for topic in response.topics:
        for p in topic.partitions:
            tp = TopicPartition(topic.name, p.partition_index)
            error = code_error(p.error_code, str(tp), p.error_message)
            if error is None:
                found[tp] = PartitionLineage(Lineage.of_answer(p), p.over)
            elif error.code in ASK_AGAIN:
                open_error = open_error or error
            else:
                raise error
    return found, open_error


def read_withheld(response: DescribeWithheldResponse) -> dict[int, WithheldPartition]:
    """The withheld records by partition, for the partitions that the broker leads."""
    return {
        p.partition_index: WithheldPartition(
            p.leader_epoch,
            p.served_epoch,
            [
                WithheldFor(
                    w.group_id, w.from_partition, w.leader_epoch, w.end_offset, w.position, w.waited_ms, w.is_let_go
                )
                for w in p.waits
            ],
        )
        for topic in response.topics
        for p in topic.partitions
        if p.error_code == ErrorCode.NONE
    }


def group_positions_request(group_id: str, partitions: Iterable[TopicPartition]) -> ConsumerGroupPositionRequest:
    """A request of a client that is no member: generation -1 and no member id."""
    topics: dict[str, ConsumerGroupPositionRequestTopic] = {}
    for tp in partitions:
        topic = topics.setdefault(tp.topic, ConsumerGroupPositionRequestTopic(name=tp.topic))
        topic.partitions.append(ConsumerGroupPositionRequestPartition(partition_index=tp.partition))
    return ConsumerGroupPositionRequest(
        group_id=group_id, generation_id=NO_GENERATION, member_id="", max_wait_ms=0, topics=list(topics.values())
    )


def read_group_positions(response: ConsumerGroupPositionResponse) -> dict[TopicPartition, GroupPosition]:
    return {
        TopicPartition(topic.name, p.partition_index): GroupPosition(
            p.position, p.need_position, None if p.owner_reports < 0 else bool(p.owner_reports)
        )
        for topic in response.topics
        for p in topic.partitions
    }
