"""``python -m tests.interop.spark_control BOOTSTRAP TOPIC SOURCE DIRECTORY``: a stateful query over one source.

It checks that the numbers of each key are consecutive. It prints as JSON the number of records, and the places where
the numbers of a key are not consecutive. It is a separate process, because a JVM loads its jars only when it starts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.state import GroupState

from bench.spark_peer import session

SHORT = {
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Settings for a run of a few records: compiling the query's code would take longer than the run."""


def follow(key: tuple[str], pieces: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """Keep the key's last number in the state. The row has the places where the key's numbers are not consecutive."""
    last = state.get[0] if state.exists else -1
    rows = pd.concat(list(pieces)).sort_values("offset")
    broken = ""
    for number in rows["number"]:
        if number != last + 1:
            broken += f"{number} follows {last}; "
        last = int(number)
    state.update((last,))
    yield pd.DataFrame({"key": [key[0]], "count": [len(rows)], "broken": [broken]})


def main(bootstrap: str, topic: str, source: str, directory: str) -> None:
    spark = session()
    for name, value in SHORT.items():
        spark.conf.set(name, value)
    reader = spark.readStream.format(source).option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    rows = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "100").load()
    numbered = rows.selectExpr("cast(key as string) as key", "cast(cast(value as string) as int) as number", "offset")
    states = numbered.groupBy("key").applyInPandasWithState(
        follow, "key string, count int, broken string", "last int", "update", "NoTimeout"
    )
    found = {"records": 0, "broken": []}

    def take(batch: DataFrame, _: int) -> None:
        for row in batch.collect():
            found["records"] += row["count"]
            if row.broken:
                found["broken"].append(f"{row.key}: {row.broken}")

    query = states.writeStream.foreachBatch(take).outputMode("update").option("checkpointLocation", directory)
    query.trigger(availableNow=True).start().awaitTermination()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
