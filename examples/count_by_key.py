"""Count a topic's records by key in a Spark stream, and check that the values of no key went back.

It reads the present records, prints a line for each micro-batch, and ends. The next run continues from the checkpoint,
also if the topic was resized in between. The values have to be whole numbers that rise within a key.
"""

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("topic", help="the topic to count")
topic = parser.parse_args().topic
os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else Spark looks for the format in the python3 of PATH
spark = SparkSession.builder.config("spark.sql.shuffle.partitions", "4").getOrCreate()
newest: dict[str, int] = {}


def take(batch: DataFrame, number: int) -> None:
    """A key's records of a micro-batch are in one partition, in the order of offsets."""
    value = F.col("value").cast("string").cast("long")
    keys = batch.withColumn("value", value).groupBy(F.col("key").cast("string").alias("key"))
    found = keys.agg(F.count("*").alias("records"), F.min("value").alias("first"), F.max("value").alias("last"))
    rows = found.collect()
    back = [row.key for row in rows if newest.get(row.key, row.first) > row.first]
    newest.update({row.key: row.last for row in rows})
    print(
        f"micro-batch {number}: {sum(row.records for row in rows)} records of {len(rows)} keys, "
        f"the values of {len(back)} keys went back"
    )


events = (
    spark.readStream.format("anabranch")
    .option("kafka.bootstrap.servers", os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092"))
    .option("subscribe", topic)
    .option("startingOffsets", "earliest")
    .load()
)
checkpoint = Path(f"{topic}-checkpoint").resolve().as_uri()
query = events.writeStream.foreachBatch(take).option("checkpointLocation", checkpoint)
query.trigger(availableNow=True).start().awaitTermination()
