"""The one place that says how many replicas a partition may have."""

from __future__ import annotations

MAX_REPLICATION_FACTOR = 1


def replication_refusal(replication_factor: int) -> str | None:
    """Why a replication factor is refused, or None. Followers do not fetch yet: a second replica would stay empty."""
    if replication_factor <= MAX_REPLICATION_FACTOR:
        return None
    return (
        f"replication factor {replication_factor} is not supported yet: "
        f"this version keeps {MAX_REPLICATION_FACTOR} replica of each partition"
    )
