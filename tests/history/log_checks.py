"""Checks of acknowledged records, and of the replicas' logs at the end of the run.

They are for topics without compaction, with unique values. A partition with acknowledged records and without a log in
the history is a violation too, because a check without data proves nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from anabranch.protocol.batch_layout import MAX_SEQUENCE
from anabranch.protocol.types import TopicPartition
from tests.history.events import UNKNOWN, Acked, NotWritten, Polled, StoredBatch, WatermarkSeen
from tests.history.index import History, Log, Violation


def lost_acknowledged(history: History) -> Iterator[Violation]:
    """An acknowledged record is on every in-sync replica, unless it is below the log start.

    If the history has the moves of log starts, the record must have existed until the move past its offset.
    """
    missing: set[TopicPartition] = set()
    anywhere: dict[TopicPartition, set[str | None]] = {}
    for ack in history.of(Acked):
        logs = history.in_sync(ack.tp)
        if ack.offset == UNKNOWN:
            if ack.tp not in anywhere:
                anywhere[ack.tp] = {value for log in logs for value in log.values}
            if ack.value not in anywhere[ack.tp]:
                yield Violation("lost_acknowledged", str(ack.tp), f"{ack.value} is gone", (ack,))
            continue
        if not logs and ack.tp not in missing:
            missing.add(ack.tp)
            yield Violation("lost_acknowledged", str(ack.tp), "no in-sync replica is left", (ack,))
        for log in logs:
            if ack.offset >= history.known_from(log) and log.value_at(ack.offset) is None:
                where = f"{ack.tp} offset {ack.offset} on broker {log.replica.broker}"
                yield Violation("lost_acknowledged", where, f"{ack.value} is gone", (ack, log.replica))


def inconsistent_offsets(history: History) -> Iterator[Violation]:
    """An offset has the same record wherever the history shows it: sent, acknowledged, delivered and stored."""
    for again in history.sent_twice:
        yield Violation(
            "inconsistent_offsets", again.producer, "a value was sent twice: values must be unique", (again,)
        )
    known: dict[TopicPartition, dict[int, Acked | Polled]] = {}
    for event in history.events:
        if not isinstance(event, Acked | Polled) or event.offset == UNKNOWN:
            continue
        before = known.setdefault(event.tp, {}).setdefault(event.offset, event)
        if before.value != event.value:
            what = f"it has {before.value} and {event.value}"
            yield Violation("inconsistent_offsets", f"{event.tp} offset {event.offset}", what, (before, event))
        if event.value not in history.sent:
            yield Violation("inconsistent_offsets", str(event.tp), f"no producer sent {event.value}", (event,))
    for tp in history.logs:
        for log in history.different_logs(tp):
            yield from _against_log(history, log, known.get(tp, {}))


def _against_log(history: History, log: Log, known: dict[int, Acked | Polled]) -> Iterator[Violation]:
    where = f"{log.replica.tp} on broker {log.replica.broker}"
    for offset, event in known.items():
        if offset < history.known_from(log):
            continue
        stored = log.value_at(offset)
        if stored is None and isinstance(event, Polled):
            yield Violation(
                "inconsistent_offsets",
                where,
                f"a record was read at {offset}, but none is stored",
                (event, log.replica),
            )
        elif stored is not None and stored != event.value:
            yield Violation("inconsistent_offsets", where, f"{stored} is stored at {offset}", (event,))
    for offset, stored in enumerate(log.values, log.first):
        if stored is not None and stored not in history.sent:
            yield Violation("inconsistent_offsets", where, f"no producer sent {stored}, which is stored at {offset}")


def refused_but_written(history: History) -> Iterator[Violation]:
    """A refused record is in no log. A timeout is no refusal."""
    refused = {event.value: event for event in history.of(NotWritten) if event.outcome == "refused"}
    if not refused:
        return
    for tp in history.logs:
        for log in history.different_logs(tp):
            for offset, value in enumerate(log.values, log.first):
                if value in refused:
                    where = f"{tp} offset {offset} on broker {log.replica.broker}"
                    yield Violation("refused_but_written", where, f"{value} was refused", (refused[value],))


def duplicates(history: History) -> Iterator[Violation]:
    """A record of an idempotent producer is stored once, and sequences ascend by one in each partition (KIP-98)."""
    seen: dict[str, tuple[TopicPartition, int]] = {}
    for tp in history.logs:
        for number, log in enumerate(history.different_logs(tp)):
            if number:
                seen = {value: place for value, place in seen.items() if place[0] != tp}
            for offset, value in enumerate(log.values, log.first):
                if value is None or value not in history.sent or not history.sent[value].idempotent:
                    continue
                before = seen.setdefault(value, (tp, offset))
                if before != (tp, offset):
                    where = f"{tp} offset {offset} on broker {log.replica.broker}"
                    what = f"{value} is also at {before[0]} offset {before[1]}"
                    yield Violation("duplicates", where, what, (history.sent[value],))
            yield from _sequences(log)


def _sequences(log: Log) -> Iterator[Violation]:
    expected: dict[tuple[int, int], tuple[int, StoredBatch]] = {}
    for batch in log.batches:
        if batch.producer_id < 0 or batch.base_sequence < 0:
            continue
        producer = batch.producer_id, batch.producer_epoch
        if producer in expected and expected[producer][0] != batch.base_sequence:
            where = f"{batch.tp} offset {batch.base_offset} on broker {batch.broker}"
            what = f"sequence {batch.base_sequence} of producer {producer} follows {expected[producer][0] - 1}"
            yield Violation("duplicates", where, what, (expected[producer][1], batch))
        expected[producer] = (batch.base_sequence + len(batch.values)) % (MAX_SEQUENCE + 1), batch


def key_order(history: History) -> Iterator[Violation]:
    """In each partition, records of one idempotent producer and one key are in the order of sending."""
    for tp in history.logs:
        for log in history.different_logs(tp):
            last: dict[tuple[str, str], tuple[int, str]] = {}
            for offset, value in enumerate(log.values, log.first):
                sent = history.sent.get(value) if value is not None else None
                if sent is None or value is None or not sent.idempotent:
                    continue
                order, before = history.order[value], last.get((sent.producer, sent.key))
                if before is not None and before[0] > order:
                    where = f"{tp} offset {offset} on broker {log.replica.broker}"
                    what = f"{value} has a higher offset than {before[1]}, which was sent later"
                    yield Violation("key_order", where, what, (history.sent[before[1]], sent))
                last[sent.producer, sent.key] = order, value


def leader_epochs(history: History) -> Iterator[Violation]:
    """In a log, offsets ascend and leader epochs never descend (KIP-101)."""
    for tp, logs in history.logs.items():
        for broker, log in logs.items():
            for before, batch in pairwise(log.batches):
                where = f"{tp} offset {batch.base_offset} on broker {broker}"
                if batch.base_offset < before.next_offset:
                    yield Violation(
                        "leader_epochs",
                        where,
                        f"the batch before it ends at offset {before.next_offset - 1}",
                        (before, batch),
                    )
                if batch.leader_epoch < before.leader_epoch:
                    what = f"leader epoch {batch.leader_epoch} follows leader epoch {before.leader_epoch}"
                    yield Violation("leader_epochs", where, what, (before, batch))


def replicas_identical(history: History) -> Iterator[Violation]:
    """Below the high watermark, every in-sync replica has the same bytes, batch for batch."""
    for tp in history.logs:
        logs = history.in_sync(tp)
        end = history.high_watermark(tp)
        start = max((log.start for log in logs), default=0)
        held = [
            [batch for batch in log.batches if batch.next_offset > start and batch.base_offset < end] for log in logs
        ]
        for log, batches in zip(logs, held, strict=True):
            broker = log.replica.broker
            if log.replica.log_end_offset < end:
                what = f"ends at {log.replica.log_end_offset}, the high watermark is {end}"
                yield Violation("replicas_identical", f"{tp} on broker {broker}", what, (log.replica,))
            if difference := _first_difference(held[0], batches):
                where = f"{tp} on brokers {logs[0].replica.broker} and {broker}"
                what = f"the batches at offset {difference[0].base_offset} differ"
                yield Violation("replicas_identical", where, what, difference)


def _first_difference(one: list[StoredBatch], other: list[StoredBatch]) -> tuple[StoredBatch, ...]:
    for left, right in zip(one, other):
        if (left.base_offset, len(left.values), left.digest) != (right.base_offset, len(right.values), right.digest):
            return left, right
    return tuple((one if len(one) > len(other) else other)[min(len(one), len(other)) :][:1])


def watermarks(history: History) -> Iterator[Violation]:
    """A leader's exposed high watermark never goes back.

    One leader's high watermark (same partition, broker and leader epoch) never descends. A new leader begins with the
    high watermark that it had as a follower. Its predecessor may have exposed a higher one. So a Fetch response of the
    new leader may show a lower high watermark. ListOffsets waits until the leader has caught up (KIP-207,
    OFFSET_NOT_AVAILABLE), so listed offsets never go back from one leader epoch to the next. A replaced leader that
    does not know of its replacement responds with its old state and its older epoch. It refuses clients that know the
    newer epoch. Exposed records are committed: no in-sync log may end below them. Responses are compared only when one
    request began after the other's response.
    """
    seen = sorted(history.of(WatermarkSeen), key=lambda event: event.asked_ms)
    answered = sorted(seen, key=lambda event: event.at_ms)
    of_leader: dict[tuple[TopicPartition, int, int], WatermarkSeen] = {}
    listed: dict[TopicPartition, dict[int, WatermarkSeen]] = {}
    highest: dict[TopicPartition, WatermarkSeen] = {}
    done = 0
    for event in seen:
        while done < len(answered) and answered[done].at_ms <= event.asked_ms and answered[done] is not event:
            past = answered[done]
            _raise_to(of_leader, (past.tp, past.broker, past.leader_epoch), past)
            _raise_to(highest, past.tp, past)
            if past.via == "list":
                _raise_to(listed.setdefault(past.tp, {}), past.leader_epoch, past)
            done += 1
        before = of_leader.get((event.tp, event.broker, event.leader_epoch))
        if before is not None and before.offset > event.offset:
            what = f"the high watermark of broker {event.broker} went back from {before.offset} to {event.offset}"
            yield Violation("watermarks", str(event.tp), what, (before, event))
        earlier = listed.get(event.tp, {}).items() if event.via == "list" else ()
        before = max((e for epoch, e in earlier if epoch <= event.leader_epoch), key=lambda e: e.offset, default=None)
        if before is not None and before.offset > event.offset:
            what = f"the listed end offset went back from {before.offset} to {event.offset}"
            yield Violation("watermarks", str(event.tp), what, (before, event))
    for past in answered[done:]:
        _raise_to(highest, past.tp, past)
    for tp, event in highest.items():
        for log in history.in_sync(tp):
            if log.replica.log_end_offset < event.offset:
                where = f"{tp} on broker {log.replica.broker}"
                what = (
                    f"the log ends at {log.replica.log_end_offset}, and a client got the high watermark {event.offset}"
                )
                yield Violation("watermarks", where, what, (event, log.replica))


def _raise_to(highest: dict, key: object, event: WatermarkSeen) -> None:
    if key not in highest or highest[key].offset < event.offset:
        highest[key] = event
