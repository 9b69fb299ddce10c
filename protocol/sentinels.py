"""Numbers with a special meaning in fields of requests."""

from __future__ import annotations

from typing import Final

LATEST_TIMESTAMP: Final = -1
"""ListOffsets: the high watermark, or the last stable offset for a ``read_committed`` consumer."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""ListOffsets from version 7: the record with the largest timestamp (KIP-734)."""
CONSUMER_REPLICA_ID: Final = -1
"""Fetch, ListOffsets: the sender is no broker."""
DEBUGGING_CONSUMER_REPLICA_ID: Final = -2
"""Fetch: a consumer that reads beyond the high watermark."""
EPOCH_DURING_DELETE: Final = -2
"""StopReplica: the leader epoch of the deletion of a topic; it overrides every other (KIP-570)."""
LEADER_DURING_DELETE: Final = -2
"""UpdateMetadata: the leader of a partition that is removed."""
