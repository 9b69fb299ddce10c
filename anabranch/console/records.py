"""Records for people: browsed from an offset or a time, or followed by key across splits and merges."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import anyio

from anabranch import KafkaError, OffsetOutOfRangeError, TopicDescription, TopicPartition
from anabranch.client.consumer.log_reader import LogReader
from anabranch.console.json_text import indented
from anabranch.console.schemas import Registry, UndecodableError
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import Record, RecordBatch

SHOWN_BYTES = 2_000
"""The largest number of bytes of a key or value on a page. The page shows how many bytes are left out."""
SEARCH_S = 5.0
SEARCH_RECORDS = 200_000
"""A search ends after ``SEARCH_S`` or this many records, and shows the offsets that it reached."""
DOWNLOAD_BYTES = 16 * 1024 * 1024
"""The largest number of bytes of keys and values in a download; the file has the records up to there."""
SIDES = ("key or value", "key", "value")
"""Where a text is searched."""
READ_AT_ONCE = 32
"""How many partitions are read at once."""
FORMATS = ("json", "text", "hex")
"""``json``: JSON is indented, everything else is text. The first one is the default."""
BY_SCHEMA = "schema"
"""A further format, when a schema registry is known."""

Ranges: TypeAlias = Mapping[int, tuple[int, int]]
"""The first offset and the end offset, exclusive, by partition."""


class Shown(NamedTuple):
    """A record as shown on a page; times in ms since 1970, lengths in bytes, -1 for null."""

    partition: int
    offset: int
    timestamp: int
    leader_epoch: int
    key: str
    key_length: int
    value: str
    value_length: int
    headers: list[tuple[str, str]]


class FoundRecords(NamedTuple):
    """The result of a search. ``searched``: the records examined; ``is_cut``: the search ended at a limit.

    ``next_offsets``: by partition, the offset for the next page. After a search for the oldest records, the next page
    begins at this offset; after a search for the newest, it ends there. ``is_complete``: the ranges have no newer
    records than the shown ones.
    """

    records: list[Shown]
    next_offsets: dict[int, int]
    searched: int
    is_complete: bool
    is_cut: bool = False


def text_of(data: bytes | None, how: str) -> str:
    """Bytes as text for people, cut to ``SHOWN_BYTES``; bytes that are no text become hex."""
    if data is None:
        return "null"
    cut = data[:SHOWN_BYTES]
    more = f" … {len(data) - len(cut):,} more bytes" if len(data) > len(cut) else ""
    if how == "hex":
        return cut.hex(" ") + more
    if how == "json" and (pretty := indented(data, SHOWN_BYTES)) is not None:
        whole = f" … {len(data):,} bytes in all" if len(pretty) > SHOWN_BYTES else ""
        return _printable(pretty[:SHOWN_BYTES]) + whole
    try:
        text = cut.decode()
    except UnicodeDecodeError as error:
        if not more or error.start < len(cut) - 4:
            return "hex " + cut.hex(" ") + more
        text = cut[: error.start].decode()
    return _printable(text) + more


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\u{ord(c):04x}" for c in text)


class Texts:
    """Makes texts of records in the format ``how``: one of ``FORMATS``, or by the schemas of a registry."""

    def __init__(self, how: str, registry: Registry | None = None) -> None:
        self._how, self._registry = how, registry if how == BY_SCHEMA else None

    async def shown(self, partition: int, batch: RecordBatch, record: Record) -> Shown:
        key, value = record.key, record.value
        return Shown(
            partition,
            record.offset,
            record.timestamp,
            batch.partition_leader_epoch,
            await self._text(key, "text" if self._how == "json" else self._how),
            -1 if key is None else len(key),
            await self._text(value, self._how),
            -1 if value is None else len(value),
            [(str(name), text_of(data, "text")) for name, data in record.headers],
        )

    async def _text(self, data: bytes | None, how: str) -> str:
        if self._registry is None or data is None:
            return text_of(data, how)
        try:
            return text_of((await self._registry.decode(data)).encode(), "text")
        except UndecodableError as error:
            return f"{text_of(data, 'text')}\n({error})" if data[:1] == b"\0" else text_of(data, "json")


class WantedRecords(NamedTuple):
    """The records that are searched: a text in the key, the value or both, and a key. By default every record."""

    contains: bytes = b""
    within: str = SIDES[0]
    key: bytes | None = None

    def matches(self, record: Record) -> bool:
        if self.key is not None and record.key != self.key:
            return False
        in_key = self.within != "value" and self.contains in (record.key or b"")
        return in_key or (self.within != "key" and self.contains in (record.value or b""))


async def browse(
    reader: LogReader,
    topic: TopicDescription,
    ranges: Ranges,
    count: int,
    texts: Texts,
    wanted: WantedRecords = WantedRecords(),  # noqa: B008 (it cannot be changed)
    *,
    newest: bool = False,
) -> FoundRecords:
    """The oldest or the newest ``count`` records in the ranges that are wanted.

    The oldest are chosen from the first ``count`` of each partition. For the newest, the ranges are short: each is read
    to its end. The records of a key are searched in every partition that may have had the key.
    """
    if wanted.key is not None:
        places = set(places_of(wanted.key, topic))
        ranges = {p: range_ for p, range_ in ranges.items() if p in places}
    return await _look(reader, topic.name, ranges, count, texts, wanted.matches, newest)


def places_of(key: bytes, topic: TopicDescription) -> list[int]:
    """The partitions that a key has under each count from the initial count up to the number of existing partitions."""
    key_hash, initial = positive_hash(key), max(1, topic.initial_partition_count)
    most = max((p.partition for p in topic.partitions), default=0) + 1
    if topic.initial_partition_count <= 0 or not topic.ordered_delivery:
        return [p.partition for p in topic.partitions]
    return sorted({place(key_hash, initial, count) for count in range(initial, most + 1)})


async def _look(
    reader: LogReader,
    topic: str,
    ranges: Ranges,
    count: int,
    texts: Texts,
    wanted: Callable[[Record], bool],
    newest: bool,
) -> FoundRecords:
    found: dict[int, list[Shown]] = {p: [] for p in ranges}
    after = {p: start for p, (start, _) in ranges.items()}
    searched, complete = 0, set()
    limiter = anyio.CapacityLimiter(READ_AT_ONCE)

    async def one(partition: int, end: int) -> None:
        async with limiter:
            await read(partition, end)

    async def read(partition: int, end: int) -> None:
        nonlocal searched
        mine = 0
        while mine < count and searched < SEARCH_RECORDS and after[partition] < end:
            try:
                fetched = await reader.fetch(TopicPartition(topic, partition), after[partition])
            except OffsetOutOfRangeError:
                complete.add(partition)
                return
            for batch, is_for_readers in fetched.batches:
                for record in batch.records() if is_for_readers else ():
                    if record.offset < after[partition]:
                        continue
                    if record.offset >= end:
                        complete.add(partition)
                        return
                    if wanted(record):
                        found[partition].append(await texts.shown(partition, batch, record))
                        mine += 1
                    searched += 1
                    after[partition] = record.offset + 1
                    if mine >= count:
                        if after[partition] >= end:
                            complete.add(partition)
                        return
                await anyio.lowlevel.checkpoint()
            after[partition] = max(after[partition], fetched.next_offset)
            if fetched.is_end:
                break
        if after[partition] >= end or (mine < count and searched < SEARCH_RECORDS):
            complete.add(partition)

    with anyio.move_on_after(SEARCH_S):
        try:
            async with anyio.create_task_group() as tasks:
                for partition, (_, end) in ranges.items():
                    tasks.start_soon(one, partition, end)
        except ExceptionGroup as group:
            kafka = [error for error in group.exceptions if isinstance(error, KafkaError)]
            raise kafka[0] if kafka else group.exceptions[0] from group
    is_cut = any(p not in complete and len(found[p]) < count for p in ranges)
    chosen, left_out = choose(found.values(), count, newest=newest)
    if newest:
        after = {p: start if p in complete else end for p, (start, end) in ranges.items()}
        for shown in left_out:
            after[shown.partition] = max(after[shown.partition], shown.offset + 1)
        return FoundRecords(chosen, after, searched, len(complete) == len(ranges), is_cut)
    for shown in left_out:
        after[shown.partition] = min(after[shown.partition], shown.offset)
    return FoundRecords(chosen, after, searched, len(complete) == len(ranges) and not left_out, is_cut)


@dataclass(slots=True)
class Whole:
    """A record with all its bytes, in the form that ``to_json`` prints."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


class Downloaded(NamedTuple):
    """``wanted``: the number of records that were asked for."""

    records: list[Whole]
    wanted: int


async def whole(reader: LogReader, topic: str, shown: Iterable[Shown]) -> Downloaded:
    """The records with these places, in this order.

    Removed records are left out, and all records after ``DOWNLOAD_BYTES`` or ``SEARCH_S``.
    """
    places = [(one.partition, one.offset) for one in shown]
    missing, found, left = set(places), dict[tuple[int, int], Whole](), DOWNLOAD_BYTES
    with anyio.move_on_after(SEARCH_S):
        for place in places:
            if place not in missing:
                continue
            try:
                fetched = await reader.fetch(TopicPartition(topic, place[0]), place[1])
            except OffsetOutOfRangeError:
                continue
            for batch, _ in fetched.batches:
                for record in batch.records():
                    at = (place[0], record.offset)
                    if at in missing and left > 0:
                        missing.discard(at)
                        left -= len(record.key or b"") + len(record.value or b"")
                        headers = [(str(name), data) for name, data in record.headers]
                        epoch = batch.partition_leader_epoch
                        found[at] = Whole(topic, *at, epoch, record.timestamp, record.key, record.value, headers)
            if left <= 0:
                break
    return Downloaded([found[place] for place in places if place in found], len(places))


def choose(found: Iterable[list[Shown]], count: int, *, newest: bool) -> tuple[list[Shown], list[Shown]]:
    """The oldest or newest ``count`` records of some partitions, and the remaining records.

    Records are ordered by time. The records of one partition stay in the order of their offsets.
    """
    if newest:
        merged = [*heapq.merge(*(reversed(one) for one in found), key=lambda shown: shown.timestamp, reverse=True)]
        return merged[:count][::-1], merged[count:]
    merged = [*heapq.merge(*found, key=lambda shown: shown.timestamp)]
    return merged[:count], merged[count:]


def is_number(text: str) -> bool:
    """Whether the text is a whole number that fits a 64-bit integer."""
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 2**63


def parse_partitions(text: str, there: Iterable[int]) -> list[int]:
    """The partitions in a text such as ``3`` or ``0,2,5-8``; all for an empty text. Raises ``ValueError``."""
    known = sorted(there)
    if not text.strip():
        return known
    chosen: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise ValueError(f"{part.strip()!r} is neither a partition nor a range such as 5-8")
        chosen.update(p for p in known if int(first) <= p <= int(last or first))
        if not dash and int(first) not in chosen:
            raise ValueError(f"partition {first} does not exist")
    return sorted(chosen)
