"""The rules for the arguments of ``Admin``'s methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anabranch.client.admin.types import ConfigOp, FeatureUpdate, NewTopic, TopicDescription
from anabranch.client.arguments import (
    INT16_MAX,
    INT64_MAX,
    Rule,
    broker,
    broker_or_all,
    count,
    duration,
    each,
    flag,
    instance,
    leader_epoch,
    mapping,
    member,
    optional,
    partition,
    refused,
    text,
    timeout_ms,
    timestamp,
    topic,
    topic_partition,
    whole,
)
from anabranch.client.group.coordinator_link import committed_offset
from anabranch.protocol.request_kinds import ElectionType, UpgradeType
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, MAX_TIMESTAMP

OFFSET_SPECS = {"earliest": EARLIEST_TIMESTAMP, "latest": LATEST_TIMESTAMP, "max_timestamp": MAX_TIMESTAMP}


def offset_spec(name: str, value: Any) -> Any:
    """A timestamp, or one of ``OFFSET_SPECS``."""
    if not isinstance(value, str):
        return timestamp(name, value)
    if value not in OFFSET_SPECS:
        raise refused(ValueError, name, value, f"a timestamp or one of {', '.join(OFFSET_SPECS)}")
    return value


def new_topic(name: str, value: Any) -> NewTopic:
    made = instance(NewTopic)(name, value)
    return NewTopic(
        topic(f"{name}.name", made.name),
        count(f"{name}.num_partitions", made.num_partitions),
        count(f"{name}.replication_factor", made.replication_factor),
        mapping(text, optional(text))(f"{name}.configs", made.configs),
        mapping(partition, each(broker))(f"{name}.replica_assignments", made.replica_assignments),
    )


def feature_update(name: str, value: Any) -> FeatureUpdate:
    made = instance(FeatureUpdate)(name, value)
    return replace(
        made,
        max_version_level=whole(-INT16_MAX, INT16_MAX)(f"{name}.max_version_level", made.max_version_level),
        type=member(UpgradeType)(f"{name}.type", made.type),
    )


def config_change(name: str, value: Any) -> Any:
    """A value, None, or a pair of a ``ConfigOp`` and a value."""
    if not isinstance(value, tuple):
        return optional(text)(name, value)
    if len(value) != 2:
        raise refused(TypeError, name, value, "a pair of a ConfigOp and a value")
    return member(ConfigOp)(f"{name}[0]", value[0]), optional(text)(f"{name}[1]", value[1])


_partitions = each(topic_partition)
_values = mapping(text, optional(text))
_changes = mapping(text, config_change)
_waits = {"timeout_ms": optional(timeout_ms)}
_validates = {"validate_only": flag}

ADMIN_RULES: Mapping[str, Mapping[str, Rule]] = {
    "outage": {"least_s": duration},
    "create_topics": {"topics": each(new_topic), **_waits, **_validates},
    "delete_topics": {"names": each(topic), **_waits},
    "list_topics": {"include_internal": flag},
    "describe_topics": {"names": each(topic)},
    "create_partitions": {
        "counts": mapping(topic, count, "{topic: count}"),
        **_waits,
        **_validates,
        "spares_stock_producers": flag,
    },
    "measured_appends": {"topic": topic},
    "resize_goal": {"topic": topic},
    "describe_features": {"broker": optional(broker)},
    "describe_release": {"broker": broker},
    "update_features": {"updates": mapping(text, feature_update), **_waits, **_validates},
    "lineages": {"partitions": _partitions, **_waits},
    "withheld_partitions": {"topic": instance(TopicDescription)},
    "epoch_ends": {"epochs": mapping(topic_partition, leader_epoch), "within_ms": optional(timeout_ms)},
    "elect_leaders": {"election_type": member(ElectionType), "partitions": optional(_partitions), **_waits},
    "alter_partition_reassignments": {"targets": mapping(topic_partition, optional(each(broker))), **_waits},
    "list_partition_reassignments": {"partitions": optional(_partitions), **_waits},
    "delete_records": {"before": mapping(topic_partition, whole(-1, INT64_MAX), "{tp: offset}"), **_waits},
    "list_offsets": {
        "specs": mapping(topic_partition, offset_spec, '{tp: "latest"}'),
        "read_committed": flag,
        "within_ms": optional(timeout_ms),
    },
    "describe_configs": {"topics": each(topic), "brokers": each(broker_or_all), "keys": optional(each(text))},
    "alter_configs": {
        "topics": optional(mapping(topic, _values)),
        "brokers": optional(mapping(broker_or_all, _values)),
        **_validates,
    },
    "incremental_alter_configs": {
        "topics": optional(mapping(topic, _changes)),
        "brokers": optional(mapping(broker_or_all, _changes)),
        **_validates,
    },
    "describe_loggers": {"broker": broker},
    "alter_loggers": {"broker": broker, "levels": _values, **_validates},
    "describe_log_dirs": {"brokers": optional(each(broker)), "partitions": optional(_partitions)},
    "list_groups": {"states": each(text)},
    "describe_groups": {"group_ids": each(text)},
    "delete_groups": {"group_ids": each(text)},
    "list_group_offsets": {"group_id": text, "partitions": optional(_partitions)},
    "group_positions": {"group_id": text, "partitions": _partitions},
    "alter_group_offsets": {"group_id": text, "offsets": mapping(topic_partition, committed_offset, "{tp: offset}")},
    "delete_group_offsets": {"group_id": text, "partitions": _partitions},
}
