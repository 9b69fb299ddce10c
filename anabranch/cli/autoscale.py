"""``--partitions auto``: the controller's measurements of a topic, and its decision on the partition count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeAlias

from cyclopts import Parameter, Token

from anabranch import Admin
from anabranch.cli.options import INT32
from anabranch.view.autoscale import Autoscaling, is_on
from anabranch.zk_schemas.topic_keys import AUTOSCALE_KEY

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


async def stop_choosing(admin: Admin, topic: str, changes: dict[str, str | None]) -> bool:
    """Add a change that turns autoscaling off, so that a count set by the user stays. Returns whether it was on."""
    configs = await admin.describe_configs(topics=[topic], keys=[AUTOSCALE_KEY])
    if AUTOSCALE_KEY in changes or not is_on(configs[topic]):
        return False
    changes[AUTOSCALE_KEY] = "false"
    return True


def autoscale_lines(row: Autoscaling) -> list[str]:
    measured = f"autoscale: {row.bytes_per_second:.0f} bytes/s in {row.measured_ms / 1000:.1f} s: {row.why}"
    lines = [measured, "the count stays" if row.next_count is None else f"next count: {row.next_count}"]
    return lines + [f"waits for {wait}" for wait in row.waits]
