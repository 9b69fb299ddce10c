"""Checks of resizes in the logs: the records' partitions, the layouts, closed partitions, and incarnations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final

from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.types import TopicPartition
from tests.history.events import UNKNOWN, Committed, Created, LayoutAsked, LayoutSet, OffsetFetched, StoredBatch
from tests.history.index import History, Violation

NOT_HERE: Final = frozenset(
    code.name
    for code in (
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
"""The errors of a broker that did not check the layout."""


def routing(history: History) -> Iterator[Violation]:
    """Each record is in its partition by linear hashing of its key, in the layout of the record's leader epoch."""
    hashes: dict[str, int] = {}
    for tp in history.logs:
        if not history.has_layouts(tp):
            continue
        for log in history.different_logs(tp):
            for batch in log.batches:
                yield from _batch_routing(history, batch, hashes)


def _batch_routing(history: History, batch: StoredBatch, hashes: dict[str, int]) -> Iterator[Violation]:
    layout = history.layout_at(batch.tp, batch.leader_epoch)
    where = f"{batch.tp} offset {batch.base_offset} on broker {batch.broker}"
    if layout is None:
        yield Violation("routing", where, f"no layout is known for leader epoch {batch.leader_epoch}", (batch,))
        return
    for value in batch.values:
        sent = history.sent.get(value) if value is not None else None
        if sent is None:
            continue
        if sent.key not in hashes:
            hashes[sent.key] = positive_hash(sent.key.encode())
        partition = place(hashes[sent.key], layout.initial, layout.undeleted)
        if partition != batch.tp.partition:
            what = f"{value} belongs in partition {partition} of {layout.undeleted} partitions"
            yield Violation("routing", where, what, (sent, layout, batch))


def closed(history: History) -> Iterator[Violation]:
    """If a partition is closed in the layout of a leader epoch, the partition has no data record of that epoch."""
    for tp, logs in history.logs.items():
        for broker, log in logs.items():
            where = f"{tp} on broker {broker}"
            for batch in log.batches:
                layout = history.layout_at(tp, batch.leader_epoch)
                if layout is not None and layout.undeleted <= tp.partition and any(batch.values):
                    what = f"the partition is closed in leader epoch {batch.leader_epoch} of offset {batch.base_offset}"
                    yield Violation("closed", where, what, (layout, batch))


def layouts(history: History) -> Iterator[Violation]:
    """A leader epoch has one layout, and a request with another layout gets INVALID_PARTITION_METADATA."""
    known: dict[TopicPartition, set[tuple[int, int]]] = {}
    of_epoch: dict[tuple[TopicPartition, int], LayoutSet] = {}
    for layout in history.of(LayoutSet):
        before = of_epoch.setdefault((layout.tp, layout.leader_epoch), layout)
        if _layout(before) != _layout(layout):
            what = f"leader epoch {layout.leader_epoch} has two layouts"
            yield Violation("layouts", str(layout.tp), what, (before, layout))
        known.setdefault(layout.tp, set()).add(_layout(layout))
    stored = _epochs_of_values(history) if history.of(LayoutAsked) else {}
    for asked in history.of(LayoutAsked):
        named, where = (asked.undeleted, asked.layout_version), str(asked.tp)
        if asked.error == ErrorCode.NONE.name:
            batch = stored.get(asked.value)
            taken_by = history.layout_at(asked.tp, batch.leader_epoch) if batch is not None else None
            if batch is not None and (taken_by is None or _layout(taken_by) != named):
                yield Violation(
                    "layouts", where, "a record was accepted by another layout than it named", (asked, batch)
                )
        if named not in known.get(asked.tp, set()):
            refused = asked.error in ("", ErrorCode.INVALID_PARTITION_METADATA.name, *NOT_HERE)
            if not refused:
                yield Violation(
                    "layouts", where, f"the response to a layout that never existed is {asked.error}", (asked,)
                )


def _layout(event: LayoutSet) -> tuple[int, int]:
    return event.undeleted, event.layout_version


def _epochs_of_values(history: History) -> dict[str, StoredBatch]:
    return {
        value: batch
        for tp in history.logs
        for log in history.different_logs(tp)
        for batch in log.batches
        for value in batch.values
        if value is not None
    }


def incarnations(history: History) -> Iterator[Violation]:
    """A partition that was removed and created again shares nothing with its predecessor.

    Its leader epochs are above the predecessor's, so a late request of an old leader is fenced. Its offsets are above
    the predecessor's too, so a consumer with an old position skips no record. No record is in two incarnations. A group
    that committed in one incarnation has read nothing of the next, and begins at the first offset of the next.
    """
    by_place: dict[TopicPartition, list[TopicPartition]] = {}
    for tp in history.tps:
        topic, mark, incarnation = tp.topic.rpartition("#")
        if mark and incarnation.isdigit():
            by_place.setdefault(TopicPartition(topic, tp.partition), []).append(tp)
    for names in by_place.values():
        names.sort(key=lambda tp: int(tp.topic.rpartition("#")[2]))
        for older, newer in pairwise(names):
            yield from _epochs_apart(history, older, newer)
            yield from _offsets_apart(history, older, newer)
    yield from _values_apart(history, [tp for names in by_place.values() for tp in names])
    if by_place:
        yield from _commits_apart(history, by_place.values())


def _epochs_apart(history: History, older: TopicPartition, newer: TopicPartition) -> Iterator[Violation]:
    last, first = history.layout_epochs(older)[-1:], history.layout_epochs(newer)[:1]
    if last and first and first[0] <= last[0]:
        what = f"begins with leader epoch {first[0]}; its predecessor had {last[0]}"
        yield Violation("incarnations", str(newer), what)


def _values_apart(history: History, names: list[TopicPartition]) -> Iterator[Violation]:
    seen: dict[str, TopicPartition] = {}
    for tp in names:
        for log in history.different_logs(tp):
            for value in log.values:
                if value is not None and seen.setdefault(value, tp) != tp:
                    yield Violation("incarnations", str(tp), f"{value} is also in {seen[value]}")


def _end_of(history: History, tp: TopicPartition) -> int:
    """Return the highest known end of an incarnation's logs."""
    return max((log.replica.log_end_offset for log in history.different_logs(tp)), default=0)


def _offsets_apart(history: History, older: TopicPartition, newer: TopicPartition) -> Iterator[Violation]:
    end = _end_of(history, older)
    for log in history.different_logs(newer):
        if log.batches and log.batches[0].base_offset < end:
            what = f"begins with offset {log.batches[0].base_offset}; its predecessor ended at {end}"
            yield Violation("incarnations", str(newer), what)


def _commits_apart(history: History, places: Iterable[list[TopicPartition]]) -> Iterator[Violation]:
    begins: dict[TopicPartition, int] = {}
    later: dict[TopicPartition, list[TopicPartition]] = {}
    for names in places:
        later.update((tp, names[number:]) for number, tp in enumerate(names, 1))
        ends = list(accumulate((_end_of(history, tp) for tp in names), max, initial=0))
        begins.update(zip(names, ends))
    highest: dict[tuple[str, TopicPartition], int] = {}
    for event in history.of(Committed):
        if event.outcome != "refused":
            place = event.group, event.tp
            highest[place] = max(highest.get(place, 0), event.offset)
    created = {event.tp: event.at_ms for event in history.of(Created)}
    for event in history.of(OffsetFetched):
        if event.tp not in begins:
            continue
        answered_by = [event.tp]
        if event.incarnation == UNKNOWN:  # the response may be of a later incarnation than the request
            answered_by += [tp for tp in later[event.tp] if created.get(tp, event.at_ms) <= event.at_ms]
        bound = max(max(begins[tp], highest.get((event.group, tp), 0)) for tp in answered_by)
        if event.offset > bound:
            what = f"{event.offset} is fetched, which no member committed in this incarnation"
            yield Violation("incarnations", f"{event.tp} in {event.group}", what, (event,))
