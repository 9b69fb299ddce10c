"""Makes the lines of ``anabranch topics describe`` about records that stay after retention.ms for a group."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import anyio

from anabranch import Admin, ConfigEntry, KafkaError, TopicDescription, TopicPartition
from anabranch.protocol.plurals import counted

WAITS_KEY, MAX_KEY = "ordered.delivery.retention.waits", "ordered.delivery.retention.waits.max.ms"
ANSWER_WITHIN_S = 3.0


def waits(configs: Mapping[str, ConfigEntry]) -> bool:
    return WAITS_KEY in configs and configs[WAITS_KEY].value == "true"


async def held_rows(admin: Admin, topic: TopicDescription) -> list[dict[str, Any]]:
    """By partition, the records that leaders keep beyond retention. Leaders that do not respond are left out."""
    leaders = {info.partition: info.leader for info in topic.partitions if info.leader >= 0}
    rows = []
    for broker in sorted(set(leaders.values())):
        asked = [TopicPartition(topic.name, p) for p, leader in sorted(leaders.items()) if leader == broker]
        with anyio.move_on_after(ANSWER_WITHIN_S):
            try:
                dirs = (await admin.describe_log_dirs([broker], asked))[broker]
            except KafkaError:
                continue
            rows += [
                {
                    "partition": tp.partition,
                    "start_offset": replica.held.start_offset,
                    "end_offset": replica.held.end_offset,
                    "size_bytes": replica.held.size_bytes,
                    "group": replica.held.group or None,
                    "since_ms": replica.held.since_ms,
                    "until_ms": replica.held.until_ms,
                }
                for directory in dirs
                for tp, replica in directory.partitions.items()
                if replica.held is not None
            ]
    return sorted(rows, key=lambda row: row["partition"])


def held_line(row: Mapping[str, Any]) -> str:
    records = row["end_offset"] - row["start_offset"]
    whom = f"group {row['group']}" if row["group"] else "an unknown group"
    return (
        f"kept beyond retention.ms: partition {row['partition']} offsets {row['start_offset']} to {row['end_offset']}"
        f" ({counted(records, 'record')}, {counted(row['size_bytes'], 'byte')}) for {whom}"
        f" since {_time(row['since_ms'])} until {_time(row['until_ms'])} at the latest"
    )


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
