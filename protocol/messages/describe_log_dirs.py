"""DescribeLogDirs (35): log directories and the sizes of the replicas in them.

A null topic list asks for all. Version 2 is flexible, 3 has an error for the whole request (KIP-784), and 4 the size
and the free space of each file system (KIP-827). Tag 10272 (Anabranch's) describes the records that the leader of a
partition retains against retention by time: since when, until when at the latest, and the group that has yet to
read the records ("": not known). The tag is None when the leader retains nothing.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "DescribeLogDirsRequest",
    api_key=35,
    versions="1-4",
    flexible="2+",
    fields=[
        field(
            "topics",
            "[]DescribableLogDirTopic",
            "1+",
            nullable="1+",
            fields=[
                field("topic", "string", "1+"),
                field("partitions", "[]int32", "1+"),
            ],
        ),
    ],
)

RESPONSE = message(
    "DescribeLogDirsResponse",
    api_key=35,
    versions="1-4",
    flexible="2+",
    fields=[
        field("throttle_time_ms", "int32", "1+"),
        field("error_code", "int16", "3+", ignorable=True),
        field(
            "results",
            "[]DescribeLogDirsResult",
            "1+",
            fields=[
                field("error_code", "int16", "1+"),
                field("log_dir", "string", "1+"),
                field(
                    "topics",
                    "[]DescribeLogDirsTopic",
                    "1+",
                    fields=[
                        field("name", "string", "1+"),
                        field(
                            "partitions",
                            "[]DescribeLogDirsPartition",
                            "1+",
                            fields=[
                                field("partition_index", "int32", "1+"),
                                field("partition_size", "int64", "1+"),
                                field("offset_lag", "int64", "1+"),
                                field("is_future_key", "bool", "1+"),
                                field(
                                    "retained",
                                    "DescribeLogDirsRetained",
                                    "2+",
                                    ignorable=True,
                                    tag=10272,
                                    fields=[
                                        field("start_offset", "int64", "2+", default=-1),
                                        field("end_offset", "int64", "2+", default=-1),
                                        field("size_bytes", "int64", "2+", default=-1),
                                        field("since_ms", "int64", "2+", default=-1),
                                        field("until_ms", "int64", "2+", default=-1),
                                        field("group_id", "string", "2+"),
                                    ],
                                ),
                            ],
                        ),
                    ],
                ),
                field("total_bytes", "int64", "4+", default=-1, ignorable=True),
                field("usable_bytes", "int64", "4+", default=-1, ignorable=True),
            ],
        ),
    ],
)
