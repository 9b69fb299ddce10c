"""Which segments retention deletes, and which segments it keeps because a group has not read them yet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from anabranch.broker.log.log_config import LogConfig
from anabranch.broker.log.retention import NOTHING_RETAINED, RetainedSegments, SegmentFacts, count_deletable, retained
from tests.support.log.log_fixture import LogFixture, batch

RETENTION_MS, BOUND_MS, NOW_MS = 100, 50, 1_000
TIMED = LogConfig(retention_ms=RETENTION_MS, ordered_delivery_retention_waits_max_ms=BOUND_MS)


def segments(*ages_ms: int, size: int = 10, records: int = 5) -> list[SegmentFacts]:
    """Return segments with that many records each, by the age of their newest record."""
    return [SegmentFacts((number + 1) * records, size, NOW_MS - age) for number, age in enumerate(ages_ms)]


def count(found: list[SegmentFacts], retained_from: int, config: LogConfig = TIMED, log_start: int = 0) -> int:
    return count_deletable(found, config, NOW_MS, 10**6, log_start, retained_from)


def test_held_segments_stay_longer_than_retention_ms() -> None:
    found = segments(140, 130, 120, 10)
    assert count(found, NOTHING_RETAINED) == 3
    assert [count(found, retained_from) for retained_from in (0, 4, 5, 9, 10, 14, 15)] == [0, 0, 1, 1, 2, 2, 3]


def test_held_segments_are_deleted_after_retention_ms_and_the_bound() -> None:
    assert count(segments(151, 150, 149, 10), 0) == 1


def test_retention_by_size_and_the_log_start_ignore_the_hold() -> None:
    sized = LogConfig(retention_ms=-1, retention_bytes=20)
    assert count(segments(1, 1, 1, 1), 0, sized) == 2
    assert count(segments(1, 1, 1, 1), 0, log_start=10) == 2


def test_nothing_counts_as_held_back_without_retention_by_time() -> None:
    config = LogConfig(retention_ms=-1, ordered_delivery_retention_waits_max_ms=BOUND_MS)
    assert retained(segments(140, 130), config, NOW_MS, 10**6, 0, 0) is None


def test_held_back_names_the_segments_that_only_the_hold_keeps() -> None:
    found = segments(140, 130, 120, 10)
    assert retained(found, TIMED, NOW_MS, 10**6, 3, 6) == RetainedSegments(
        5, 15, 20, NOW_MS - 130 + 100, NOW_MS - 130 + 150
    )
    assert retained(found, TIMED, NOW_MS, 10**6, 7, 6) == RetainedSegments(
        7, 15, 20, NOW_MS - 130 + 100, NOW_MS - 130 + 150
    )
    assert retained(found, TIMED, NOW_MS, 10**6, 0, 15) is None
    assert retained(found, TIMED, NOW_MS, 10**6, 0, NOTHING_RETAINED) is None


def naive_count(
    found: list[SegmentFacts], config: LogConfig, high_watermark: int, log_start: int, retained_from: int
) -> int:
    """Apply the rules to the oldest segment, and then to the rest of the log in the same way."""
    taken = 0
    while taken < len(found):
        oldest, left = found[taken], found[taken:]
        age_ms = NOW_MS - oldest.timestamp
        reasons = [oldest.end_offset <= log_start and len(left) > 1]
        if "delete" in config.cleanup_policy:
            if config.retention_ms >= 0 and oldest.end_offset <= retained_from:
                reasons.append(age_ms > config.retention_ms)
            elif config.retention_ms >= 0:
                reasons.append(age_ms > config.retention_ms + config.ordered_delivery_retention_waits_max_ms)
            if config.retention_bytes >= 0:
                reasons.append(sum(segment.size_bytes for segment in left[1:]) >= config.retention_bytes)
        if oldest.end_offset > high_watermark or (len(left) == 1 and oldest.size_bytes == 0) or not any(reasons):
            break
        taken += 1
    return taken


@st.composite
def logs(draw: st.DrawFn) -> list[SegmentFacts]:
    end, found = 0, []
    for _ in range(draw(st.integers(1, 6))):
        end += draw(st.integers(1, 5))
        found.append(SegmentFacts(end, draw(st.sampled_from([0, 1, 7])), NOW_MS - draw(st.integers(0, 200))))
    return found


@given(
    found=logs(),
    retention_ms=st.sampled_from([-1, 0, 50, 100]),
    retention_bytes=st.sampled_from([-1, -1, 0, 5, 10]),
    policy=st.sampled_from([("delete",), ("compact",), ("compact", "delete")]),
    bound_ms=st.sampled_from([0, 40]),
    high_watermark=st.integers(0, 30),
    log_start=st.integers(0, 30),
    retained_from=st.sampled_from([0, 1, 3, 7, 20, NOTHING_RETAINED]),
)
def test_retention_deletes_the_same_segments_as_the_naive_rules(
    found: list[SegmentFacts],
    retention_ms: int,
    retention_bytes: int,
    policy: tuple[str, ...],
    bound_ms: int,
    high_watermark: int,
    log_start: int,
    retained_from: int,
) -> None:
    config = LogConfig(
        cleanup_policy=policy,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        ordered_delivery_retention_waits_max_ms=bound_ms,
    )
    expected = naive_count(found, config, high_watermark, log_start, retained_from)
    assert count_deletable(found, config, NOW_MS, high_watermark, log_start, retained_from) == expected
    free = naive_count(found, config, high_watermark, log_start, NOTHING_RETAINED)
    held = retained(found, config, NOW_MS, high_watermark, log_start, retained_from)
    assert (held is None) == (expected == free)
    if held is not None:
        assert held.size_bytes == sum(segment.size_bytes for segment in found[expected:free])
        assert held.end_offset == found[free - 1].end_offset and held.until_ms - held.since_ms == bound_ms


def test_a_log_keeps_held_segments_until_the_bound(log_fixture: LogFixture) -> None:
    log = log_fixture.create(
        retention_ms=1000, segment_bytes=2 * len(batch(b"a", b"b")), ordered_delivery_retention_waits_max_ms=500
    )
    for _ in range(4):
        log.append_as_leader(batch(b"a", b"b"), 0)
    log.advance_high_watermark(8)
    log_fixture.clock.ms += 1002  # the second record of a batch is 1 ms younger
    assert (log.delete_old_segments(4), log.log_start_offset) == (1, 4)
    assert log.delete_old_segments(4) == 0
    log_fixture.clock.ms += 500
    assert (log.delete_old_segments(4), log.log_start_offset) == (1, 8)
