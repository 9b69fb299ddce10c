"""The decision to double or halve a topic's partition count, from the bytes appended to it. Pure.

If partitions get more than ``autoscale.target.bytes.per.second`` on average, the count doubles. If they get less than a
quarter of this target, the count halves. A constant rate never reverses a step. Each count is the initial count times a
power of two, which stock producers can follow.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from anabranch.protocol.plurals import counted, one_or_many
from anabranch.zk_schemas.topic_keys import TopicKeys

HALVED_BELOW = 4
"""The count halves when the mean is below the target divided by this divisor.

The divisor must be at least 2. Halving the count doubles the mean, and a mean above the target doubles the count again.
"""


class Policy(NamedTuple):
    """The keys of a topic. Each key is ``autoscale.`` and the field's name with dots."""

    target_bytes_per_second: int
    min_partitions: int
    max_partitions: int
    cooldown_ms: int
    window_ms: int
    unsuited: str = ""
    """Why the count of such a topic is not scaled; empty if the count may be scaled."""

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Policy:
        """The policy, from the parsed values of the topic keys. An absent key has its default."""
        keys = TopicKeys.of(values)
        unsuited = ""
        if not keys.enable_ordered_delivery:
            unsuited = "enable.ordered.delivery=false"
        elif "compact" in keys.cleanup_policy:
            unsuited = f"cleanup.policy={','.join(keys.cleanup_policy)}"
        return cls(
            keys.autoscale_target_bytes_per_second,
            keys.autoscale_min_partitions,
            keys.autoscale_max_partitions,
            keys.autoscale_cooldown_ms,
            keys.autoscale_window_ms,
            unsuited,
        )


class Measured(NamedTuple):
    """The bytes appended in the last ``elapsed_ms``. This time is at most the window.

    ``unchanged_ms`` is the time since the count changed, as far as this controller knows.
    """

    appended_bytes: int
    elapsed_ms: int
    unchanged_ms: int

    @property
    def bytes_per_second(self) -> float:
        return self.appended_bytes * 1000 / self.elapsed_ms if self.elapsed_ms > 0 else 0.0


class CountDecision(NamedTuple):
    """``wanted``: the count that the topic should have; None: no change. ``waits``: why a change waits."""

    wanted: int | None
    why: str
    waits: tuple[str, ...] = ()


def decide(policy: Policy, initial: int, count: int, measured: Measured) -> CountDecision:
    """The decision for a topic of ``count`` partitions, created with ``initial``."""
    if policy.unsuited:
        return CountDecision(None, f"the controller does not choose the count of a topic with {policy.unsuited}")
    if problem := bounds_problem(policy, initial):
        return CountDecision(None, problem)
    cooldown = _lacks("the cool-down", measured.unchanged_ms, policy.cooldown_ms, "autoscale.cooldown.ms")
    partitions_are = f"{counted(count, 'partition')} {one_or_many(count, 'is', 'are')}"
    if count < policy.min_partitions:
        why = f"{partitions_are} below autoscale.min.partitions={policy.min_partitions}"
        return CountDecision(_at_least(initial, policy.min_partitions), why, cooldown)
    if count > policy.max_partitions:
        why = f"{partitions_are} above autoscale.max.partitions={policy.max_partitions}"
        return CountDecision(_below(initial, policy.max_partitions + 1), why, cooldown)
    window = _lacks("the window", measured.elapsed_ms, policy.window_ms, "autoscale.window.ms")
    wanted, why = _by_rate(policy, initial, count, measured)
    return CountDecision(wanted, why, cooldown + window)


def bounds_problem(policy: Policy, initial: int) -> str:
    """Why no count of a topic created with ``initial`` partitions is between the bounds; empty if some count is."""
    if policy.min_partitions > policy.max_partitions:
        return (
            f"autoscale.min.partitions={policy.min_partitions} is above"
            f" autoscale.max.partitions={policy.max_partitions}"
        )
    if _at_least(initial, policy.min_partitions) > policy.max_partitions:
        return (
            f"the topic was created with {counted(initial, 'partition')}, and no doubling of this count is between"
            f" autoscale.min.partitions={policy.min_partitions} and"
            f" autoscale.max.partitions={policy.max_partitions}"
        )
    return ""


def _by_rate(policy: Policy, initial: int, count: int, measured: Measured) -> tuple[int | None, str]:
    if measured.elapsed_ms <= 0:
        return None, "nothing is measured yet"
    target, mean = policy.target_bytes_per_second, measured.bytes_per_second / count
    key = f"autoscale.target.bytes.per.second={target}"
    rate = f"{mean:.0f} bytes/s for " + one_or_many(count, "one partition", f"each of {count} partitions")
    if measured.appended_bytes * 1000 > target * count * measured.elapsed_ms:
        above = f"{rate} are above {key}"
        wanted = _at_least(initial, count + 1)
        if wanted > policy.max_partitions:
            most = f"autoscale.max.partitions={policy.max_partitions}"
            return None, f"{above}; {counted(wanted, 'partition')} would be above {most}"
        return wanted, above
    if measured.appended_bytes * 1000 * HALVED_BELOW < target * count * measured.elapsed_ms:
        below = f"{rate} are below a quarter of {key}"
        if count <= initial:
            return None, f"{below}; the topic was created with {counted(initial, 'partition')} and can have no fewer"
        wanted = _below(initial, count)
        if wanted < policy.min_partitions:
            least = f"autoscale.min.partitions={policy.min_partitions}"
            return None, f"{below}; {counted(wanted, 'partition')} would be below {least}"
        return wanted, below
    return None, f"{rate} are neither above {key} nor below a quarter of it"


def _lacks(what: str, elapsed_ms: int, needed_ms: int, key: str) -> tuple[str, ...]:
    if elapsed_ms >= needed_ms:
        return ()
    return (f"{what}: {elapsed_ms / 1000:.1f} of {needed_ms / 1000:g} s ({key})",)


def _at_least(initial: int, count: int) -> int:
    """The lowest doubling of the initial count that is at least ``count``."""
    found = initial
    while found < count:
        found *= 2
    return found


def _below(initial: int, count: int) -> int:
    """The highest doubling of the initial count that is below ``count``. ``count`` is above the initial count."""
    found = initial
    while found * 2 < count:
        found *= 2
    return found
