"""``/first_leader_epoch``: a new partition begins with this leader epoch or a later one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import ZnodeReader, encode_fields

MAX_FIRST_EPOCH = 2**30
"""The highest number. The epochs above it are left for the elections of partitions that begin there."""


@dataclass(frozen=True, slots=True)
class FirstLeaderEpoch:
    """``epoch`` is above every leader epoch of every topic that was deleted."""

    epoch: int
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PATH = paths.FIRST_LEADER_EPOCH

    @classmethod
    def decode(cls, path: str, data: bytes) -> FirstLeaderEpoch:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        return cls(
            version=reader.integer("version", 1, low=1),
            epoch=reader.integer("first_leader_epoch", high=MAX_FIRST_EPOCH),
            extra=reader.rest(),
        )

    def encode(self) -> bytes:
        return encode_fields({"version": self.version, "first_leader_epoch": self.epoch}, self.extra)
