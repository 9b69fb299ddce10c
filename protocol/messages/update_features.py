"""UpdateFeatures (57): finalize, downgrade or delete feature levels of the cluster (KIP-584, Public Interfaces).

Version 1 (Kafka 3.3) distinguishes safe downgrades from unsafe ones and can validate only. Tag 10264 of the response
(Anabranch's) is the new epoch of the finalized features; -1 when nothing was written.
"""

from anabranch.protocol.schema import field, message

REQUEST = message(
    "UpdateFeaturesRequest",
    api_key=57,
    versions="0-1",
    flexible="0+",
    fields=[
        field("timeout_ms", "int32", "0+", default=60_000),
        field(
            "feature_updates",
            "[]FeatureUpdateKey",
            "0+",
            fields=[
                field("feature", "string", "0+"),
                field("max_version_level", "int16", "0+"),
                field("allow_downgrade", "bool", "0"),
                field("upgrade_type", "int8", "1+", default=1),
            ],
        ),
        field("validate_only", "bool", "1+"),
    ],
)

RESPONSE = message(
    "UpdateFeaturesResponse",
    api_key=57,
    versions="0-1",
    flexible="0+",
    fields=[
        field("throttle_time_ms", "int32", "0+"),
        field("error_code", "int16", "0+"),
        field("error_message", "string", "0+", nullable="0+", default=None),
        field(
            "results",
            "[]UpdatableFeatureResult",
            "0+",
            fields=[
                field("feature", "string", "0+"),
                field("error_code", "int16", "0+"),
                field("error_message", "string", "0+", nullable="0+", default=None),
            ],
        ),
        field("features_epoch", "int64", "0+", default=-1, ignorable=True, tag=10264),
    ],
)
