"""The rule for topic names, and the names of the brokers' internal topics."""

from __future__ import annotations

import re

OFFSETS_TOPIC = "__consumer_offsets"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, "__transaction_state"})
"""The topics that only brokers write. A client's Produce request is refused, and these topics are never resized."""
MAX_NAME_LENGTH = 249

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def is_legal(name: str) -> bool:
    """Kafka's rule for topic names (``Topic.validate``)."""
    return name not in (".", "..") and len(name) <= MAX_NAME_LENGTH and _LEGAL.fullmatch(name) is not None
