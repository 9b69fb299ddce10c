"""The full log dirs, and the checks for new room.

A full log dir keeps its replicas and serves reads. Its broker leads a partition there only if no other broker can lead
it (see docs/adr/0025). For the other replicas there it fetches no records. The broker checks for room every second. If
a log dir is full again soon after it had room, its first check comes later, after half a minute at most.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import structlog
import trio

from anabranch.broker.log.log_directory import LogDirectory
from anabranch.broker.log.paths import ROOM_PROBE, join
from anabranch.runtime.env import Clock, Storage

logger = structlog.get_logger(__name__)

CHECK_S = 1.0
LONGEST_PAUSE_S = 30.0
RELAPSE_S = 60.0
"""If a log dir has room and is full again within this time, the pause before its first check is doubled."""
PROBE_BYTES = 64 * 1024


class FullDirectories:
    """The full log dirs. ``changed`` is called when a log dir becomes full, and again when it has room."""

    def __init__(
        self, clock: Clock, storage: Storage, min_free_bytes: int, changed: Callable[[LogDirectory, bool], None]
    ) -> None:
        self._clock = clock
        self._storage = storage
        self._min_free_bytes = min_free_bytes
        self._changed = changed
        self._full: dict[str, tuple[LogDirectory, float]] = {}
        self._last_room: dict[str, tuple[float, float]] = {}
        """By path: the time at which there was room again, and the pause before the first check of a full log dir."""

    def __contains__(self, directory: LogDirectory) -> bool:
        return directory.path in self._full

    @property
    def paths(self) -> list[str]:
        return list(self._full)

    def note(self, directory: LogDirectory) -> None:
        """Note that a write was refused because there is no space."""
        if directory in self:
            return
        now = self._clock.monotonic()
        room_at, pause_s = self._last_room.get(directory.path, (-RELAPSE_S, CHECK_S))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if now - room_at < RELAPSE_S else CHECK_S
        self._last_room[directory.path] = room_at, pause_s
        self._full[directory.path] = directory, now + pause_s
        logger.error("log_dir.full", path=directory.path)
        self._changed(directory, True)

    async def run(self) -> None:
        """Look for room until cancelled."""
        while True:
            await trio.sleep(CHECK_S)
            self.look()

    def look(self) -> None:
        """Check the full log dirs whose check is due."""
        now = self._clock.monotonic()
        for path, (directory, look_at) in list(self._full.items()):
            if look_at > now:
                continue
            if self._try_to_write(directory):
                del self._full[path]
                self._last_room[path] = now, self._last_room[path][1]
                logger.info("log_dir.has_room", path=path)
                self._changed(directory, False)
            else:
                self._full[path] = directory, now + CHECK_S

    def _try_to_write(self, directory: LogDirectory) -> bool:
        """Write a file: the number of free bytes ignores quotas. False if this fails, or too few bytes are free."""
        total, free = directory.usage()
        if 0 <= free < min(self._min_free_bytes, total // 20):
            return False
        path = join(directory.path, ROOM_PROBE)
        try:
            file = self._storage.open(path, create=True)
            try:
                file.truncate(0)
                file.append(bytes(min(PROBE_BYTES, max(free, 0) or PROBE_BYTES)))
            finally:
                file.close()
        except OSError:
            return False
        finally:
            with contextlib.suppress(OSError):
                self._storage.remove(path)
        return True
