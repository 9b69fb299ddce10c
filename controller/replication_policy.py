"""The one place that says how many replicas a partition may have."""

from __future__ import annotations

MAX_REPLICATION_FACTOR = 1
INTERNAL_TOPICS = frozenset({"__consumer_offsets", "__transaction_state"})


def replication_refusal(replication_factor: int) -> str | None:
    """Why a replication factor is refused, or None. Followers do not fetch yet: a second replica would stay empty."""
    if replication_factor <= MAX_REPLICATION_FACTOR:
        return None
    return (
        f"replication factor {replication_factor} is not supported yet: "
        f"this version keeps {MAX_REPLICATION_FACTOR} replica of each partition"
    )


def granted_replication_factor(topic: str, asked: int) -> int:
    """What a topic gets. Brokers ask for internal topics with Kafka's default of 3: those get what there is."""
    return min(asked, MAX_REPLICATION_FACTOR) if topic in INTERNAL_TOPICS else asked
