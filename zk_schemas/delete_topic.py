"""``/admin/delete_topics/<topic>``: a topic that is to be deleted. The znode is empty and has the topic's name."""

from __future__ import annotations

from dataclasses import dataclass

from anabranch.zk_schemas import paths


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    """A request to delete one topic."""

    topic: str

    @staticmethod
    def path(topic: str) -> str:
        return paths.delete_topic(topic)

    @classmethod
    def decode(cls, path: str, data: bytes) -> DeleteTopic:
        """Any content is accepted, because Kafka writes no content."""
        return cls(path.rpartition("/")[2])

    def encode(self) -> bytes:
        return b""
