"""The controller's measurements of a topic, and its decision on the partition count."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from anabranch import Admin, ConfigEntry, TopicDescription
from anabranch.ordered_resize.autoscale import Policy, decide
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, TOPIC_CONFIGS


def is_on(configs: Mapping[str, ConfigEntry]) -> bool:
    entry = configs.get(AUTOSCALE_KEY)
    return entry is not None and entry.value == "true"


class Autoscaling(NamedTuple):
    """The measured writes of a topic, and the decision on its partition count."""

    measured_ms: int
    bytes_per_second: float
    bytes_per_second_of_partition: float
    target_bytes_per_second: int
    next_count: int | None
    """The count that the controller wants; None if the count stays."""
    why: str
    waits: list[str]
    """The reasons why the resize waits."""


async def autoscaling(
    admin: Admin,
    topic: TopicDescription,
    configs: Mapping[str, ConfigEntry],
    changes: Mapping[str, str | None] | None = None,
) -> Autoscaling:
    """Return the measurements, the count that autoscaling wants with ``changes`` applied, and why its resize waits."""
    set_to = {name: entry.value for name, entry in configs.items() if name in TOPIC_CONFIGS} | dict(changes or {})
    given = {name: value for name, value in set_to.items() if value is not None}
    policy = Policy.of(TOPIC_CONFIGS.parse_given(given))
    measured = await admin.measured_appends(topic.name)
    count = topic.partition_count
    initial = topic.initial_partition_count if topic.initial_partition_count > 0 else count
    decision = decide(policy, initial, count, measured)
    return Autoscaling(
        measured_ms=measured.elapsed_ms,
        bytes_per_second=measured.bytes_per_second,
        bytes_per_second_of_partition=measured.bytes_per_second / count,
        target_bytes_per_second=policy.target_bytes_per_second,
        next_count=decision.wanted,
        why=decision.why,
        waits=list(decision.waits),
    )
