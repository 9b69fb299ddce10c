"""``partition.metadata``: whose log a directory holds."""

from __future__ import annotations

import uuid

import structlog

from anabranch.broker.log import disk_errors
from anabranch.broker.log.checkpoint_files import (
    MalformedFileError,
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)
from anabranch.broker.log.paths import PARTITION_METADATA, join
from anabranch.protocol.types import ZERO_UUID
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


class IdentityFile:
    """The file of one log and what it says. A new log's waits for ``sync``: a split would wait for each of them."""

    __slots__ = ("_directory", "_storage", "_unsynced", "metadata", "unwritten")

    def __init__(self, storage: Storage, directory: str, metadata: PartitionMetadata) -> None:
        self._storage = storage
        self._directory = directory
        self._unsynced = False
        self.metadata = metadata
        self.unwritten = False
        """Whether the file says something else: the disk did not take it."""

    @classmethod
    def create(cls, storage: Storage, directory: str, metadata: PartitionMetadata) -> IdentityFile:
        """Write it for a new log. Raises ``OSError``."""
        identity = cls(storage, directory, metadata)
        file = storage.open(identity.path, create=True)
        try:
            file.truncate(0)
            file.append(encode_partition_metadata(metadata))
        finally:
            file.close()
        identity._unsynced = True
        return identity

    @classmethod
    def load(cls, storage: Storage, directory: str, *, synced: bool) -> IdentityFile:
        """Read it; the zero id and incarnation -1 when the file is missing or damaged. Raises ``OSError``.

        ``synced``: who wrote it saw it on the disk. A process that was killed before leaves that to the next.
        """
        identity = cls(storage, directory, PartitionMetadata(ZERO_UUID))
        try:
            identity.metadata = decode_partition_metadata(identity.path, storage.read_bytes(identity.path))
            identity._unsynced = not synced
        except FileNotFoundError:
            pass
        except MalformedFileError as error:
            logger.warning("log.metadata_malformed", path=identity.path, error=str(error))
        return identity

    @property
    def topic_id(self) -> uuid.UUID:
        """Zero when it is not known."""
        return self.metadata.topic_id

    @property
    def incarnation(self) -> int:
        """-1 when it is not known, or Kafka wrote the log."""
        return self.metadata.incarnation

    @property
    def path(self) -> str:
        return join(self._directory, PARTITION_METADATA)

    def moved_to(self, directory: str) -> None:
        """The log's directory has another name now."""
        self._directory = directory

    def replace(self, metadata: PartitionMetadata) -> None:
        """The topic got a new id, or whose log it is was not known: write it anew, to the disk. Raises ``OSError``."""
        self.metadata, self.unwritten = metadata, True  # whatever the disk says, this process knows
        self._storage.write_atomic(self.path, encode_partition_metadata(metadata))
        self.unwritten = self._unsynced = False

    async def sync(self) -> None:
        """Return when the disk has it. Raises ``OSError``, and then a later one that succeeds says nothing."""
        if not self._unsynced:
            return
        file = self._storage.open(self.path)
        try:
            await disk_errors.sync(file)
        finally:
            file.close()
        self._unsynced = False

    def close(self) -> None:
        """Give the file up as it is."""
        self._unsynced = False
