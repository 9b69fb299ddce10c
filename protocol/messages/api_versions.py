"""ApiVersions (18): the APIs and versions the broker serves.

Tag 10282 lists the failures of the server's background work; only a health check gets this tag. Tag 10275 is the
release of the server's software; only clients of this project get this tag.

Version 1 brings the throttle time; 3 is flexible, names the client's software (KIP-511) and may list features. The
response header is always version 0, and an unsupported version is answered in version 0.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "ApiVersionsRequest",
    api_key=18,
    versions="0-3",
    flexible="3+",
    fields=[
        field("client_software_name", "string", "3+", ignorable=True),
        field("client_software_version", "string", "3+", ignorable=True),
    ],
)

RESPONSE = message(
    "ApiVersionsResponse",
    api_key=18,
    versions="0-3",
    flexible="3+",
    fields=[
        field("error_code", "int16", "0+"),
        field(
            "api_keys",
            "[]ApiVersion",
            "0+",
            fields=[
                field("api_key", "int16", "0+"),
                field("min_version", "int16", "0+"),
                field("max_version", "int16", "0+"),
            ],
        ),
        field("throttle_time_ms", "int32", "1+", ignorable=True),
        field(
            "supported_features",
            "[]SupportedFeatureKey",
            "3+",
            ignorable=True,
            tag=0,
            fields=[
                field("name", "string", "3+"),
                field("min_version", "int16", "3+"),
                field("max_version", "int16", "3+"),
            ],
        ),
        field("finalized_features_epoch", "int64", "3+", default=-1, ignorable=True, tag=1),
        field(
            "finalized_features",
            "[]FinalizedFeatureKey",
            "3+",
            ignorable=True,
            tag=2,
            fields=[
                field("name", "string", "3+"),
                field("max_version_level", "int16", "3+"),
                field("min_version_level", "int16", "3+"),
            ],
        ),
        field("software_version", "string", "3+", ignorable=True, tag=10275),
        field("background_failures", "[]string", "3+", ignorable=True, tag=10282),
    ],
)
