"""DescribeWithheld (25303): why records are withheld from stock consumers (``ordered.delivery.stock.consumers``)."""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.errors import KafkaError
from anabranch.protocol.generated.describe_withheld import (
    DescribeWithheldRequest,
    DescribeWithheldResponse,
    DescribeWithheldResponsePartition,
    DescribeWithheldResponseTopic,
    DescribeWithheldResponseWait,
)
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.turns import pause


def handle(ctx: RequestContext, request: DescribeWithheldRequest) -> Answer:
    async def describe() -> DescribeWithheldResponse:
        response = DescribeWithheldResponse()
        for topic in request.topics:
            found = DescribeWithheldResponseTopic(name=topic.name)
            response.topics.append(found)
            for index in topic.partition_indexes:
                found.partitions.append(_describe(ctx, topic.name, index))
                await pause()  # the waits of one partition take milliseconds after many resizes
        return response

    return ctx.node.later(describe, lambda error: DescribeWithheldResponse(), may_stop=True)


def _describe(ctx: RequestContext, name: str, index: int) -> DescribeWithheldResponsePartition:
    try:
        partition = ctx.node.replicas.leader(TopicPartition(name, index))
    except KafkaError as error:
        return DescribeWithheldResponsePartition(partition_index=index, error_code=error.code)
    epoch, now = partition.leader_epoch, ctx.node.env.clock.monotonic()
    if not partition.withholds:
        return DescribeWithheldResponsePartition(partition_index=index, leader_epoch=epoch, served_epoch=epoch)
    topic = ctx.node.stock_consumer_facts.topics.get(name)
    waits = [] if topic is None else topic.waits_of(index, now)
    return DescribeWithheldResponsePartition(
        partition_index=index,
        leader_epoch=epoch,
        served_epoch=partition.stock_cap.at(now),
        waits=[
            DescribeWithheldResponseWait(
                group_id=wait.group,
                from_partition=wait.on,
                leader_epoch=wait.epoch,
                end_offset=wait.offset,
                position=wait.position,
                waited_ms=int(waited_s * 1000),
                is_let_go=is_let_go,
            )
            for wait, waited_s, is_let_go in waits
        ],
    )
