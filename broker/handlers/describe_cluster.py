"""DescribeCluster (60). All operations are authorised (KIP-430), as in Kafka without an authorizer."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.broker.request.context import Answer, RequestContext
from anabranch.protocol.acl_operations import CLUSTER_OPERATIONS
from anabranch.protocol.generated.describe_cluster import (
    DescribeClusterActiveController,
    DescribeClusterBroker,
    DescribeClusterController,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from anabranch.zk_schemas.controller import ControllerZnode


def handle(ctx: RequestContext, request: DescribeClusterRequest) -> Answer:
    metadata = ctx.node.metadata
    brokers = [
        DescribeClusterBroker(broker_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
        for broker, endpoint in metadata.endpoints(ctx.listener)
    ]
    response = DescribeClusterResponse(
        cluster_id=ctx.node.link.cluster_id,
        controller_id=metadata.controller_id(),
        brokers=brokers,
        active_controller=_active(ctx.node.link.controller.address),
        running_controllers=_running(ctx.node.link.controllers.znodes),
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _active(znode: ControllerZnode | None) -> DescribeClusterActiveController:
    if znode is None:
        return DescribeClusterActiveController()
    return DescribeClusterActiveController(
        controller_id=znode.controller_id, host=znode.host, port=znode.port, release=znode.release
    )


def _running(znodes: Iterable[ControllerZnode] | None) -> list[DescribeClusterController] | None:
    if znodes is None:
        return None
    return [
        DescribeClusterController(
            controller_id=znode.controller_id, host=znode.host, port=znode.port, release=znode.release
        )
        for znode in znodes
    ]
