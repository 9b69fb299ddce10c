"""UpdateMetadata (6): the controller describes brokers, topics and leaders.

``broker/request/controller_orders.py`` decides which controller's requests are accepted. The response has the values
that the controller needs from leaders: the stock producers and the appended bytes of topics.
"""

from __future__ import annotations

from collections.abc import Generator

from anabranch.broker.link import appended_bytes
from anabranch.broker.log.slices import TimeSlice, at_once, in_slices
from anabranch.broker.metadata_cache import PARTITIONS_AT_ONCE
from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.controller_orders import is_known, obey, refusal_of
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest, UpdateMetadataResponse
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition


def handle(ctx: RequestContext, request: UpdateMetadataRequest) -> Answer:
    node = ctx.node
    partitions = sum(len(topic.partition_states) for topic in request.topic_states)
    if is_known(node, request) and partitions <= PARTITIONS_AT_ONCE:
        return at_once(_update_metadata(ctx, request))

    async def update() -> UpdateMetadataResponse:
        async with node.metadata.update_lock:
            return await in_slices(_update_metadata(ctx, request), TimeSlice(node.env.clock))

    return obey(ctx, request, update, lambda code: UpdateMetadataResponse(error_code=code))


def _update_metadata(
    ctx: RequestContext, request: UpdateMetadataRequest
) -> Generator[None, None, UpdateMetadataResponse]:
    """Apply the request in steps. End early if a newer controller sends a request: it will send everything again."""
    removed: dict[TopicPartition, int] = {}
    code = refusal_of(ctx, request)
    if code is ErrorCode.NONE:
        for _ in ctx.node.metadata.update_in_steps(request, removed):
            yield
            code = refusal_of(ctx, request)
            if code is not ErrorCode.NONE:
                break
    if removed:
        ctx.node.dynamic.forget_topics(key.topic for key in removed)
        ctx.node.groups.on_partitions_deleted(
            {
                key: incarnation
                for key, incarnation in removed.items()
                if key.topic != OFFSETS_TOPIC and not ctx.node.metadata.goes_on(*key)
            }
        )
    if code is not ErrorCode.NONE:
        return UpdateMetadataResponse(error_code=code)
    if created := ctx.node.metadata.take_created():
        ctx.node.groups.on_partitions_created(created)
    ctx.node.retained_offsets.take_over(request.topic_states)
    ctx.node.replicas.brokers_changed()
    ctx.node.metadata.was_updated()
    named = [topic.topic_name for topic in request.topic_states]
    return UpdateMetadataResponse(
        stock_producers=ctx.node.hosted.stock_producers.report(named, ctx.node.metadata.topics),
        appended_bytes=appended_bytes.report(ctx.node.metrics.appended_bytes, request.topic_states),
    )
