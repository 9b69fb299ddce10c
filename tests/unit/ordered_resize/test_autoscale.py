"""The partition count that a write rate leads to: a constant rate causes no oscillation, and the bounds hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.ordered_resize.autoscale import Measured, Policy, bounds_problem, decide
from anabranch.protocol.key_placement import is_doubled

SECOND_MS = 1_000
POLICY = Policy(100, 1, 64, cooldown_ms=600 * SECOND_MS, window_ms=60 * SECOND_MS)


def measured(bytes_per_second: int, elapsed_s: int = 60, unchanged_s: int = 600) -> Measured:
    return Measured(bytes_per_second * elapsed_s, elapsed_s * SECOND_MS, unchanged_s * SECOND_MS)


def settled(policy: Policy, initial: int, count: int, rate: int) -> list[int]:
    """Return the counts that a constant rate leads to, including the first one."""
    counts = [count]
    while (wanted := decide(policy, initial, counts[-1], measured(rate)).wanted) is not None:
        counts.append(wanted)
        assert len(counts) < 70
    return counts


@pytest.mark.parametrize(
    ("initial", "count", "rate", "wanted"),
    [
        (4, 4, 401, 8),
        (4, 4, 400, None),
        (4, 8, 200, None),
        (4, 8, 199, 4),
        (4, 4, 0, None),
        (4, 6, 601, 8),
        (4, 6, 149, 4),
        (1, 64, 1_000_000, None),
    ],
)
def test_the_mean_rate_of_a_partition_decides_the_count(
    initial: int, count: int, rate: int, wanted: int | None
) -> None:
    assert decide(POLICY, initial, count, measured(rate)).wanted == wanted


@given(st.integers(1, 12), st.data())
def test_a_constant_rate_takes_no_step_back_and_ends_within_the_bounds(initial: int, data: st.DataObject) -> None:
    low = data.draw(st.integers(1, 300))
    policy = POLICY._replace(
        target_bytes_per_second=data.draw(st.integers(1, 10_000)),
        min_partitions=low,
        max_partitions=data.draw(st.integers(low, 600)),
    )
    count, rate = data.draw(st.integers(initial, 700)), data.draw(st.integers(0, 1_000_000))
    counts = settled(policy, initial, count, rate)
    if bounds_problem(policy, initial):
        assert counts == [count]
        return
    into_bounds = [n for n in counts if not policy.min_partitions <= n <= policy.max_partitions]
    assert into_bounds in ([], [count])
    chosen = counts[len(into_bounds) :]
    assert chosen in (sorted(chosen), sorted(chosen, reverse=True))
    assert all(policy.min_partitions <= n <= policy.max_partitions and is_doubled(initial, n) for n in counts[1:])
    mean, last = rate / counts[-1], counts[-1]
    assert mean <= policy.target_bytes_per_second or last * 2 > policy.max_partitions
    assert mean * 4 >= policy.target_bytes_per_second or last == initial or last / 2 < policy.min_partitions


@given(st.integers(1, 12), st.integers(0, 6), st.integers(0, 1_000_000))
def test_one_step_is_at_most_one_doubling(initial: int, doublings: int, rate: int) -> None:
    count = initial << doublings
    wanted = decide(POLICY._replace(max_partitions=1 << 20), initial, count, measured(rate)).wanted
    assert wanted in (None, count * 2, count // 2)


@pytest.mark.parametrize(
    ("elapsed_s", "unchanged_s", "waits"),
    [
        (60, 600, ()),
        (59, 600, ("the window: 59.0 of 60 s (autoscale.window.ms)",)),
        (60, 599, ("the cool-down: 599.0 of 600 s (autoscale.cooldown.ms)",)),
    ],
)
def test_a_step_waits_for_the_window_and_the_cool_down(
    elapsed_s: int, unchanged_s: int, waits: tuple[str, ...]
) -> None:
    decision = decide(POLICY, 4, 4, measured(1_000, elapsed_s, unchanged_s))
    assert (decision.wanted, decision.waits) == (8, waits)


def test_bounds_are_reached_without_a_measurement_but_not_before_the_cool_down() -> None:
    policy = POLICY._replace(min_partitions=5, max_partitions=9)
    assert decide(policy, 4, 4, Measured(0, 0, 600_000))[::2] == (8, ())
    assert decide(policy, 4, 16, Measured(0, 0, 600_000))[::2] == (8, ())
    assert decide(policy, 4, 16, Measured(0, 0, 0)).waits


@pytest.mark.parametrize(
    ("low", "high", "named"),
    [(5, 3, "autoscale.min.partitions=5"), (5, 7, "autoscale.max.partitions=7"), (1, 3, "the topic was created with")],
)
def test_contradictory_bounds_choose_no_count_and_are_named(low: int, high: int, named: str) -> None:
    decision = decide(POLICY._replace(min_partitions=low, max_partitions=high), 4, 4, measured(1_000_000))
    assert decision.wanted is None
    assert named in decision.why


def test_the_count_of_an_unsuited_topic_is_not_changed() -> None:
    decision = decide(POLICY._replace(unsuited="cleanup.policy=compact"), 4, 4, measured(1_000_000))
    assert decision[:2] == (None, "the controller does not choose the count of a topic with cleanup.policy=compact")


def test_the_policy_follows_the_configs_of_the_topic() -> None:
    values = {
        "autoscale.target.bytes.per.second": 1,
        "autoscale.min.partitions": 2,
        "autoscale.max.partitions": 3,
        "autoscale.cooldown.ms": 4,
        "autoscale.window.ms": 5,
        "enable.ordered.delivery": True,
        "cleanup.policy": ["delete"],
    }
    assert Policy.of(values) == (1, 2, 3, 4, 5, "")
    assert Policy.of(values | {"enable.ordered.delivery": False}).unsuited == "enable.ordered.delivery=false"
    assert Policy.of(values | {"cleanup.policy": ["compact", "delete"]}).unsuited == "cleanup.policy=compact,delete"
