"""``partition.metadata``: the identity of the log in a directory."""

from __future__ import annotations

import uuid

import structlog

from anabranch.broker.log import disk_errors
from anabranch.broker.log.checkpoint_files import (
    LogIdentity,
    MalformedFileError,
    decode_partition_metadata,
    encode_partition_metadata,
    read_checkpoint,
)
from anabranch.broker.log.paths import PARTITION_METADATA, join
from anabranch.protocol.types import ZERO_UUID
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


class IdentityFile:
    """The file of one log and its content.

    Only ``sync`` syncs a new file: otherwise a split would wait for the sync of each file.
    """

    __slots__ = ("_directory", "_storage", "_unsynced", "metadata", "unwritten")

    def __init__(self, storage: Storage, directory: str, metadata: LogIdentity, *, synced: bool) -> None:
        self._storage = storage
        self._directory = directory
        self._unsynced = not synced
        self.metadata = metadata
        self.unwritten = False
        """Whether the file has other content than ``metadata``, because the disk refused the write."""

    @classmethod
    def create(cls, storage: Storage, directory: str, metadata: LogIdentity) -> IdentityFile:
        """Write the file for a new log. Raises ``OSError``."""
        identity = cls(storage, directory, metadata, synced=False)
        file = storage.open(identity.path, create=True)
        try:
            file.truncate(0)
            file.append(encode_partition_metadata(metadata))
        finally:
            file.close()
        return identity

    @classmethod
    def load(cls, storage: Storage, directory: str, *, synced: bool) -> IdentityFile:
        """Read the file; the zero id and incarnation -1 if it is missing or damaged. Raises ``OSError``.

        ``synced``: whether the process that wrote the file has synced it. If not, the next ``sync`` syncs the file.
        """
        identity = cls(storage, directory, LogIdentity(ZERO_UUID), synced=True)
        try:
            identity.metadata = decode_partition_metadata(identity.path, read_checkpoint(storage, identity.path))
            identity._unsynced = not synced
        except FileNotFoundError:
            pass
        except MalformedFileError as error:
            logger.warning("log.metadata_malformed", path=identity.path, error=str(error))
        return identity

    @property
    def topic_id(self) -> uuid.UUID:
        """The topic id; zero when it is not known."""
        return self.metadata.topic_id

    @property
    def incarnation(self) -> int:
        """The incarnation; -1 when it is not known, or Kafka wrote the log."""
        return self.metadata.incarnation

    @property
    def path(self) -> str:
        return join(self._directory, PARTITION_METADATA)

    def moved_to(self, directory: str) -> None:
        """Note that the log's directory has another name now."""
        self._directory = directory

    def replace(self, metadata: LogIdentity) -> None:
        """Write a new identity to the disk, because the topic has a new id, or because the identity was not known.

        Raises ``OSError``.
        """
        self.metadata, self.unwritten = metadata, True  # this process uses it even if the write fails
        self._storage.write_atomic(self.path, encode_partition_metadata(metadata))
        self.unwritten = self._unsynced = False

    async def sync(self) -> None:
        """Return when the file is on disk. After an ``OSError``, a later success does not prove that it is."""
        if not self._unsynced:
            return
        file = self._storage.open(self.path)
        try:
            await disk_errors.sync(file)
        finally:
            file.close()
        self._unsynced = False

    def close(self) -> None:
        """Leave the file as it is, without a sync."""
        self._unsynced = False
