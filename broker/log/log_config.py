"""A partition log's configuration: the keys of its topic."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas.topic_keys import TopicKeys

MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig(TopicKeys):
    """One topic's values."""

    @property
    def compacts(self) -> bool:
        """Whether the log is compacted."""
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """Whether old segments are deleted by size and time."""
        return "delete" in self.cleanup_policy

    @property
    def log_append_time(self) -> bool:
        """Whether records get the broker's time."""
        return self.message_timestamp_type == "LogAppendTime"
