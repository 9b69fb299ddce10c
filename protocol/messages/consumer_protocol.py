"""The blobs of consumer group members in JoinGroup and SyncGroup: an int16 version, then the fields below.

A newer version than 3 is read as 3, and bytes after its fields are ignored. ``StickyAssignorUserData`` is the user
data of the sticky assignor and has no version in front.
"""

from anabranch.protocol.schema import field, message

CONSUMER_PROTOCOL_SUBSCRIPTION = message(
    "ConsumerProtocolSubscription",
    versions="0-3",
    fields=[
        field("topics", "[]string", "0+"),
        field("user_data", "bytes", "0+", nullable="0+", default=None),
        field(
            "owned_partitions",
            "[]TopicPartition",
            "1+",
            ignorable=True,
            fields=[
                field("topic", "string", "1+"),
                field("partitions", "[]int32", "1+"),
            ],
        ),
        field("generation_id", "int32", "2+", default=-1, ignorable=True),
        field("rack_id", "string", "3+", nullable="3+", default=None, ignorable=True),
    ],
)

CONSUMER_PROTOCOL_ASSIGNMENT = message(
    "ConsumerProtocolAssignment",
    versions="0-3",
    fields=[
        field(
            "assigned_partitions",
            "[]TopicPartition",
            "0+",
            fields=[
                field("topic", "string", "0+"),
                field("partitions", "[]int32", "0+"),
            ],
        ),
        field("user_data", "bytes", "0+", nullable="0+", default=None),
    ],
)

STICKY_ASSIGNOR_USER_DATA = message(
    "StickyAssignorUserData",
    versions="0-1",
    fields=[
        field(
            "previous_assignment",
            "[]TopicPartition",
            "0+",
            fields=[
                field("topic", "string", "0+"),
                field("partitions", "[]int32", "0+"),
            ],
        ),
        field("generation", "int32", "1+", default=-1, ignorable=True),
    ],
)
