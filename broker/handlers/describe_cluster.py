"""DescribeCluster (60), version 0. Skipped: authorised operations (no security yet)."""

from __future__ import annotations

from broker.request_context import Answer, RequestContext
from protocol.generated.describe_cluster import DescribeClusterBroker, DescribeClusterRequest, DescribeClusterResponse


def handle(ctx: RequestContext, _request: DescribeClusterRequest) -> Answer:
    metadata = ctx.node.metadata
    brokers = []
    for broker_id, broker in metadata.brokers.items():
        endpoint = broker.endpoints.get(ctx.listener)
        if endpoint is not None:
            brokers.append(
                DescribeClusterBroker(broker_id=broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack)
            )
    return DescribeClusterResponse(
        cluster_id=ctx.node.cluster_id, controller_id=metadata.controller_id(), brokers=brokers
    )
