"""The records that stay after retention.ms for a group."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import anyio

from anabranch import Admin, ConfigEntry, KafkaError, TopicDescription, TopicPartition
from anabranch.protocol.plurals import counted

WAITS_KEY, MAX_KEY = "ordered.delivery.retention.waits", "ordered.delivery.retention.waits.max.ms"
ANSWER_WITHIN_S = 3.0


def waits(configs: Mapping[str, ConfigEntry]) -> bool:
    return WAITS_KEY in configs and configs[WAITS_KEY].value == "true"


class RetainedRecords(NamedTuple):
    """The records of a partition that its leader keeps for ``group``; None if the group is unknown."""

    partition: int
    start_offset: int
    end_offset: int
    size_bytes: int
    group: str | None
    since_ms: int
    until_ms: int
    """The time limit: the records are kept until then at the latest."""

    @property
    def sentence(self) -> str:
        records = self.end_offset - self.start_offset
        whom = f"group {self.group}" if self.group else "an unknown group"
        return (
            f"kept beyond retention.ms: partition {self.partition} offsets {self.start_offset} to {self.end_offset}"
            f" ({counted(records, 'record')}, {counted(self.size_bytes, 'byte')}) for {whom}"
            f" since {_time(self.since_ms)} until {_time(self.until_ms)} at the latest"
        )


async def retained_records(admin: Admin, topic: TopicDescription) -> list[RetainedRecords]:
    """By partition, the records that leaders keep beyond retention. Leaders that do not respond are left out."""
    leaders = {info.partition: info.leader for info in topic.partitions if info.leader >= 0}
    found: list[RetainedRecords] = []
    for broker in sorted(set(leaders.values())):
        asked = [TopicPartition(topic.name, p) for p, leader in sorted(leaders.items()) if leader == broker]
        with anyio.move_on_after(ANSWER_WITHIN_S):
            try:
                dirs = (await admin.describe_log_dirs([broker], asked))[broker]
            except KafkaError:
                continue
            found += [
                RetainedRecords(
                    tp.partition,
                    replica.retained.start_offset,
                    replica.retained.end_offset,
                    replica.retained.size_bytes,
                    replica.retained.group or None,
                    replica.retained.since_ms,
                    replica.retained.until_ms,
                )
                for directory in dirs
                for tp, replica in directory.partitions.items()
                if replica.retained is not None
            ]
    return sorted(found, key=lambda records: records.partition)


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
