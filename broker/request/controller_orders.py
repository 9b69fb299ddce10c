"""Whether a controller's request is accepted: LeaderAndIsr, StopReplica, UpdateMetadata.

A request of an older controller is refused with STALE_CONTROLLER_EPOCH, and a request for an earlier registration of
this broker with STALE_BROKER_EPOCH. Newer epochs are accepted (KAFKA-7235, KAFKA-9839) once ZooKeeper has confirmed
them: a made-up epoch would make this broker refuse the real controller until its restart. Requests wait until this
broker is registered. Before that, a request may be meant for the previous process at this address, whose log may have
had more records.
"""

from __future__ import annotations

from typing import TypeAlias

from anabranch.broker.node import Node
from anabranch.broker.request.context import RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.protocol.sentinels import NO_EPOCH

Order: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest


def is_known(node: Node, order: Order) -> bool:
    """Whether this broker is registered, and ``refusal_of`` can judge the request without ``confirm``."""
    known = node.link.registered.is_set() and order.broker_epoch <= node.link.broker_epoch
    return known and order.controller_epoch <= node.replicas.controller_epoch


async def confirm(ctx: RequestContext, order: Order) -> ErrorCode:
    """Ask ZooKeeper about newer epochs of the request, and remember a newer controller. Returns the error to answer.

    Waits while ZooKeeper cannot be reached. Raises ``ZkError``.
    """
    node = ctx.node
    await node.link.registered.wait()
    epochs = node.link.epochs
    if NO_EPOCH != order.broker_epoch < node.link.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if order.broker_epoch > node.link.broker_epoch:
        stored = await epochs.registration()
        if stored != order.broker_epoch:
            epochs.not_believed(ctx.client_host, order.broker_epoch, stored)
            return ErrorCode.STALE_BROKER_EPOCH
    if order.controller_epoch > node.replicas.controller_epoch:
        stored = await epochs.controller()
        if stored != order.controller_epoch:
            epochs.not_believed(ctx.client_host, order.controller_epoch, stored)
            return ErrorCode.STALE_CONTROLLER_EPOCH
        epochs.believed()
        node.replicas.controller_elected(order.controller_epoch)
    return ErrorCode.NONE


def refusal_of(ctx: RequestContext, order: Order) -> ErrorCode:
    """The error for a controller's request whose epochs are known or confirmed; NONE if the request is accepted."""
    node = ctx.node
    if order.broker_epoch != NO_EPOCH and order.broker_epoch < node.link.broker_epoch:
        return ErrorCode.STALE_BROKER_EPOCH
    if order.controller_epoch != node.replicas.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE
