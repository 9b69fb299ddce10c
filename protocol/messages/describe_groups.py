"""DescribeGroups (15): state, protocol and members of groups.

Version 3 can return authorised operations; 4 instance ids; 5 is flexible. In a rebalance, tag 10298 (Anabranch's) is
the time that the group has waited for a member to join again; tag 10299 is the time after which the group continues
without the member. Both tags are -1 for a member that the group does not wait for.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeGroupsRequest",
    api_key=15,
    versions="0-5",
    flexible="5+",
    fields=[
        field("groups", "[]string", "0+"),
        field("include_authorized_operations", "bool", "3+"),
    ],
)

RESPONSE = message(
    "DescribeGroupsResponse",
    api_key=15,
    versions="0-5",
    flexible="5+",
    fields=[
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field(
            "groups",
            "[]DescribedGroup",
            "0+",
            fields=[
                field("error_code", "int16", "0+"),
                field("group_id", "string", "0+"),
                field("group_state", "string", "0+"),
                field("protocol_type", "string", "0+"),
                field("protocol_data", "string", "0+"),
                field(
                    "members",
                    "[]DescribedGroupMember",
                    "0+",
                    fields=[
                        field("member_id", "string", "0+"),
                        field("group_instance_id", "string", "4+", nullable="4+", default=None, ignorable=True),
                        field("client_id", "string", "0+"),
                        field("client_host", "string", "0+"),
                        field("member_metadata", "bytes", "0+"),
                        field("member_assignment", "bytes", "0+"),
                        field("awaited_ms", "int64", "5+", default=-1, ignorable=True, tag=10298),
                        field("wait_left_ms", "int64", "5+", default=-1, ignorable=True, tag=10299),
                    ],
                ),
                field("authorized_operations", "int32", "3+", default=-2147483648),
            ],
        ),
    ],
)
