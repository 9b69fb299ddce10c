"""Spark's own Kafka source (spark-sql-kafka-0-10) from Maven Central, and a session that has it beside ours."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench.maven import CACHE, PeerUnavailable, resolved

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

POM = Path(__file__).with_name("spark-kafka.pom.xml")
_OURS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""The jars that PySpark's wheel does not have."""
_OTHER_VERSION = "4.2.0"
"""The version to use when Maven has no jars of PySpark's version. This version runs in Spark 4.3 too."""


def spark_kafka_jars() -> list[Path]:
    """The jars, resolved once. Raises ``PeerUnavailable`` when they are not available."""
    import pyspark

    unavailable = PeerUnavailable()
    for version in dict.fromkeys((pyspark.__version__, _OTHER_VERSION)):
        arguments = ("-f", str(POM), f"-Dspark.version={version}", "dependency:copy-dependencies")
        try:
            jars = resolved(
                CACHE / "spark-kafka" / version, "Spark's Kafka source", *arguments, "-DincludeScope=runtime"
            )
        except PeerUnavailable as error:
            unavailable = error
        else:
            return sorted(path for path in jars.glob("*.jar") if path.name.startswith(_OURS))
    raise unavailable


def session(master: str = "local[2]") -> SparkSession:
    """A session with both sources and few log lines. The process must not have started a JVM before."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.jars": ",".join(map(str, spark_kafka_jars())),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
    }
    builder = SparkSession.builder.master(master).appName("anabranch peer")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
