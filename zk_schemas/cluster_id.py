"""``/cluster/id``: created by the first broker that starts, and never changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields


@dataclass(frozen=True, slots=True)
class ClusterId:
    """The cluster's id: 22 characters of base64url as Kafka makes them; any text is accepted."""

    cluster_id: str
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PATH = paths.CLUSTER_ID

    @classmethod
    def decode(cls, path: str, data: bytes) -> ClusterId:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        version = reader.number_text("version", 1, low=1)
        cluster_id = reader.text("id")
        if not cluster_id:
            raise MalformedZnodeError(path, "id", "is empty")
        return cls(cluster_id, version, reader.rest())

    def encode(self) -> bytes:
        return encode_fields({"version": str(self.version), "id": self.cluster_id}, self.extra)
