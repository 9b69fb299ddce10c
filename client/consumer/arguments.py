"""The rules for the arguments of ``Consumer``'s methods."""

from __future__ import annotations

from collections.abc import Mapping

from anabranch.client.arguments import (
    INT64_MAX,
    Rule,
    by_itself,
    duration,
    each,
    listener,
    mapping,
    offset,
    optional,
    pattern,
    timestamp,
    topic,
    topic_partition,
    whole,
)
from anabranch.client.group.coordinator_link import committed_offset
from anabranch.client.group.listener import KEY_CALLBACKS, REBALANCE_CALLBACKS

_limit = optional(whole(1, INT64_MAX))
_key_listener = listener(*KEY_CALLBACKS)

CONSUMER_RULES: Mapping[str, Mapping[str, Rule]] = {
    "subscribe": {
        "topics": optional(each(topic)),
        "pattern": optional(pattern),
        "listener": listener(*REBALANCE_CALLBACKS),
        "partition_key_listener": _key_listener,
    },
    "assign": {"partitions": each(topic_partition), "partition_key_listener": _key_listener},
    "pause": {"partitions": topic_partition},
    "resume": {"partitions": topic_partition},
    "getmany": {"partitions": topic_partition, "timeout_ms": duration, "max_records": _limit},
    "getone": {"partitions": by_itself},
    "batches": {"max_records": _limit},
    "seek": {"partition": topic_partition, "offset": offset},
    "seek_to_beginning": {"partitions": topic_partition},
    "seek_to_end": {"partitions": topic_partition},
    "seek_to_committed": {"partitions": topic_partition},
    "position": {"partition": topic_partition},
    "highwater": {"partition": topic_partition},
    "beginning_offsets": {"partitions": each(topic_partition)},
    "end_offsets": {"partitions": each(topic_partition)},
    "offsets_for_times": {"timestamps": mapping(topic_partition, timestamp)},
    "commit": {"offsets": optional(mapping(topic_partition, committed_offset))},
    "committed": {"partition": topic_partition},
    "partitions_for_topic": {"topic": topic},
}
