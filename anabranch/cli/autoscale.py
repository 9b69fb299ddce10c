"""``--partitions auto``: the controller's measurements of a topic, and its decision on the partition count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter, Token

from anabranch import Admin, ConfigEntry, TopicDescription
from anabranch.cli.options import INT32
from anabranch.ordered_resize.autoscale import Policy, decide
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY, TOPIC_CONFIGS

AUTO: Literal["auto"] = "auto"


def count_or_auto(_type: Any, tokens: Sequence[Token]) -> int | Literal["auto"]:
    value = tokens[0].value
    if value == AUTO:
        return AUTO
    try:
        count = int(value)
    except ValueError:
        raise ValueError(f"{value!r} is neither a whole number nor {AUTO}") from None
    if not 1 <= count <= INT32:
        raise ValueError(f"{count} is not from 1 to {INT32}")
    return count


Count: TypeAlias = Annotated[int | Literal["auto"], Parameter(converter=count_or_auto)]


def is_on(configs: Mapping[str, ConfigEntry]) -> bool:
    entry = configs.get(AUTOSCALE_KEY)
    return entry is not None and entry.value == "true"


async def stop_choosing(admin: Admin, topic: str, changes: dict[str, str | None]) -> bool:
    """Add a change that turns autoscaling off, so that a count set by the user stays. Returns whether it was on."""
    configs = await admin.describe_configs(topics=[topic], keys=[AUTOSCALE_KEY])
    if AUTOSCALE_KEY in changes or not is_on(configs[topic]):
        return False
    changes[AUTOSCALE_KEY] = "false"
    return True


async def autoscale_row(
    admin: Admin,
    topic: TopicDescription,
    configs: Mapping[str, ConfigEntry],
    changes: Mapping[str, str | None] | None = None,
) -> dict[str, Any]:
    """Return the measurements, the count that autoscaling wants with ``changes`` applied, and why its resize waits."""
    set_to = {name: entry.value for name, entry in configs.items() if name in TOPIC_CONFIGS} | dict(changes or {})
    given = {name: value for name, value in set_to.items() if value is not None}
    policy = Policy.of({key.name: key.default for key in TOPIC_CONFIGS} | TOPIC_CONFIGS.parse_given(given))
    measured = await admin.measured_appends(topic.name)
    count = topic.partition_count
    initial = topic.initial_partition_count if topic.initial_partition_count > 0 else count
    decision = decide(policy, initial, count, measured)
    return {
        "measured_ms": measured.elapsed_ms,
        "bytes_per_second": measured.bytes_per_second,
        "bytes_per_second_of_partition": measured.bytes_per_second / count,
        "target_bytes_per_second": policy.target_bytes_per_second,
        "next_count": decision.wanted,
        "why": decision.why,
        "waits": list(decision.waits),
    }


def autoscale_lines(row: Mapping[str, Any]) -> list[str]:
    measured = f"autoscale: {row['bytes_per_second']:.0f} bytes/s in {row['measured_ms'] / 1000:.1f} s: {row['why']}"
    lines = [measured, "the count stays" if row["next_count"] is None else f"next count: {row['next_count']}"]
    return lines + [f"waits for {wait}" for wait in row["waits"]]
