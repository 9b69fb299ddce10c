"""Cases that the checks must not report as violations, and similar cases that they must report."""

from __future__ import annotations

from anabranch.protocol.batch_layout import MAX_SEQUENCE
from anabranch.protocol.types import TopicPartition
from tests.history.checks import check_history
from tests.history.events import (
    UNKNOWN,
    Acked,
    Assigned,
    Committed,
    Drained,
    Event,
    NotWritten,
    OffsetFetched,
    Outcome,
    Polled,
    Positioned,
    Replica,
    Revoked,
    Sent,
    StoredBatch,
    WatermarkSeen,
)

TP = TopicPartition("t", 0)


def broken(events: list[Event]) -> list[str]:
    """The checks that found a violation, each once."""
    return list(dict.fromkeys(violation.check for violation in check_history(events)))


def log(
    values: list[str | None], *, broker: int = 1, start: int = 0, base: int = 0, in_sync: bool = True
) -> list[Event]:
    """A replica whose log has one batch per record."""
    end = base + len(values)
    batches = [StoredBatch(9.0, broker, TP, base + at, 0, f"{value}", [value]) for at, value in enumerate(values)]
    return [Replica(9.0, broker, TP, start, end, end, in_sync), *batches]


def sent(*values: str, key: str = "k", idempotent: bool = True) -> list[Event]:
    return [Sent(0.0, "p", "t", key, value, idempotent=idempotent) for value in values]


def polled(*offsets: int, member: str = "one") -> list[Event]:
    return [Polled(5.0, "g", member, TP, offset, f"v{offset}") for offset in offsets]


def committed(offset: int, at_ms: float, outcome: Outcome = "ok", generation: int = 1) -> Committed:
    return Committed(at_ms, "g", "one", generation, TP, offset, outcome, at_ms - 0.5)


V = ["v0", "v1", "v2", "v3"]
ONE = Assigned(1.0, "g", "one", 1, [TP])
TWO = Assigned(4.0, "g", "two", 2, [TP])


def test_a_record_of_unknown_outcome_may_be_in_the_log_or_not() -> None:
    events = [*sent("v0", "v1"), NotWritten(1.0, "p", "v0", "unknown"), NotWritten(1.0, "p", "v1", "unknown")]
    assert broken([*events, *log(["v0"])]) == []


def test_records_below_the_log_start_may_be_gone() -> None:
    events: list[Event] = [*sent(*V), *(Acked(1.0, "p", TP, at, value) for at, value in enumerate(V))]
    assert broken([*events, *log(V[2:], start=2, base=2)]) == []
    assert broken([*events, *log(V[2:], start=1, base=2)]) == ["lost_acknowledged"]


def test_a_replica_out_of_sync_need_not_hold_acknowledged_records() -> None:
    events: list[Event] = [*sent("v0"), Acked(1.0, "p", TP, 0, "v0"), *log(["v0"])]
    assert broken([*events, *log([], broker=2, in_sync=False)]) == []
    assert broken([*events, *log([], broker=2)]) == ["lost_acknowledged", "replicas_identical"]


def test_a_record_acknowledged_without_an_offset_must_be_at_some_offset_of_the_log() -> None:
    events: list[Event] = [*sent("v0", "v1"), Acked(1.0, "p", TP, UNKNOWN, "v1")]
    assert broken([*events, *log(["v0", "v1"])]) == []
    assert broken([*events, *log(["v0"])]) == ["lost_acknowledged"]


def test_only_an_idempotent_producer_promises_one_copy_in_order() -> None:
    stored = log(["v1", "v0", "v1"])
    assert broken([*sent("v0", "v1", idempotent=False), *stored]) == []
    assert broken([*sent("v0", "v1"), *stored]) == ["duplicates", "key_order"]


def test_records_of_different_keys_may_be_in_any_order() -> None:
    assert broken([*sent("v0", key="a"), *sent("v1", key="b"), *log(["v1", "v0"])]) == []


def test_sequences_wrap_and_start_again_with_a_producer_epoch() -> None:
    def batches(*places: tuple[int, int]) -> list[Event]:
        stored = [
            StoredBatch(9.0, 1, TP, at, 0, "", [f"v{at}"], 7, epoch, sequence)
            for at, (epoch, sequence) in enumerate(places)
        ]
        return [*sent(*V), Replica(9.0, 1, TP, 0, len(places), len(places)), *stored]

    assert broken(batches((0, MAX_SEQUENCE), (0, 0), (1, 0), (1, 1))) == []
    assert broken(batches((0, 0), (3, 1), (3, 2))) == [], "sequence 0 of epoch 3 was the first batch again"
    assert broken(batches((0, 4), (0, 6))) == ["duplicates"]


def test_gaps_of_control_records_and_compaction_are_not_skipped_records() -> None:
    events = [*sent("v0", "v3"), ONE, *polled(0, 3), Drained(6.0, "g", TP, 4)]
    assert broken([*events, *log(["v0", None, None, "v3"])]) == []
    assert broken([*sent("v1", key="other"), *events, *log(["v0", "v1", None, "v3"])]) == ["unseen", "polls"]


def test_a_new_owner_delivers_from_the_committed_offset_on() -> None:
    start = [*sent(*V), ONE, *polled(0, 1, 2), committed(2, 2.0), Revoked(3.0, "g", "one", 1, [TP]), TWO]
    assert broken([*start, *polled(2, 3, member="two"), *log(V)]) == []
    assert broken([*start, *polled(1, 2, 3, member="two"), *log(V)]) == ["polls"]
    assert broken([*start, *polled(3, member="two"), *log(V)]) == ["polls"]


def test_a_commit_whose_response_was_lost_may_count_or_not() -> None:
    start = [*sent(*V), ONE, *polled(0, 1, 2), committed(1, 2.0), committed(3, 3.0, "unknown"), TWO]
    for first in (1, 3):
        assert broken([*start, *polled(*range(first, 4), member="two"), *log(V)]) == []
    assert broken([*start, *polled(*range(4), member="two"), *log(V)]) == ["polls"]


def test_a_commit_of_unknown_outcome_may_overwrite_a_later_commit_of_its_own_generation_only() -> None:
    for generation, expected in ((1, []), (0, ["polls"])):
        doubtful = committed(1, 2.0, "unknown", generation)
        start = [*sent(*V), ONE, *polled(0, 1, 2), doubtful, committed(3, 3.0), TWO]
        assert broken([*start, *polled(1, 2, 3, member="two"), *log(V)]) == expected


def test_a_commit_answered_only_after_the_new_owner_started_counts() -> None:
    late = Committed(7.0, "g", "one", 1, TP, 2, "ok", 2.5)
    assert broken([*sent(*V), ONE, *polled(0, 1), TWO, *polled(2, 3, member="two"), late, *log(V)]) == []


def test_a_seek_moves_a_member_anywhere() -> None:
    events = [*sent(*V), ONE, *polled(0, 1), Positioned(3.0, "g", "one", TP, 3), *polled(3)]
    assert broken([*events, *log(V)]) == []


def test_commits_that_overlap_have_no_order() -> None:
    slow = Committed(9.0, "g", "one", 1, TP, 1, "ok", 1.0)
    quick = Committed(3.0, "g", "one", 1, TP, 2, "ok", 2.0)
    assert broken([quick, slow]) == []
    assert broken([quick, Committed(9.0, "g", "one", 1, TP, 1, "ok", 4.0)]) == ["commits"]


def test_a_fetched_offset_includes_every_commit_answered_before_the_request() -> None:
    def fetched(offset: int, asked_ms: float) -> OffsetFetched:
        return OffsetFetched(9.0, "g", TP, offset, asked_ms)

    assert broken([committed(2, 3.0), fetched(-1, 2.9)]) == []
    assert broken([committed(2, 3.0), fetched(-1, 3.1)]) == ["commits"]
    assert broken([committed(1, 2.0, "unknown"), committed(2, 3.0), fetched(1, 3.1)]) == []


def test_only_a_fetch_may_see_a_lower_high_watermark_from_a_new_leader() -> None:
    def seen(at_ms: float, broker: int, epoch: int, offset: int, via: str) -> Event:
        return WatermarkSeen(at_ms, TP, broker, epoch, offset, at_ms - 0.5, via)  # type: ignore[arg-type]

    assert broken([seen(1, 1, 0, 5, "list"), seen(2, 2, 1, 4, "fetch")]) == []
    assert broken([seen(1, 1, 0, 5, "list"), seen(2, 2, 1, 4, "list")]) == ["watermarks"]
    assert broken([seen(1, 2, 1, 5, "list"), seen(2, 1, 0, 4, "list")]) == [], (
        "the deposed leader does not know of its successor"
    )
    assert broken([seen(1, 1, 0, 5, "fetch"), seen(2, 1, 0, 4, "fetch")]) == ["watermarks"]
    overlapping = WatermarkSeen(2.0, TP, 1, 0, 4, 0.1, "list")
    assert broken([seen(1, 1, 0, 5, "list"), overlapping]) == []


def test_above_the_high_watermark_replicas_may_differ() -> None:
    def replica(broker: int, values: list[str | None], high_watermark: int) -> list[Event]:
        first, *rest = log(values, broker=broker)
        assert isinstance(first, Replica)
        return [Replica(9.0, broker, TP, 0, len(values), high_watermark), *rest]

    for high_watermark, expected in ((1, []), (2, ["replicas_identical"])):
        one, other = replica(1, ["v0", "v1"], 0), replica(2, ["v0", "v2"], high_watermark)
        assert broken([*sent(*V), *one, *other]) == expected


def test_an_offset_fetched_from_a_deposed_coordinator_is_not_checked() -> None:
    for current, expected in ((False, []), (True, ["commits"])):
        assert broken([committed(2, 3.0), OffsetFetched(9.0, "g", TP, 1, 4.0, current)]) == expected
