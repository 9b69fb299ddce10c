"""``python -m bench.spark_read``: a topic read by ``format("anabranch")`` and by Spark's own Kafka source, in turns.

Both sources read from the same Anabranch broker, in one session on two cores, into a sink that drops all rows. Each
source runs as a batch query, and as a stream that ends after the present records (Trigger.AvailableNow). The first
rounds warm the JVM and do not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.load import WARM_UP_RECORDS, confluent_produce
from bench.maven import PeerUnavailable
from bench.spark_peer import session
from bench.targets import anabranch_target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
FORMATS = ("anabranch", "kafka")
Read = Callable[["SparkSession", str, str, str], None]


def batch(spark: SparkSession, source: str, bootstrap: str, topic: str) -> None:
    reader = spark.read.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader.load().write.format("noop").mode("append").save()


def stream(spark: SparkSession, source: str, bootstrap: str, topic: str) -> None:
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = reader.option("startingOffsets", "earliest").load()
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as checkpoint:
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint)
        writer.trigger(availableNow=True).start().awaitTermination()


KINDS: dict[str, Read] = {"batch": batch, "stream": stream}


def produce(bootstrap: str, topic: str, records: int, size: int) -> None:
    """Write random values with librdkafka; ``records`` includes the records of its warm-up."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(60)
    confluent_produce(
        argparse.Namespace(
            bootstrap=bootstrap, topic=topic, records=records - WARM_UP_RECORDS, size=size, partitions=PARTITIONS
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.spark_read", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2, help="earlier rounds that do not count")
    parser.add_argument("--records", type=int, default=2_000_000, help="records of 100 B; a quarter as many of 1 KiB")
    parser.add_argument("--json", type=Path, default=None)
    arguments = parser.parse_args()
    rates: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="anabranch-bench-") as directory:
        try:
            spark = session()
        except PeerUnavailable as reason:
            raise SystemExit(f"nothing to compare with: {reason}") from None
        with anabranch_target(Path(directory), 1) as target:
            for size, records in ((100, arguments.records), (1024, arguments.records // 4)):
                topic = f"spark-{size}"
                produce(target.bootstrap, topic, records, size)
                for number in range(arguments.warm_up + arguments.rounds):
                    for kind, read in KINDS.items():
                        for source in FORMATS:
                            began = time.perf_counter()
                            read(spark, source, target.bootstrap, topic)
                            rate = records / (time.perf_counter() - began)
                            name = f"{kind} {size} B, {source}"
                            if number >= arguments.warm_up:
                                rates.setdefault(name, []).append(rate)
                            print(
                                f"round {number + 1 - arguments.warm_up} {name:<26} {rate:>11,.0f} records/s",
                                flush=True,
                            )
            spark.stop()
    print("\nrecords/s: median (range)")
    for name, found in rates.items():
        print(f"  {name:<26} {statistics.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})")
    for name in rates:
        what, _, source = name.rpartition(", ")
        if source == "anabranch":
            ours, theirs = (statistics.median(rates[f"{what}, {one}"]) for one in FORMATS)
            print(f"  {what}: rate of our source over that of Spark's Kafka source {ours / theirs:.2f}")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(rates, indent=2) + "\n")


if __name__ == "__main__":
    main()
