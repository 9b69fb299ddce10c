"""Whether a controller's request is accepted: LeaderAndIsr, StopReplica, UpdateMetadata.

A request of an older controller is refused with STALE_CONTROLLER_EPOCH, and a request for an earlier registration of
this broker with STALE_BROKER_EPOCH. Newer epochs are accepted (KAFKA-7235, KAFKA-9839) once ZooKeeper has confirmed
them: a made-up epoch would make this broker refuse the real controller until its restart. Requests wait until this
broker is registered. Before that, a request may be meant for the previous process at this address, whose log may have
had more records.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from anabranch.broker.deferred import Deferred
from anabranch.broker.node import Node
from anabranch.broker.request.context import CloseConnectionError, RequestContext
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest
from anabranch.protocol.message import Message
from anabranch.protocol.sentinels import NO_EPOCH

Order: TypeAlias = LeaderAndIsrRequest | StopReplicaRequest | UpdateMetadataRequest
R = TypeVar("R", bound=Message)


def is_known(node: Node, order: Order) -> bool:
    """Whether this broker is registered, and ``refusal_of`` can judge the request without ZooKeeper."""
    known = node.link.registered.is_set() and order.broker_epoch <= node.link.broker_epoch
    return known and order.controller_epoch <= node.replicas.controller_epoch


def obey(
    ctx: RequestContext, order: Order, work: Callable[[], Awaitable[R]], refused: Callable[[ErrorCode], R]
) -> R | Deferred[R]:
    """Do ``work`` once ZooKeeper has confirmed newer epochs of the request. The answer may be ``refused(error)``.

    Anybody may send newer epochs. So a request that waits for ZooKeeper ends with its connection, and does not count in
    ``DecodedRequests``, where the known controller needs room. Raises ``CloseConnectionError`` while too many wait: a
    controller repeats its request, but would leave office after an error.
    """
    node = ctx.node
    if _is_for_earlier_registration(node, order):
        return refused(ErrorCode.STALE_BROKER_EPOCH)
    if is_known(node, order):
        return node.later(work, lambda error: refused(error.code))
    waiting = node.link.epochs.waiting
    if not waiting.admit():
        raise CloseConnectionError(
            f"controller epoch {order.controller_epoch} is not confirmed, and too many such requests wait for ZooKeeper"
        )

    async def confirm_first() -> R:
        with waiting.holding(ctx.free_request()):
            refusal = await _confirm(ctx, order)
            answer.on_abandoned = None  # the work changes this broker
            return await work() if refusal is ErrorCode.NONE else refused(refusal)

    answer = node.later(confirm_first, lambda error: refused(error.code), may_stop=True)
    return answer


async def _confirm(ctx: RequestContext, order: Order) -> ErrorCode:
    """Ask ZooKeeper about newer epochs of the request, and remember a newer controller. Returns the error to answer.

    Waits while ZooKeeper cannot be reached. Raises ``ZkError``.
    """
    node = ctx.node
    await node.link.registered.wait()
    epochs = node.link.epochs
    if _is_for_earlier_registration(node, order):
        return ErrorCode.STALE_BROKER_EPOCH
    if order.broker_epoch > node.link.broker_epoch:
        stored = await epochs.registration(order.broker_epoch)
        if stored != order.broker_epoch:
            epochs.not_believed(ctx.client_host, order.broker_epoch, stored)
            return ErrorCode.STALE_BROKER_EPOCH
    if order.controller_epoch > node.replicas.controller_epoch:
        stored = await epochs.controller(order.controller_epoch)
        if stored != order.controller_epoch:
            epochs.not_believed(ctx.client_host, order.controller_epoch, stored)
            return ErrorCode.STALE_CONTROLLER_EPOCH
        epochs.believed()
        node.replicas.controller_elected(order.controller_epoch)
    return ErrorCode.NONE


def refusal_of(ctx: RequestContext, order: Order) -> ErrorCode:
    """The error for a controller's request whose epochs are known or confirmed; NONE if the request is accepted."""
    node = ctx.node
    if _is_for_earlier_registration(node, order):
        return ErrorCode.STALE_BROKER_EPOCH
    if order.controller_epoch != node.replicas.controller_epoch:
        return ErrorCode.STALE_CONTROLLER_EPOCH
    return ErrorCode.NONE


def _is_for_earlier_registration(node: Node, order: Order) -> bool:
    return NO_EPOCH != order.broker_epoch < node.link.broker_epoch
