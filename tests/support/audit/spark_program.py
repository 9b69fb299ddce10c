"""A user's program for ``spark-submit``: uses Anabranch's formats without importing it, and prints results."""

import json
import os
import sys

import pyarrow as pa
from pyspark.sql import SparkSession

directory, bootstrap, topic, checkpoint = sys.argv[1:]
spark = SparkSession.builder.getOrCreate()


def with_executor(pieces):
    """Add the executor that reads each piece, named by the executor's own directory."""
    for piece in pieces:
        yield piece.append_column("executor", pa.repeat(os.environ["SPARK_EXECUTOR_DIRS"], len(piece)))


segments = spark.read.format("anabranch-segments").option("columns", "partition,offset").load(directory)
servers = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic}
live = spark.read.format("anabranch").options(**servers).load().select("partition", "offset", "value")
read = live.mapInArrow(with_executor, "partition int, offset bigint, value binary, executor string").collect()
batches = []
stream = spark.readStream.format("anabranch").options(**servers, startingOffsets="earliest", maxOffsetsPerTrigger="50")
query = stream.load().writeStream.foreachBatch(lambda rows, _: batches.append(rows.count()))
query.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
found = {
    "segment columns": segments.columns,
    "segment records": segments.where("offset is not null").count(),
    "live": sorted([row.partition, row.offset, row.value.decode()] for row in read),
    "executors": len({row.executor for row in read}),
    "micro-batches": batches,
}
print(json.dumps(found))
