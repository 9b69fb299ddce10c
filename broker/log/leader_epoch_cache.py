"""Stores the start offsets of leader epochs (KIP-101, KIP-279) in ``leader-epoch-checkpoint``."""

from __future__ import annotations

from bisect import bisect_right

from anabranch.broker.log.checkpoint_files import decode_epochs, encode_epochs, read_checkpoint, write_replace
from anabranch.protocol.sentinels import NO_EPOCH, NO_OFFSET
from anabranch.runtime.env import Storage


class LeaderEpochCache:
    """Ascending (epoch, start offset) pairs; both strictly increase.

    The file is replaced when an epoch gets its first record, but not synced: after a crash, recovery assigns the log's
    epochs again. An epoch without records is only in memory. The file would keep it after the log has forgotten it.
    A change whose write fails (disk full) stays in memory and is written by the next ``save``.
    """

    __slots__ = ("_dirty", "_path", "_starts", "_storage", "epochs", "latest_epoch", "recorded_epoch")

    def __init__(self, storage: Storage, path: str) -> None:
        self._storage = storage
        self._path = path
        self._dirty = False
        self._starts: list[int] = []
        self.epochs: list[int] = []
        self.latest_epoch = NO_EPOCH
        """The last assigned leader epoch, which may have no records yet; -1 when there is none."""
        self.recorded_epoch = NO_EPOCH
        """The last leader epoch that was assigned to a record."""

    def moved_to(self, path: str) -> None:
        """Note that the file has another name now."""
        self._path = path

    def load(self) -> None:
        """Read the file, if there is one. Raises ``MalformedFileError``."""
        if self._storage.exists(self._path):
            self.restore(decode_epochs(self._path, read_checkpoint(self._storage, self._path)))

    def restore(self, entries: list[tuple[int, int]]) -> None:
        """Use the entries that the file is known to have."""
        self._set(entries)
        self.recorded_epoch = self.latest_epoch

    @property
    def entries(self) -> list[tuple[int, int]]:
        """(epoch, start offset), ascending."""
        return list(zip(self.epochs, self._starts))

    def begin(self, epoch: int, start_offset: int) -> None:
        """Note that the next records, from ``start_offset`` on, are written in ``epoch``. The file stays as it is.

        If the epoch is known or older, nothing changes.
        """
        if epoch > self.latest_epoch:
            self._set([entry for entry in self.entries if entry[1] < start_offset] + [(epoch, start_offset)])

    def assign(self, epoch: int, start_offset: int) -> None:
        """Note that the record at ``start_offset`` was written in ``epoch``, and write the file.

        If the epoch is older than the latest, or has records already, nothing changes.
        """
        if epoch <= self.recorded_epoch or epoch < self.latest_epoch:
            return
        self.begin(epoch, start_offset)
        self.recorded_epoch = epoch
        self._changed()

    def correct(self, epoch: int, start_offset: int) -> None:
        """Correct the entries from ``start_offset`` on, where the log holds a batch of ``epoch``.

        After a crash the file may be newer than the log: a truncation of the log may not have reached the disk.
        """
        if epoch != NO_EPOCH and self.epoch_for(start_offset) != epoch:
            self.truncate_from_end(start_offset)
            self.assign(epoch, start_offset)

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(largest epoch not above ``epoch``, its end offset), or (-1, -1) if ``epoch`` is above all known epochs.

        KIP-279: if ``epoch`` is below all known epochs, returns ``epoch`` and the start offset of the first known
        epoch.
        """
        if epoch == NO_EPOCH or epoch > self.latest_epoch:
            return NO_EPOCH, NO_OFFSET
        if epoch == self.latest_epoch:
            return epoch, log_end_offset
        higher = bisect_right(self.epochs, epoch)
        found = self.epochs[higher - 1] if higher else epoch
        return found, self._starts[higher]

    def epoch_for(self, offset: int) -> int:
        """The leader epoch in which the record at ``offset`` was written; -1 if it is not known."""
        index = bisect_right(self._starts, offset)
        return self.epochs[index - 1] if index else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget the epochs that begin at or above ``end_offset``."""
        kept = [entry for entry in self.entries if entry[1] < end_offset]
        if len(kept) < len(self.epochs):
            self._set(kept)
            if self.latest_epoch < self.recorded_epoch:
                self.recorded_epoch = self.latest_epoch
                self._changed()

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget the epochs that end at or below ``start_offset``. The first kept epoch then begins there."""
        index = bisect_right(self._starts, start_offset)
        if index and self._starts[index - 1] < start_offset:
            self._set([(self.epochs[index - 1], start_offset), *self.entries[index:]])
            self._changed()

    def clear(self) -> None:
        """Forget everything."""
        if self.epochs or self._storage.exists(self._path):
            self.restore([])
            self._changed()

    def save(self) -> None:
        """Write the file if an earlier write failed. Raises ``OSError``."""
        if self._dirty:
            recorded = [entry for entry in self.entries if entry[0] <= self.recorded_epoch]
            write_replace(self._storage, self._path, encode_epochs(recorded))
            self._dirty = False

    def _set(self, entries: list[tuple[int, int]]) -> None:
        self.epochs = [epoch for epoch, _ in entries]
        self._starts = [offset for _, offset in entries]
        self.latest_epoch = self.epochs[-1] if self.epochs else NO_EPOCH

    def _changed(self) -> None:
        self._dirty = True
        try:
            self.save()
        except OSError:
            return
