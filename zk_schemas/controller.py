"""``/controller`` (ephemeral): the active controller; ``/controllers/<id>`` (ephemeral): each running controller.

``/controller_epoch``: a number, higher with each election.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.protocol.sentinels import NO_TIMESTAMP
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields


@dataclass(frozen=True, slots=True)
class ControllerZnode:
    """A controller: its id, its only listening address, and its release (empty if it states no release)."""

    PATH = paths.CONTROLLER

    controller_id: int
    host: str
    port: int
    timestamp_ms: int = NO_TIMESTAMP
    version: int = 1
    release: str = ""
    extra: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def decode(cls, path: str, data: bytes) -> ControllerZnode:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        return cls(
            controller_id=reader.integer("brokerid"),
            host=reader.text("host"),
            port=reader.integer("port", low=1, high=65535),
            timestamp_ms=reader.number_text("timestamp", -1, low=-1),
            version=reader.integer("version", 1, low=1),
            release=reader.text("release", ""),
            extra=reader.rest(),
        )

    def encode(self) -> bytes:
        fields: dict[str, Any] = {
            "version": self.version,
            "brokerid": self.controller_id,
            "timestamp": str(self.timestamp_ms),
            "host": self.host,
            "port": self.port,
        }
        if self.release:
            fields["release"] = self.release
        return encode_fields(fields, self.extra)


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_controller_epoch(path: str, data: bytes) -> int:
    """The number in ``/controller_epoch``. Raises ``MalformedZnodeError``."""
    if not data.isdigit():
        raise MalformedZnodeError(path, "", f"a number was expected, not {data[:40]!r}")
    return int(data)
