"""Whether a controller's request is accepted: LeaderAndIsr, StopReplica, UpdateMetadata.

A request of an older controller is refused with STALE_CONTROLLER_EPOCH, and a request for an earlier registration of
this broker with STALE_BROKER_EPOCH. Newer epochs are accepted (KAFKA-7235, KAFKA-9839). Requests wait until this broker
is registered. Before that, a request may be meant for the previous process at this address, whose log may have had more
records.
"""

from __future__ import annotations

from anabranch.broker.request.context import RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.sentinels import NO_EPOCH


def refusal_of(ctx: RequestContext, controller_epoch: int, broker_epoch: int) -> ErrorCode:
    """The error for a controller's request with these epochs; NONE if the request is accepted."""
    node = ctx.node
    if broker_epoch != NO_EPOCH and broker_epoch < node.link.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if not node.replicas.check_controller(controller_epoch):
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE
