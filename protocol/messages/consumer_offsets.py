"""The records of ``__consumer_offsets``: each key and value starts with an int16 version, then the fields below.

Key versions 0 and 1 are offset commits, 2 is group metadata. An offset value has an expiry time in version 1 only, a
leader epoch from 3, and is flexible from 4. Its tag 10256 (KIP-253) is the incarnation, and its tag 10273 counts the
commits that lowered the offset. A group value is flexible from 4.

No higher versions will follow, because older releases could not read their records. New fields are tagged fields of the
highest version (KIP-915).
"""

from anabranch.protocol.schema import field, message

OFFSET_COMMIT_KEY = message(
    "OffsetCommitKey",
    versions="0-1",
    fields=[
        field("group", "string", "0+"),
        field("topic", "string", "0+"),
        field("partition", "int32", "0+"),
    ],
)

OFFSET_COMMIT_VALUE = message(
    "OffsetCommitValue",
    versions="0-4",
    flexible="4+",
    fields=[
        field("offset", "int64", "0+"),
        field("leader_epoch", "int32", "3+", default=-1, ignorable=True),
        field("metadata", "string", "0+"),
        field("commit_timestamp", "int64", "0+"),
        field("expire_timestamp", "int64", "1", default=-1, ignorable=True),
        field("incarnation", "int64", "4+", default=-1, ignorable=True, tag=10256),
        field("rewinds", "int32", "4+", ignorable=True, tag=10273),
    ],
)

GROUP_METADATA_KEY = message(
    "GroupMetadataKey",
    versions="2",
    fields=[
        field("group", "string", "2+"),
    ],
)

GROUP_METADATA_VALUE = message(
    "GroupMetadataValue",
    versions="0-4",
    flexible="4+",
    fields=[
        field("protocol_type", "string", "0+"),
        field("generation", "int32", "0+"),
        field("protocol", "string", "0+", nullable="0+"),
        field("leader", "string", "0+", nullable="0+"),
        field("current_state_timestamp", "int64", "2+", default=-1, ignorable=True),
        field(
            "members",
            "[]MemberMetadata",
            "0+",
            fields=[
                field("member_id", "string", "0+"),
                field("group_instance_id", "string", "3+", nullable="3+", default=None, ignorable=True),
                field("client_id", "string", "0+"),
                field("client_host", "string", "0+"),
                field("rebalance_timeout", "int32", "1+", ignorable=True),
                field("session_timeout", "int32", "0+"),
                field("subscription", "bytes", "0+"),
                field("assignment", "bytes", "0+"),
            ],
        ),
    ],
)
