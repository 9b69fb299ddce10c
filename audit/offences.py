"""The rows that a rule reports: topic, partition, offset, segment, position and ``message``."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F


def offences(rows: DataFrame, message: Column, offset: Column | str) -> DataFrame:
    at = F.col(offset) if isinstance(offset, str) else offset
    return rows.select("topic", "partition", at.alias("offset"), "segment", "position", message.alias("message"))


def sentence(*parts: str | Column) -> Column:
    """A sentence from literal texts and column names in turn, beginning with a text."""
    columns = []
    for number, part in enumerate(parts):
        if isinstance(part, Column):
            columns.append(part)
        else:
            columns.append(F.col(part).cast("string") if number % 2 else F.lit(part))
    return F.concat(*columns)


def shown_key() -> Column:
    return F.concat(F.lit("'"), F.substring(F.decode("key", "UTF-8"), 1, 80), F.lit("'"))
