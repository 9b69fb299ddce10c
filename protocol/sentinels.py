"""Numbers with a special meaning in fields of requests, responses and records."""

from __future__ import annotations

from typing import Final

NO_LEADER: Final = -1
"""Instead of a broker id: a partition without a leader."""
NO_NODE: Final = -1
"""Instead of a broker id: no coordinator, controller or preferred replica."""
NO_EPOCH: Final = -1
"""An epoch that is not known or not given: of a leader, a controller, a partition, a broker or a producer."""
NO_OFFSET: Final = -1
"""An offset that is not known, or that does not exist."""
NO_TIMESTAMP: Final = -1
NO_INCARNATION: Final = -1
"""A partition's incarnation (KIP-253) that is not known or not given."""
NO_COUNT: Final = -1
"""A number of partitions or replicas that is not given; on creation the broker's default counts."""
NO_LAYOUT_VERSION: Final = -1
"""A layout version (KIP-253) that is not known."""
NO_PRODUCER_ID: Final = -1
"""A batch of a producer that is not idempotent."""
NO_SEQUENCE: Final = -1
NO_GENERATION: Final = -1
"""The generation of a sender that is no member of the group."""

LATEST_TIMESTAMP: Final = -1
"""ListOffsets: the high watermark, or the last stable offset for a ``read_committed`` consumer."""
EARLIEST_TIMESTAMP: Final = -2
"""ListOffsets: the log start offset."""
MAX_TIMESTAMP: Final = -3
"""ListOffsets from version 7: the record with the largest timestamp (KIP-734)."""
EARLIEST_LOCAL_TIMESTAMP: Final = -4
"""ListOffsets from version 8: the log start offset on the broker's own disks (KIP-405)."""
LATEST_TIERED_TIMESTAMP: Final = -5
"""ListOffsets from version 9: the end of the part of the log in tiered storage (KIP-1005)."""
HIGH_WATERMARK: Final = -1
"""DeleteRecords: the high watermark, instead of an offset."""
ACKS_ALL: Final = -1
"""Produce: every replica in sync has to have the records."""
NO_RETENTION_TIME: Final = -1
"""OffsetCommit, versions 2 to 4: no retention of its own; the broker's ``offsets.retention.minutes`` counts."""
INVALID_SESSION_ID: Final = 0
"""Fetch: no fetch session (KIP-227)."""
INITIAL_SESSION_EPOCH: Final = 0
"""Fetch: a full fetch that asks for a new session (KIP-227)."""
FINAL_SESSION_EPOCH: Final = -1
"""Fetch: a full fetch without a session; it ends the session that it names (KIP-227)."""
READ_COMMITTED: Final = 1
"""Fetch, ListOffsets: the isolation level that leaves out the records of open and aborted transactions."""
CONSUMER_REPLICA_ID: Final = -1
"""Fetch, ListOffsets: the sender is no broker."""
DEBUGGING_CONSUMER_REPLICA_ID: Final = -2
"""Fetch: a consumer that reads beyond the high watermark."""
EPOCH_DURING_DELETE: Final = -2
"""StopReplica: the leader epoch of the deletion of a topic; it overrides every other (KIP-570)."""
LEADER_DURING_DELETE: Final = -2
"""UpdateMetadata, and the state znode of a partition: the leader of a partition that is removed."""
