"""The rules for the arguments of ``Consumer``'s methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anabranch.client.arguments import (
    INT64_MAX,
    Rule,
    by_itself,
    duration,
    each,
    flag,
    instance,
    leader_epoch,
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
from anabranch.client.group.coordinator_link import OffsetAndMetadata, committed_offset
from anabranch.client.group.listener import KEY_CALLBACKS, REBALANCE_CALLBACKS
from anabranch.client.subscription.fetched_batch import ConsumerRecord
from anabranch.protocol.types import TopicPartition


def delivered_record(name: str, value: Any) -> ConsumerRecord[Any, Any]:
    """A record as it was delivered; the fields that say where it is are judged."""
    record = instance(ConsumerRecord)(name, value)
    tp = topic_partition(name, (record.topic, record.partition))
    at = whole(0, INT64_MAX - 1)(f"{name}.offset", record.offset)
    epoch = leader_epoch(f"{name}.leader_epoch", record.leader_epoch)
    return record._replace(topic=tp.topic, partition=tp.partition, offset=at, leader_epoch=epoch)


def next_offsets(name: str, value: Any) -> dict[TopicPartition, OffsetAndMetadata]:
    """The next offset to read of each partition. A record is refused: it has its own offset, not the next one."""
    form = "{tp: offset + 1}, with the offset of the last record"
    return mapping(topic_partition, committed_offset, form)(name, value)  # type: ignore[no-any-return]


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
    "incremental_assign": {"partitions": each(topic_partition)},
    "incremental_unassign": {"partitions": each(topic_partition)},
    "pause": {"partitions": topic_partition},
    "resume": {"partitions": topic_partition},
    "getmany": {"partitions": topic_partition, "timeout_ms": duration, "max_records": _limit},
    "getone": {"partitions": by_itself},
    "poll": {"timeout": optional(duration)},
    "batches": {"max_records": _limit},
    "seek": {"partition": topic_partition, "offset": offset},
    "seek_to_beginning": {"partitions": topic_partition},
    "seek_to_end": {"partitions": topic_partition},
    "seek_to_committed": {"partitions": topic_partition},
    "position": {"partition": topic_partition},
    "highwater": {"partition": topic_partition},
    "last_stable_offset": {"partition": topic_partition},
    "get_watermark_offsets": {"partition": topic_partition, "timeout": optional(duration), "cached": flag},
    "beginning_offsets": {"partitions": each(topic_partition)},
    "end_offsets": {"partitions": each(topic_partition)},
    "offsets_for_times": {"timestamps": mapping(topic_partition, timestamp, "{tp: milliseconds}")},
    "store_offsets": {
        "message": optional(delivered_record),
        "offsets": optional(next_offsets),
    },
    "commit": {"offsets": optional(next_offsets)},
    "committed": {"partition": topic_partition},
    "partitions_for_topic": {"topic": topic},
    "list_topics": {"topic": optional(topic), "timeout": optional(duration)},
}
