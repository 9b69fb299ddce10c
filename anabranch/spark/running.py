"""A log reader for code without an event loop; the reader's loop runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from anabranch.client.consumer.log_reader import Fetched, LogReader
from anabranch.client.errors import ErrorCode, KafkaError, OffsetOutOfRangeError
from anabranch.protocol.records import RecordBatch
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.real_anyio import client_env
from anabranch.spark.looks import data_loss
from anabranch.spark.offsets import Range

T = TypeVar("T")
_kept: dict[str, RunningReader] = {}
"""The readers of a worker process by settings: Spark uses a process for many tasks."""


class RunningReader:
    """A log reader that runs from its creation on. Its thread ends with the process: executors never close theirs."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = dict(settings)
        self._started: Future[BlockingPortal] = Future()
        self.reader: LogReader
        threading.Thread(target=anyio.run, args=(self._main,), name="anabranch-spark", daemon=True).start()
        self._portal = self._started.result()

    async def _main(self) -> None:
        try:
            async with LogReader(env=client_env(), **self._settings) as self.reader, BlockingPortal() as portal:
                self._started.set_result(portal)
                await portal.sleep_until_stopped()
        except BaseException as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    def call(self, function: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Run an async function in the loop and wait for its result."""
        return self._portal.call(function, *args)

    def close(self) -> None:
        self._portal.call(self._portal.stop, True)

    def batches(self, wanted: Range, *, fail_on_data_loss: bool) -> Iterator[list[tuple[RecordBatch, bool]]]:
        """Yield the batches of a range. The next batches are fetched while the caller works on the present ones.

        Raises ``DataLossError`` for records that no longer exist.
        """
        tp, offset = TopicPartition(wanted.topic, wanted.partition), wanted.start
        while offset < wanted.end:
            pending = self._fetch(tp, offset, wanted)
            try:
                while offset < wanted.end:
                    found = pending.result()
                    offset = found.next_offset
                    if offset < wanted.end:
                        pending = self._fetch(tp, offset, wanted)
                    yield found.batches
            except OffsetOutOfRangeError:
                offset = self._first_kept(tp, offset, wanted, fail_on_data_loss)
            except KafkaError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                if fail_on_data_loss:
                    raise data_loss(f"{tp} was removed, and was to be read from offset {offset}") from error
                return

    def _fetch(self, tp: TopicPartition, offset: int, wanted: Range) -> Future[Fetched]:
        return self._portal.start_task_soon(self.reader.fetch, tp, offset, wanted.leader_epoch)

    def _first_kept(self, tp: TopicPartition, offset: int, wanted: Range, fail_on_data_loss: bool) -> int:
        found = self.call(self.reader.list_offsets, {tp: EARLIEST_TIMESTAMP})
        first = found[tp].offset
        if fail_on_data_loss:
            what = f"{tp} was to be read from offset {offset} to {wanted.end}, and its log begins at offset {first}"
            raise data_loss(what if first > offset else f"{what}: it was truncated")
        return first if first > offset else wanted.end


def kept_reader(settings: Mapping[str, Any]) -> RunningReader:
    """The process's reader for these settings, created at the first call."""
    key = repr(sorted(settings.items()))
    if key not in _kept:
        _kept[key] = RunningReader(settings)
    return _kept[key]
