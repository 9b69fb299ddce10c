"""A partition log's configuration: Kafka's topic keys that the log acts on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MAX_LONG = 2**63 - 1


@dataclass(frozen=True, slots=True)
class LogConfig:
    """One topic's values. Attribute names are Kafka's keys with underscores; the defaults are Kafka's."""

    cleanup_policy: tuple[str, ...] = ("delete",)
    compression_type: str = "producer"
    delete_retention_ms: int = 86_400_000
    file_delete_delay_ms: int = 60_000
    flush_messages: int = MAX_LONG
    flush_ms: int = MAX_LONG
    index_interval_bytes: int = 4096
    max_compaction_lag_ms: int = MAX_LONG
    max_message_bytes: int = 1_048_588
    message_timestamp_after_max_ms: int = 3_600_000
    message_timestamp_before_max_ms: int = MAX_LONG
    message_timestamp_difference_max_ms: int = MAX_LONG
    message_timestamp_type: str = "CreateTime"
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    ordered_delivery_retention_waits: bool = False
    ordered_delivery_retention_waits_max_ms: int = 604_800_000
    retention_bytes: int = -1
    retention_ms: int = 604_800_000
    segment_bytes: int = 1_073_741_824
    segment_index_bytes: int = 10_485_760
    segment_jitter_ms: int = 0
    segment_ms: int = 604_800_000

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> LogConfig:
        """Build it from values by Kafka key (``segment.bytes``), parsed or as text; other keys are skipped.

        Raises ``ValueError`` for text that is not of the key's type.
        """
        defaults = cls()
        given = {}
        for name in cls.__slots__:
            key = name.replace("_", ".")
            if key in values and values[key] is not None:
                given[name] = _convert(key, values[key], getattr(defaults, name))
        return cls(**given)

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


def _convert(key: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        parts = value.split(",") if isinstance(value, str) else value
        return tuple(part.strip() for part in parts if part.strip())
    if isinstance(value, type(default)):
        return value
    if isinstance(default, bool):
        return value == "true"
    try:
        return type(default)(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}: {value!r} cannot be read as {type(default).__name__}") from error
