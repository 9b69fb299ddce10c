"""``python -m bench.audit_plan``: what each check of the audit shuffles, by Spark's own event log.

Writes a topic of segment files (deleted afterwards), and applies the audit's checks to it one after the other.
Figures for other sizes follow: docs/audit-planning.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anabranch.audit import run
from anabranch.audit.discovery import discover
from anabranch.audit.manifest import MANIFEST_NAME, Manifest, PartitionEntry, SegmentEntry
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import place, positive_hash

PARTITIONS = 4
BATCH_BYTES = 16 * 1024
SEGMENT_BYTES = 256 * 1024 * 1024
T0 = 1_700_000_000_000
Record = tuple[bytes, bytes, tuple[()], int]


class _Log:
    """One partition's segments."""

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
        if not self.segments or self.segments[-1].stat().st_size >= SEGMENT_BYTES:
            self.segments.append(self._directory / f"{self.offset:020d}.log")
        with self.segments[-1].open("ab") as file:
            file.write(batch)
        self.offset += len(self.pending)
        self.pending, self.bytes = [], 0


def write_topic(root: Path, records: int, size: int, keys: int, codec: CompressionType) -> None:
    """Values begin with a number that ascends within each key."""
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
        entries.append(PartitionEntry(p, 0, log.offset, segments))
    (root / MANIFEST_NAME).write_bytes(Manifest("events", "delete", PARTITIONS, PARTITIONS, entries).encode())


def shuffled(events: Path) -> Counter[str]:
    """Bytes written for shuffles, by the description of the job."""
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
    """Have Spark write its events to files in this directory."""
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


def measure(directory: Path, order_by: str, event_log: Path) -> dict[str, Any]:
    """Seconds and shuffled bytes of each check, applied alone to the summaries that all checks share."""
    topics = discover(directory)
    seconds: dict[str, float] = {}
    with _event_log(event_log), run.spark_session("local[2]") as spark:
        from anabranch.audit.datasource import segment_frame

        def timed(name: str, work: Callable[[], Any]) -> Any:
            spark.sparkContext.setJobDescription(name)
            began = time.perf_counter()
            result = work()
            seconds[name] = seconds.get(name, 0) + time.perf_counter() - began
            return result

        def read(view: str) -> Any:
            return segment_frame(spark, topics, view, order_by)

        kept = read("summary").persist()
        timed("scan", kept.count)
        rows = timed("totals", lambda: run._summarise(kept))
        summaries = run._per_partition(rows)
        spark.sparkContext.setJobDescription("keys that do not ascend")
        rules = list(run._rules(kept, read, topics, run._total(summaries), order_by))
        for rule in rules:
            for frame in getattr(rule, "offences", ()):
                timed(rule.name, frame.count)
        timed("hot keys", lambda: run._hot_keys(kept))
        kept_rows = kept.groupBy("kind").count().collect()
    (events,) = event_log.iterdir()
    return {
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
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as scratch:
        topic, codec = Path(scratch, "topic"), CompressionType[arguments.codec.upper()]
        write_topic(topic, arguments.records, arguments.size, arguments.keys, codec)
        size = sum(path.stat().st_size for path in topic.rglob("*.log"))
        found = measure(topic, arguments.order_by, Path(scratch, "events"))
    print(f"{arguments.records:,} records of {arguments.size} B, {arguments.keys:,} keys, {size / 1e9:.2f} GB")
    print(f"rows kept of the scan: {found['kept rows']}; driver RSS {found['driver RSS, MB']} MB")
    for name in found["seconds"] | found["shuffled"]:
        seconds, written = found["seconds"].get(name, 0), found["shuffled"].get(name, 0)
        print(f"  {name:<24} {seconds:>7.1f} s {written / 1e6:>10.3f} MB shuffled {written / size * 1e6:>10.0f} B/MB")


if __name__ == "__main__":
    main()
