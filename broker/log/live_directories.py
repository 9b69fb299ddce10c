"""The log dirs in use, and the log dirs that the disk refused at the start (KIP-112)."""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from anabranch.broker.log.checkpoint_files import MetaProperties
from anabranch.broker.log.log_directory import LogDirectory, LogDirError, LogDirLostError
from anabranch.runtime.env import Storage

logger = structlog.get_logger(__name__)


class LiveDirectories:
    """The log dirs of a broker. A log dir that is lost stays lost until the next start."""

    def __init__(self, storage: Storage, paths: Iterable[str]) -> None:
        self._storage = storage
        self._live = {path: LogDirectory(storage, path) for path in paths}
        self.lost: dict[str, str] = {}
        """The error of each lost log dir, by its path."""

    def all(self) -> list[LogDirectory]:
        """Every log dir that is in use."""
        return list(self._live.values())

    def get(self, path: str) -> LogDirectory | None:
        """The log dir with this path; None if no such log dir is in use."""
        return self._live.get(path)

    def open(self, meta: MetaProperties) -> None:
        """Lock the log dirs. A log dir that the disk refuses is lost.

        Raises ``LogDirError`` if a log dir is not this broker's, or if all log dirs are lost. Some may stay locked
        then.
        """
        for directory in self.all():
            try:
                directory.open(meta)
                self._storage.listdir(directory.path)
            except (LogDirLostError, OSError) as error:
                self.lose(directory, error)

    def lose(self, directory: LogDirectory, error: Exception) -> None:
        """Continue without a log dir. Raises ``LogDirError`` if no other log dir is left."""
        directory.close()
        del self._live[directory.path]
        self.lost[directory.path] = str(error)
        logger.error("log_dir.lost", path=directory.path, error=str(error))
        if not self._live:
            raise LogDirError("no log dir can be used: " + "; ".join(self.lost.values())) from error
