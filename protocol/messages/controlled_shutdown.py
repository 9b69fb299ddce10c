"""ControlledShutdown (7): a broker asks the controller to move its leaders away before it stops.

Only version 3 is implemented (flexible). The response lists partitions that the broker still leads.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ControlledShutdownRequest",
    api_key=7,
    versions="3",
    flexible="3+",
    fields=[
        field("broker_id", "int32", "3+"),
        field("broker_epoch", "int64", "3+", default=-1, ignorable=True),
    ],
)

RESPONSE = message(
    "ControlledShutdownResponse",
    api_key=7,
    versions="3",
    flexible="3+",
    fields=[
        field("error_code", "int16", "3+"),
        field(
            "remaining_partitions",
            "[]RemainingPartition",
            "3+",
            fields=[
                field("topic_name", "string", "3+"),
                field("partition_index", "int32", "3+"),
            ],
        ),
    ],
)
