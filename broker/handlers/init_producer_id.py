"""InitProducerId (22): a producer id for an idempotent producer.

The id is always new, with epoch 0, even if the producer names its present id: without a transactional id there is
nothing to fence (KIP-360). Skipped: transactional ids.
"""

from __future__ import annotations

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.broker.request.unsupported import NO_TRANSACTIONS_CODE
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from anabranch.protocol.sentinels import NO_EPOCH, NO_PRODUCER_ID


def handle(ctx: RequestContext, request: InitProducerIdRequest) -> Answer:
    if request.transactional_id == "":
        return _error(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _error(NO_TRANSACTIONS_CODE)
    producer_id = ctx.node.link.producer_ids.take()
    if producer_id is not None:
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)

    async def claim() -> InitProducerIdResponse:
        return InitProducerIdResponse(producer_id=await ctx.node.link.producer_ids.take_or_claim(), producer_epoch=0)

    return ctx.node.later(claim, lambda error: _error(error.code))


def _error(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_PRODUCER_ID, producer_epoch=NO_EPOCH)
