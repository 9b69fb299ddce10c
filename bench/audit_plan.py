"""``python -m bench.audit_plan``: the bytes that each check of the audit shuffles, from Spark's own event log.

Writes a topic of segment files with indexes (deleted afterwards), and applies the audit's checks to it one after the
other. docs/audit-planning.md derives the figures for other sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from anabranch.audit import run
from anabranch.audit.discovery import discover, replica_files
from anabranch.audit.manifest import (
    MANIFEST_NAME,
    REPLICAS_DIRECTORY,
    Manifest,
    PartitionEntry,
    ReplicaEntry,
    SegmentEntry,
)
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import place, positive_hash

PARTITIONS = 4
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 256 * 1024 * 1024
OTHER_BROKER = 2
T0 = 1_700_000_000_000
Record = tuple[bytes, bytes, tuple[()], int]


class _Log:
    """Writes the segments of one partition."""

    def __init__(self, directory: Path, codec: CompressionType) -> None:
        directory.mkdir(parents=True)
        self._directory, self._codec = directory, codec
        self.offset = 0
        self.pending: list[Record] = []
        self.bytes = 0
        self.segments: list[Path] = []

    def append(self, record: Record) -> None:
        self.pending.append(record)
        self.bytes += len(record[1])
        if self.bytes >= BATCH_BYTES:
            self.flush()

    def flush(self) -> None:
        if not self.pending:
            return
        batch = build_batch(
            self.pending,
            compression=self._codec,
            base_offset=self.offset,
            leader_epoch=0,
            producer_id=7,
            producer_epoch=0,
            base_sequence=self.offset & 0x7FFFFFFF,
        )
        position = self.segments[-1].stat().st_size if self.segments else SEGMENT_BYTES
        if position >= SEGMENT_BYTES:
            self.segments.append(self._directory / f"{self.offset:020d}.log")
            position = 0
        log = self.segments[-1]
        with log.open("ab") as file:
            file.write(batch)
        self.offset += len(self.pending)
        last = self.offset - 1 - int(log.stem)
        entries = {".index": struct.pack(">ii", last, position), ".timeindex": struct.pack(">qi", self._newest(), last)}
        for suffix, entry in entries.items():
            with log.with_suffix(suffix).open("ab") as file:
                file.write(entry if position else b"")
        self.pending, self.bytes = [], 0

    def _newest(self) -> int:
        return self.pending[-1][3]

    def copy_to(self, directory: Path) -> None:
        """Make the directory of a replica, with links to the same files."""
        directory.mkdir(parents=True)
        for path in self._directory.iterdir():
            os.link(path, directory / path.name)


def write_topic(root: Path, records: int, size: int, keys: int, codec: CompressionType, copied: int) -> None:
    """Write the topic's files. Values begin with a number that ascends within each key.

    The first ``copied`` partitions have a second replica.
    """
    logs = [_Log(root / f"events-{p}", codec) for p in range(PARTITIONS)]
    rng = random.Random(1)
    filler = rng.randbytes(1 << 20).hex().encode()
    for n in range(records):
        key = b"key-%08d" % (n % keys)
        head = b"%d\t" % n
        at = n * 37 % (len(filler) - size)
        log = logs[place(positive_hash(key), PARTITIONS, PARTITIONS)]
        log.append((key, head + filler[at : at + size - len(head)], (), T0 + n))
    entries = []
    for p, log in enumerate(logs):
        log.flush()
        segments = [SegmentEntry(x.name, int(x.stem), x.stat().st_size) for x in log.segments]
        replicas = [ReplicaEntry(OTHER_BROKER, 0, log.offset, segments)] if p < copied else []
        if replicas:
            log.copy_to(root / REPLICAS_DIRECTORY / str(OTHER_BROKER) / f"events-{p}")
        entries.append(PartitionEntry(p, 0, log.offset, segments, replicas=replicas))
    (root / MANIFEST_NAME).write_bytes(Manifest("events", "delete", PARTITIONS, PARTITIONS, entries).encode())


def write_deliveries(root: Path, path: Path) -> None:
    """Write a consumer log of one member that got every record, partition by partition."""
    (topic,) = discover(root)
    with path.open("w") as file:
        for entry in topic.manifest.partitions:
            for offset in range(entry.high_watermark):
                file.write(
                    f'{{"group": "g", "member": "m", "topic": "events", "partition": {entry.partition}, '
                    f'"offset": {offset}, "time": {T0 + offset}}}\n'
                )


def shuffled(events: Path) -> Counter[str]:
    """The bytes written for shuffles, by the description of the job."""
    stages: dict[int, str] = {}
    found: Counter[str] = Counter()
    for line in events.open():
        event = json.loads(line)
        if event["Event"] == "SparkListenerJobStart":
            name = event["Properties"].get("spark.job.description", "")
            stages.update((stage, name) for stage in event["Stage IDs"])
        elif event["Event"] == "SparkListenerTaskEnd" and "Task Metrics" in event:
            written = event["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Bytes Written"]
            found[stages.get(event["Stage ID"], "")] += written
    return found


@contextlib.contextmanager
def _event_log(directory: Path) -> Iterator[None]:
    """Make Spark write its events to files in this directory."""
    directory.mkdir()
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as configuration:
        settings = {"enabled": "true", "dir": directory.as_uri(), "rolling.enabled": "false", "compress": "false"}
        lines = [f"spark.eventLog.{name} {value}\n" for name, value in settings.items()]
        Path(configuration, "spark-defaults.conf").write_text("".join(lines))
        os.environ["SPARK_CONF_DIR"] = configuration
        try:
            yield
        finally:
            del os.environ["SPARK_CONF_DIR"]


def measure(directory: Path, order_by: str, event_log: Path, consumer_log: Path | None) -> dict[str, Any]:
    """Seconds and shuffled bytes of each check, applied alone to the summaries that all checks share."""
    topics = discover(directory)
    copies = [*topics, *(copy for topic in topics for copy in replica_files(topic))]
    seconds: dict[str, float] = {}
    with _event_log(event_log), run.spark_session("local[2]") as spark:
        from anabranch.audit import deliveries, rules, totals
        from anabranch.audit.datasource import segment_frame

        def timed(name: str, work: Callable[[], Any]) -> Any:
            spark.sparkContext.setJobDescription(name)
            began = time.perf_counter()
            result = work()
            seconds[name] = seconds.get(name, 0) + time.perf_counter() - began
            return result

        def read(columns: Sequence[str]) -> Any:
            return segment_frame(spark, topics, "checks", order_by, wanted_columns=columns)

        log = deliveries.read_deliveries(spark, str(consumer_log), "events").persist() if consumer_log else None
        kept = segment_frame(spark, copies, "summary", order_by).persist()
        parts = kept.rdd.getNumPartitions()
        timed("scan", kept.count)
        sums = timed("totals", lambda: totals.totals(kept))
        found = rules.FoundRows(spark, kept, read, topics, copies, order_by, log, transactional=sums.transactional)
        applied = [*rules.file_rules(found), *rules.batch_rules(found)]
        applied += timed("keys that do not ascend", lambda: list(rules.record_rules(found)))
        if log is not None:
            timed("consumer log, read", log.count)
            timed("records for the consumer log", found.committed.count)
            of_consumers = list(rules.consumer_rules(found))
            timed("deliveries without a record", lambda: [rule.decide(sums) for rule in of_consumers])
            applied += of_consumers
        for rule in applied:
            for frame in rule.offences:
                timed(rule.name, frame.count)
        timed("hot keys", lambda: totals.hot_keys(kept))
        kept_rows = kept.groupBy("kind").count().collect()
    (events,) = event_log.iterdir()
    return {
        "parts": parts,
        "seconds": seconds,
        "shuffled": dict(shuffled(events)),
        "kept rows": {row["kind"]: row["count"] for row in kept_rows},
        "driver RSS, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.audit_plan", description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a value")
    parser.add_argument("--keys", type=int, default=10_000)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--order-by", default="tsv:0")
    parser.add_argument("--copied", type=int, default=1, help="the number of partitions that have a replica")
    parser.add_argument("--consumer-log", action="store_true", help="with a consumer log of all records")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as scratch:
        topic, codec = Path(scratch, "topic"), CompressionType[arguments.codec.upper()]
        began = time.perf_counter()
        write_topic(topic, arguments.records, arguments.size, arguments.keys, codec, arguments.copied)
        size = sum(path.stat().st_size for path in topic.glob("events-*/*.log"))
        log = Path(scratch, "deliveries.jsonl") if arguments.consumer_log else None
        if log is not None:
            write_deliveries(topic, log)
        print(f"{arguments.records:,} records of {arguments.size} B, {arguments.keys:,} keys, {size / 1e9:.2f} GB")
        print(f"written in {time.perf_counter() - began:.0f} s", flush=True)
        found = measure(topic, arguments.order_by, Path(scratch, "events"), log)
    print(f"{found['parts']} parts; kept of the scan: {found['kept rows']}; driver RSS {found['driver RSS, MB']} MB")
    for name in found["seconds"] | found["shuffled"]:
        seconds, written = found["seconds"].get(name, 0), found["shuffled"].get(name, 0)
        print(f"  {name:<24} {seconds:>7.1f} s {written / 1e6:>10.3f} MB shuffled {written / size * 1e6:>10.0f} B/MB")


if __name__ == "__main__":
    main()
