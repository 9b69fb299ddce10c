"""``write`` and ``writeStream``: Anabranch's producer writes rows to the log, at least once, in the order of the rows.

Linear hashing places keys on partitions. A task is complete when all its rows are acknowledged. A task that Spark
repeats writes its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import anyio
import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, IntegerType, StringType, StructType

from anabranch.spark.options import OptionError, WriteOptions

_BYTES: Final = (StringType(), BinaryType())
_HEADERS: Final = StructType().add("key", StringType()).add("value", BinaryType())
_TYPES: Final[dict[str, str]] = {
    "key": "string or binary",
    "value": "string or binary",
    "headers": "array<struct<key:string,value:binary>>",
    "topic": "string",
    "partition": "int",
}


class SinkError(ValueError):
    """The rows cannot be written."""


class _Rows:
    """The common part of both writers. ``schema`` is the rows' schema."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise SinkError('a log cannot be overwritten: use mode("append")')
        _check(schema, options)
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        anyio.run(self._write, iterator)
        return WriterCommitMessage()

    async def _write(self, batches: Iterator[pa.RecordBatch]) -> None:
        from anabranch.real.producer import Producer  # a query that only reads does not load it

        async with Producer(**self._options.client) as producer:
            for batch in batches:
                handles = [await producer.send(**row) for row in _rows(batch, self._options.topic)]
                await producer.flush()
                for handle in handles:
                    await handle.wait()


class LogWriter(_Rows, DataSourceArrowWriter):  # type: ignore[misc]
    """Writes the rows of a batch query."""


class LogStreamWriter(_Rows, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writes the rows of each micro-batch."""


def _rows(batch: pa.RecordBatch, topic: str | None) -> Iterator[dict[str, Any]]:
    """The arguments of ``Producer.send`` for each row."""
    names = batch.schema.names
    columns: dict[str, list[Any]] = {}
    for name in names:
        column = batch.column(name)
        if name in ("key", "value") and not pa.types.is_binary(column.type):
            column = column.cast(pa.binary())
        columns[name] = column.to_pylist()
    if "topic" not in columns:
        columns["topic"] = [topic] * batch.num_rows
    for row in zip(*columns.values()):
        found = dict(zip(columns, row))
        if found["topic"] is None:
            if topic is None:
                raise SinkError("a row has no topic, and the option 'topic' is not set")
            found["topic"] = topic
        if (headers := found.get("headers")) is not None:
            found["headers"] = [(header["key"], header["value"]) for header in headers]
        yield found


def _check(schema: StructType, options: WriteOptions) -> None:
    """Raise ``SinkError`` or ``OptionError`` for columns that cannot be written."""
    found = {field.name: field.dataType for field in schema}
    for name, kind in found.items():
        if name not in _TYPES:
            raise SinkError(f"column {name!r} cannot be written: select(...) only {', '.join(_TYPES)}")
        if not _fits(name, kind):
            raise SinkError(f"column {name!r} is {kind.simpleString()}, not {_TYPES[name]}: cast it")
    if "value" not in found:
        raise SinkError("the column 'value' is missing")
    if "topic" not in found and options.topic is None:
        raise OptionError("topic", "is missing, and there is no column 'topic'")


def _fits(name: str, kind: Any) -> bool:
    if name in ("key", "value"):
        return kind in _BYTES
    if name == "headers":
        return (
            isinstance(kind, ArrayType)
            and isinstance(kind.elementType, StructType)
            and ([(f.name, f.dataType) for f in kind.elementType] == [(f.name, f.dataType) for f in _HEADERS])
        )
    return bool(kind == (StringType() if name == "topic" else IntegerType()))
