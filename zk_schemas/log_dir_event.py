"""``/log_dir_event_notification/log_dir_event_<seq>``: a broker reports that it lost a disk (KIP-112)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import ZnodeReader, encode_fields

LOG_DIR_FAILED = 1


@dataclass(frozen=True, slots=True)
class LogDirEvent:
    """A broker's report. It names no replicas, because requests for the lost replicas get KAFKA_STORAGE_ERROR."""

    broker: int
    event: int = LOG_DIR_FAILED
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PREFIX = paths.LOG_DIR_EVENT_PREFIX

    @classmethod
    def decode(cls, path: str, data: bytes) -> LogDirEvent:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.integer("version", 1, low=1)
        broker = reader.integer("broker", low=0)
        return cls(broker, reader.integer("event", LOG_DIR_FAILED), version, reader.rest())

    def encode(self) -> bytes:
        return encode_fields({"version": self.version, "broker": self.broker, "event": self.event}, self.extra)
