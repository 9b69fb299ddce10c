"""Whether the controller's orders are taken: LeaderAndIsr, StopReplica, UpdateMetadata.

A request of an older controller is refused with STALE_CONTROLLER_EPOCH, one meant for an earlier registration of this
broker with STALE_BROKER_EPOCH; newer ones of either are accepted (KAFKA-7235, 9839). Until this broker is registered
they wait: at the same address the controller may still be talking to the process before it, whose log had more.
"""

from __future__ import annotations

from anabranch.broker.request_context import RequestContext
from anabranch.protocol.errors import ErrorCode


def refusal_of(ctx: RequestContext, controller_epoch: int, broker_epoch: int) -> ErrorCode:
    """Why an order of these epochs is refused now; NONE: it is taken."""
    node = ctx.node
    if broker_epoch != -1 and broker_epoch < node.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if not node.replicas.check_controller(controller_epoch):
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE
