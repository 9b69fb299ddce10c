"""DescribeCluster (60): cluster id, controller and brokers.

``controller_id`` is the broker that takes the requests for the controller. Tag 10276 (Anabranch's) is the process of
the active controller; the id is -1 while no controller is active. Tag 10277 (Anabranch's) lists the running
controllers, active and standby. The tag is null when the broker has not read the list.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeClusterRequest",
    api_key=60,
    versions="0",
    flexible="0+",
    fields=[
        field("include_cluster_authorized_operations", "bool", "0+"),
    ],
)

RESPONSE = message(
    "DescribeClusterResponse",
    api_key=60,
    versions="0",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        field("error_message", "string", "0+", nullable="0+", default=None),
        field("cluster_id", "string", "0+"),
        field("controller_id", "int32", "0+", default=-1),
        field(
            "brokers",
            "[]DescribeClusterBroker",
            "0+",
            fields=[
                field("broker_id", "int32", "0+"),
                field("host", "string", "0+"),
                field("port", "int32", "0+"),
                field("rack", "string", "0+", nullable="0+", default=None),
            ],
        ),
        field("cluster_authorized_operations", "int32", "0+", default=-2147483648),
        field(
            "active_controller",
            "DescribeClusterActiveController",
            "0+",
            ignorable=True,
            tag=10276,
            fields=[
                field("controller_id", "int32", "0+", default=-1),
                field("host", "string", "0+"),
                field("port", "int32", "0+"),
                field("release", "string", "0+"),
            ],
        ),
        field(
            "running_controllers",
            "[]DescribeClusterController",
            "0+",
            nullable="0+",
            default=None,
            ignorable=True,
            tag=10277,
            fields=[
                field("controller_id", "int32", "0+"),
                field("host", "string", "0+"),
                field("port", "int32", "0+"),
                field("release", "string", "0+"),
            ],
        ),
    ],
)
