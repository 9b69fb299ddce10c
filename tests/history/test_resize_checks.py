"""Cases that the checks of resizes must not report as violations, and similar cases that they must report."""

from __future__ import annotations

import pytest

from anabranch.protocol.types import TopicPartition
from tests.history.checks import check_history
from tests.history.events import (
    ARCHIVE,
    EXPIRED,
    Acked,
    Assigned,
    Committed,
    Created,
    Event,
    Expired,
    Fault,
    KeysFlushed,
    KeysLoaded,
    OffsetFetched,
    OrderedGroup,
    Polled,
    Positioned,
    Removed,
    Replica,
    Revoked,
    Sent,
    SessionExtended,
    StoredBatch,
)
from tests.history.key_states import KeyStates, NotLoadedError

PARENT, CHILD = TopicPartition("t", 0), TopicPartition("t", 1)
SENT = [Sent(0.0, "p", "t", "k", value) for value in ("a", "b")]


def broken(events: list[Event]) -> list[str]:
    """The checks that found a violation, each once."""
    return list(dict.fromkeys(violation.check for violation in check_history(events)))


def stored(tp: TopicPartition, *values: str, broker: int = 1, start: int = 0, incarnation: int = -1) -> list[Event]:
    end = start + len(values)
    return [
        Replica(9.0, broker, tp, start, end, end, incarnation=incarnation),
        *(
            StoredBatch(9.0, broker, tp, at, 0, value, [value], incarnation=incarnation)
            for at, value in enumerate(values, start)
        ),
    ]


def assigned(member: str, generation: int, *partitions: TopicPartition) -> Assigned:
    return Assigned(1.0, "g", member, generation, list(partitions))


def polled(member: str, generation: int, tp: TopicPartition, value: str, offset: int = 0) -> Polled:
    return Polled(2.0, "g", member, tp, offset, value, generation)


def flushed(member: str, tp: TopicPartition) -> KeysFlushed:
    return KeysFlushed(3.0, "g", member, 1, [tp])


def loaded(member: str, tp: TopicPartition) -> KeysLoaded:
    return KeysLoaded(4.0, "g", member, 1, [tp])


BEGIN: list[Event] = [*SENT, OrderedGroup(0.0, "g"), *stored(PARENT, "a"), *stored(CHILD, "b")]
OWNERS: list[Event] = [assigned("one", 1, PARENT), assigned("two", 1, CHILD)]
A, B = polled("one", 1, PARENT, "a"), polled("two", 1, CHILD, "b")
FLUSH, LOAD = flushed("one", PARENT), loaded("two", CHILD)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([A, FLUSH, LOAD, B], []),
        ([A, LOAD, B], ["promise"]),
        ([A, FLUSH, B], ["promise"]),
        ([A, LOAD, FLUSH, B], ["promise"]),
        ([B], ["promise"]),
        ([FLUSH, LOAD, B, A], ["promise"]),
    ],
    ids=["flush, load", "no flush", "no load", "load before flush", "no parent", "child before parent"],
)
def test_a_parents_records_are_flushed_and_loaded_before_a_childs_record(
    events: list[Event], expected: list[str]
) -> None:
    assert broken([*BEGIN, *OWNERS, *events]) == expected


def test_only_the_order_of_acknowledgements_counts_for_a_producer_that_names_no_layouts() -> None:
    sent = [Sent(0.0, "p", "t", "k", value, names_layouts=False) for value in ("a", "b")]
    first, second = Acked(1.0, "p", PARENT, 0, "a"), Acked(1.0, "p", CHILD, 0, "b")
    rest = [OrderedGroup(0.0, "g"), *stored(PARENT, "a"), *stored(CHILD, "b"), *OWNERS]
    for delivered in ([B, A], [B], [A, LOAD, B]):
        assert broken([*sent, second, first, *rest, *delivered]) == [], "the parent's record was written last"
        assert broken([*sent, first, second, *rest, *delivered]) == ["promise"]
        assert broken([*SENT, second, first, *rest, *delivered]) == ["promise"], "a producer that names layouts"


def test_a_member_that_owns_parent_and_child_still_flushes_and_loads() -> None:
    own = [*BEGIN, assigned("one", 1, PARENT, CHILD), A]
    last = polled("one", 1, CHILD, "b")
    assert broken([*own, flushed("one", PARENT), loaded("one", CHILD), last]) == []
    assert broken([*own, last]) == ["promise"]


def test_a_revoked_partition_counts_as_flushed_and_an_assigned_one_as_loaded() -> None:
    revoked = Revoked(3.0, "g", "one", 1, [PARENT])
    later = [assigned("two", 2, PARENT, CHILD), polled("two", 2, CHILD, "b")]
    assert broken([*BEGIN, assigned("one", 1, PARENT), A, revoked, *later]) == []
    lost = Revoked(3.0, "g", "one", 1, [PARENT], lost=True)
    assert broken([*BEGIN, assigned("one", 1, PARENT), A, lost, *later]) == [], "another member took it over"
    nobody = [assigned("two", 2, CHILD), polled("two", 2, CHILD, "b")]
    assert broken([*BEGIN, assigned("one", 1, PARENT), A, *nobody]) == ["promise"]
    assert broken([*BEGIN, assigned("one", 1, PARENT), A, lost, *nobody]) == ["promise"], "no member took it over"


def test_an_evicted_member_may_still_deliver_the_records_it_had() -> None:
    """The member was paused and does not know of its eviction yet. Only fencing at the member's sink can stop it."""
    start = [*BEGIN, assigned("one", 1, PARENT), assigned("two", 2, PARENT, CHILD)]
    taken = [polled("two", 2, PARENT, "a"), flushed("two", PARENT), loaded("two", CHILD), polled("two", 2, CHILD, "b")]
    assert broken([*start, *taken, A]) == []
    assert broken([*start, *taken, polled("two", 2, PARENT, "a")]) == ["polls", "promise"]


def test_an_evicted_member_still_flushes_its_own_state_before_it_continues() -> None:
    """Other members flushed and loaded the same records, but the member's own state in memory is not flushed."""
    start = [*BEGIN, assigned("one", 1, PARENT, CHILD), A, assigned("two", 2, PARENT, CHILD)]
    taken = [polled("two", 2, PARENT, "a"), flushed("two", PARENT), loaded("two", CHILD)]
    goes_on = [loaded("one", CHILD), polled("one", 1, CHILD, "b")]
    assert broken([*start, *taken, *goes_on]) == ["promise"]
    assert broken([*start, *taken, flushed("one", PARENT), *goes_on]) == []
    lost = Revoked(3.0, "g", "one", 1, [PARENT, CHILD], lost=True)
    assert broken([*start, *taken, lost, assigned("one", 3, CHILD), polled("one", 3, CHILD, "b")]) == []


def test_a_member_that_seeks_back_is_waited_for_again() -> None:
    sent = [*SENT, Sent(0.0, "p", "t", "k", "c")]
    start = [*sent, OrderedGroup(0.0, "g"), *stored(PARENT, "a"), *stored(CHILD, "b", "c"), *OWNERS, A, FLUSH, LOAD, B]
    back, last = Positioned(4.0, "g", "one", PARENT, 0), polled("two", 1, CHILD, "c", 1)
    assert broken([*start, back, A, last]) == ["promise"]
    assert broken([*start, back, A, LOAD, FLUSH, last]) == ["promise"]
    assert broken([*start, back, A, FLUSH, LOAD, last]) == []
    assert broken([*start, back, last, A]) == []
    assert broken([*start, A, last]) == ["polls", "promise"], "without a seek a member must not go back"


def test_a_member_that_seeks_back_may_commit_a_lower_offset() -> None:
    first, second = (Committed(at, "g", "one", 1, PARENT, offset, "ok", at) for at, offset in ((3.0, 1), (5.0, 0)))
    start = [*BEGIN, *OWNERS, A, first]
    assert broken([*start, second]) == ["commits"]
    assert broken([*start, Positioned(4.0, "g", "one", PARENT, 0), second]) == []


def test_no_member_waits_for_an_expired_record() -> None:
    expired = [*SENT, OrderedGroup(0.0, "g"), *stored(PARENT, start=1), *stored(CHILD, "b")]
    assert broken([*expired, *OWNERS, LOAD, B]) == []


def test_a_record_may_be_missing_only_after_it_expired() -> None:
    gone = StoredBatch(2.0, EXPIRED, PARENT, 0, 0, "a", ["a"])
    begin = [*SENT, OrderedGroup(0.0, "g"), *stored(PARENT, start=1), *stored(CHILD, "b"), *OWNERS]
    start = Expired(2.0, 1, PARENT, 1)
    assert broken([*begin, gone, start, LOAD, B]) == []
    assert broken([*begin, LOAD, B, gone, start]) == ["promise"]
    acked = Acked(1.0, "p", PARENT, 0, "a")
    assert broken([*begin, acked, gone, start, LOAD, B]) == []
    assert broken([*begin, acked, start, LOAD, B]) == ["lost_acknowledged"], (
        "no stored batch shows that it existed before it expired"
    )


def test_a_delivered_record_is_flushed_even_if_it_expired() -> None:
    begin = [*SENT, OrderedGroup(0.0, "g"), *stored(PARENT, start=1), *stored(CHILD, "b"), *OWNERS, A]
    start = [StoredBatch(2.0, EXPIRED, PARENT, 0, 0, "a", ["a"]), Expired(2.0, 1, PARENT, 1)]
    assert broken([*begin, *start, LOAD, B]) == ["promise"]
    assert broken([*begin, LOAD, B]) == ["promise"], "without an Expired event the time is not known"
    assert broken([*begin, *start, FLUSH, LOAD, B]) == []
    taken_over = [assigned("two", 2, PARENT, CHILD), polled("two", 2, CHILD, "b")]
    assert broken([*begin, *start, *taken_over]) == [], "its owner lost it before the flush"


def test_a_member_whose_partition_was_removed_while_its_group_was_empty_flushes_nothing() -> None:
    """The member was paused, so no request reached it. The partition's records were committed, and so flushed."""
    kept = [*stored(PARENT, "b"), *stored(CHILD, "a", broker=ARCHIVE, incarnation=7)]
    begun = [*SENT, OrderedGroup(0.0, "g"), *kept, assigned("one", 1, PARENT, CHILD), polled("one", 1, CHILD, "a")]
    lost = Revoked(3.0, "g", "one", 1, [PARENT, CHILD], lost=True)
    again = [assigned("one", 2, PARENT), polled("one", 2, PARENT, "b")]
    removed = Removed(3.0, CHILD, 7)
    assert broken([*begun, removed, lost, *again]) == []
    crash = [Fault(3.0, "member crash", "one"), assigned("two", 2, PARENT), polled("two", 2, PARENT, "b")]
    assert broken([*begun, removed, *crash]) == []
    assert broken([*begun, *crash]) == ["promise"]
    for ends in (lost, *crash[:1]):
        extended = SessionExtended(2.5, "g", "one", 3.1)
        assert broken([*begun, extended, removed, ends, *crash[1:]]) == ["promise"], "its session was not over"
        assert broken([*begun, removed, extended, ends, *crash[1:]]) == [], "its session began again after the removal"
    assert broken([*begun, lost, *again]) == ["promise"]
    assert broken([*begun, removed, *again]) == ["promise"]
    once_more, back = Removed(9.0, CHILD, 8), SessionExtended(8.0, "g", "one", 9.1)
    extended = SessionExtended(2.5, "g", "one", 3.1)
    assert broken([*begun, extended, removed, lost, once_more, *again]) == ["promise"], "its session was not over"
    assert broken([*begun, removed, lost, back, once_more, *again]) == [], "the first removal concerns this member"


def test_two_incarnations_of_a_partition_are_two_partitions() -> None:
    first, second = stored(CHILD, "a", broker=ARCHIVE, incarnation=7), stored(CHILD, "b", start=1, incarnation=8)
    acks = [Acked(2.0, "p", CHILD, 0, "a"), Acked(6.0, "p", CHILD, 1, "b")]
    created = [Created(1.0, CHILD, 7), Created(5.0, CHILD, 8)]
    assert broken([*SENT, *created, *acks, *first, *second]) == []
    assert broken([*SENT, *created, *acks, *first]) == ["lost_acknowledged"]
    at_0 = stored(CHILD, "b", incarnation=8)
    assert broken([*SENT, *created, acks[0], *first, *at_0]) == ["incarnations"], (
        "the offsets of the new incarnation must continue"
    )
    late = OffsetFetched(6.5, "g", CHILD, 1, 4.5)
    assert broken([*SENT, *created, *acks, *first, *second, late]) == [], (
        "requested in one incarnation, and the response came in the next"
    )
    early = OffsetFetched(4.9, "g", CHILD, 1, 4.5)
    assert broken([*SENT, *created, *acks, *first, *second, early]) == ["incarnations"], (
        "no member committed this offset"
    )


def test_a_loaded_state_is_the_state_stored_at_that_moment() -> None:
    shared: dict[str, tuple[int, str]] = {}
    one, two = KeyStates(shared), KeyStates(shared)
    one.load([PARENT])
    assert one.apply(PARENT, "k", "a", 1) == ""
    two.load([CHILD])
    one.flush([PARENT])
    assert two.apply(CHILD, "k", "b", 1) == "", "loaded too early"
    two.load([CHILD])
    assert two.apply(CHILD, "k", "c", 2) == "b", "its own changes stay"
    two.flush([CHILD])
    one.apply(PARENT, "k", "late", 1)
    one.flush([PARENT])
    assert shared == {"k": (2, "c")}, "the state of generation 2 is kept"
    two.drop([CHILD])
    with pytest.raises(NotLoadedError):
        two.apply(CHILD, "k", "d", 2)
