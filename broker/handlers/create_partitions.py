"""CreatePartitions (37): the active controller decides. Answered once this broker's metadata has all partitions.

A request of a stock client is marked for the controller, in a version that can carry the mark.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.forwarding import forward
from anabranch.protocol.generated.create_partitions import CreatePartitionsRequest, CreatePartitionsTopicResult
from anabranch.protocol.request_kinds import StockCheck

_FIRST_MARKED_VERSION = 2


def handle(ctx: RequestContext, request: CreatePartitionsRequest) -> Answer:
    wanted = {topic.name: topic.count for topic in request.topics}
    metadata = ctx.node.metadata
    if not ctx.asks_for_own_tags:
        request.stock_check = StockCheck.RECORDS

    def shows(result: CreatePartitionsTopicResult) -> bool:
        has_all = (metadata.partition_count(result.name) or 0) >= wanted[result.name]
        return request.validate_only or (has_all and metadata.has_leaders(result.name))

    version = max(ctx.api_version, _FIRST_MARKED_VERSION)
    return forward(ctx, request, request.timeout_ms, lambda response: response.results, shows, version)
