"""DescribeProducers (61): the producers whose state a partition keeps (KIP-664).

Any replica answers, as in Kafka: an operator compares them to find a transaction that hangs on one of them. With
``without_records``, a follower gets from its leader the files of the producers whose records were all deleted.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: DescribeProducersRequest) -> Answer:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[
                    _answer(ctx, topic.name, index, request.without_records) for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    )


def _answer(ctx: RequestContext, topic: str, index: int, without_records: bool) -> PartitionResponse:
    try:
        replicas, key = ctx.node.replicas, TopicPartition(topic, index)
        log = (replicas.leader(key) if without_records else replicas.replica(key)).log
    except KafkaError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)
    if without_records:
        files = log.producers.below(log.log_start_offset)
        return PartitionResponse(partition_index=index, snapshot=files.snapshot, kept=files.kept)
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                last_sequence=entry.last_sequence,
                last_timestamp=entry.timestamp,
                coordinator_epoch=entry.coordinator_epoch,
                current_txn_start_offset=entry.txn_first_offset,
            )
            for entry in log.producers.latest()
        ],
    )
