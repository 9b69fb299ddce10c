"""``/latest_producer_id_block``: the last block of producer ids that was given out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from anabranch.zk_schemas import paths
from anabranch.zk_schemas.znode import MalformedZnodeError, ZnodeReader, encode_fields

BLOCK_SIZE = 1000
_LAST_PRODUCER_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    """Producer ids ``block_start`` to ``block_end``, both inclusive, belong to ``broker``."""

    broker: int
    block_start: int
    block_end: int
    version: int = 1
    extra: dict[str, Any] = field(default_factory=dict)

    PATH = paths.PRODUCER_ID_BLOCK

    @classmethod
    def first(cls, broker: int) -> ProducerIdBlock:
        """The first block that a cluster gives out."""
        return cls(broker, 0, BLOCK_SIZE - 1)

    def next(self, broker: int) -> ProducerIdBlock:
        """The block after this one. Raises ``OverflowError`` when the ids are used up."""
        if self.block_end > _LAST_PRODUCER_ID - BLOCK_SIZE:
            raise OverflowError(f"producer ids are used up: the last block ends at {self.block_end}")
        return ProducerIdBlock(broker, self.block_end + 1, self.block_end + BLOCK_SIZE, self.version, self.extra)

    @classmethod
    def decode(cls, path: str, data: bytes) -> ProducerIdBlock:
        """Raises ``MalformedZnodeError``."""
        reader = ZnodeReader.parse(path, data)
        block = cls(
            version=reader.integer("version", 1, low=1),
            broker=reader.integer("broker"),
            block_start=reader.number_text("block_start"),
            block_end=reader.number_text("block_end"),
            extra=reader.rest(),
        )
        if block.block_end < block.block_start:
            raise MalformedZnodeError(path, "block_end", f"{block.block_end} is below block_start {block.block_start}")
        return block

    def encode(self) -> bytes:
        fields = {
            "version": self.version,
            "broker": self.broker,
            "block_start": str(self.block_start),
            "block_end": str(self.block_end),
        }
        return encode_fields(fields, self.extra)
