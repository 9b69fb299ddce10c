"""The workloads of the benchmark, and which of them a run has."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

FAIL_OVER = "fail-over"
MEMORY = "memory"
THOUSAND = "resize-thousand"
WIDE = "resize-wide"
REPEATED = frozenset(
    {
        "resize-hand-over",
        "resize-throughput",
        "resize-throughput-saturated",
        THOUSAND,
        WIDE,
        "resize-while-draining",
        "cost-of-order",
        "cost-of-the-gate",
    }
)
"""The kinds of workloads that only Anabranch can run. Their ``records`` is the number of resizes or rounds."""

DRAINED = {"delete.records.when.drained": "true"}
STAMPED = {**DRAINED, "message.timestamp.type": "LogAppendTime"}


@dataclass(frozen=True, slots=True)
class Workload:
    """One line of the table: the load, its records, and the topic's partitions and replicas.

    ``size`` is the size of a record's value in bytes; for hand-overs it is the ms between two records of a key.
    """

    name: str
    kind: str
    records: int
    size: int
    fetch_of: str | None = None
    replicas: int = 1
    partitions: int = 6
    ours: Mapping[str, str] | None = None
    """The topic's configuration, for a workload that only Anabranch can run; None if Kafka runs the workload too."""
    keys: int = 0
    """How many keys the records have; 0 for records without a key."""

    @property
    def has_rate(self) -> bool:
        """Whether the workload has a rate, which each cluster is warmed up for."""
        return self.kind not in (FAIL_OVER, MEMORY) and self.ours is None


KEYS = 10_000
SHORT = [
    Workload("produce 100 B, librdkafka", "confluent-produce", 1_500_000, 100),
    Workload("one record at a time, librdkafka", "confluent-latency", 2_000, 1024),
    Workload("3 replicas: produce 100 B, librdkafka", "confluent-produce", 600_000, 100, replicas=3),
    Workload("3 replicas: one record at a time", "confluent-latency", 1_000, 1024, replicas=3),
]
STANDARD = [
    Workload("produce 1 KiB, librdkafka", "confluent-produce", 600_000, 1024),
    Workload("fetch 1 KiB, librdkafka", "confluent-fetch", 400_000, 1024, "produce 1 KiB, librdkafka"),
    *SHORT,
    Workload("produce 100 B by key, librdkafka", "confluent-produce", 1_000_000, 100, keys=KEYS),
    Workload("3 replicas: produce 1 KiB, librdkafka", "confluent-idempotent", 300_000, 1024, replicas=3, partitions=12),
    Workload("3 replicas: produce 100 B by key, librdkafka", "confluent-produce", 400_000, 100, replicas=3, keys=KEYS),
]
OTHERS = [
    Workload("fetch 100 B, librdkafka", "confluent-fetch", 1_200_000, 100, "produce 100 B, librdkafka"),
    Workload("produce 1 KiB, aiokafka", "aiokafka-produce", 100_000, 1024),
    Workload("fetch 1 KiB, aiokafka", "aiokafka-fetch", 200_000, 1024, "produce 1 KiB, librdkafka"),
    Workload("produce 1 KiB, anabranch", "anabranch-produce", 100_000, 1024),
    Workload("fetch 1 KiB, anabranch", "anabranch-fetch", 200_000, 1024, "produce 1 KiB, librdkafka"),
    Workload("produce 100 B, aiokafka", "aiokafka-produce", 200_000, 100),
    Workload("fetch 100 B, aiokafka", "aiokafka-fetch", 500_000, 100, "produce 100 B, librdkafka"),
    Workload("produce 100 B, anabranch", "anabranch-produce", 200_000, 100),
    Workload("fetch 100 B, anabranch", "anabranch-fetch", 500_000, 100, "produce 100 B, librdkafka"),
    Workload("3 replicas: memory", MEMORY, 400_000, 1024, replicas=3, partitions=12),
    Workload("3 replicas: leader killed", FAIL_OVER, 0, 0, replicas=3, partitions=1),
    Workload("produce 100 B by key: cost of order", "cost-of-order", 240, 100, ours={}),
    Workload("fetch 100 B by key: cost of the gate", "cost-of-the-gate", 12, 100, partitions=4, ours={}),
    Workload("resize: hand-over, 1,280 records/s", "resize-hand-over", 24, 50, replicas=3, partitions=4, ours=STAMPED),
    Workload("resize: hand-over, 3,200 records/s", "resize-hand-over", 24, 20, replicas=3, partitions=4, ours=STAMPED),
    Workload("resize: throughput", "resize-throughput", 6, 100, replicas=3, partitions=4, ours=DRAINED),
    Workload(
        "resize: throughput, saturated", "resize-throughput-saturated", 6, 100, replicas=3, partitions=4, ours=DRAINED
    ),
    Workload("resize: 1,000 to 2,000", THOUSAND, 1, 0, replicas=3, partitions=1_000, ours={}),
    Workload("resize: 4 to 2,000 and back, 20 resizes", WIDE, 20, 0, replicas=3, partitions=4, ours={}),
    Workload("resize: 4 to 8 while 1,996 drain", "resize-while-draining", 5, 0, replicas=3, partitions=4, ours={}),
]
ALL = [*STANDARD, *OTHERS]


def chosen(words: Collection[str], *, short: bool, everything: bool) -> list[Workload]:
    """The workloads whose name contains one of ``words`` (of all), or those of a table, and what they read."""
    table = SHORT if short else ALL if everything else STANDARD
    wanted = [workload for workload in ALL if any(word in workload.name for word in words)] if words else table
    read = {workload.fetch_of for workload in wanted}
    return [workload for workload in ALL if workload in wanted or workload.name in read]


def in_parts(workloads: list[Workload]) -> list[list[Workload]]:
    """The workloads in parts. All rounds of a part precede the next part. Kills are last: they leave cold brokers."""
    killing = [workload for workload in workloads if workload.kind == FAIL_OVER]
    return [part for part in ([workload for workload in workloads if workload not in killing], killing) if part]
