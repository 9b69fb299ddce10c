"""The live log in Spark: ``spark.read``, ``spark.readStream`` and their writers with ``format("anabranch")``.

    from anabranch.spark import register

    register(spark)
    spark.readStream.format("anabranch").option("kafka.bootstrap.servers", "localhost:9092").option("subscribe", "t")

When the module ``pyspark_anabranch`` is installed, Spark finds the format without ``register``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Register ``format("anabranch")`` with a session."""
    from anabranch.spark.source import LogDataSource

    spark.dataSource.register(LogDataSource)
