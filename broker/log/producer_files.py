"""The contents of a ``.snapshot`` and of the ``.producers`` file beside it, made together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from anabranch.broker.log.producer_kept import KeptProducer, PackedProducers, kept_parts, pack_producers
from anabranch.broker.log.producer_snapshot import SnapshotEntry, encode_entries, parts_of


class ProducerFiles(NamedTuple):
    """The contents of both files; empty bytes stand for no file."""

    snapshot: bytes = b""
    kept: bytes = b""


NO_FILES = ProducerFiles()


class Packed(NamedTuple):
    """Some producers of both files, encoded."""

    entries: bytes
    kept: PackedProducers


class StoredProducer(Protocol):
    """A producer whose state the files have."""

    def snapshot(self) -> list[SnapshotEntry]:
        """The producer's entries in the ``.snapshot``, as it is now."""
        ...

    def kept(self) -> KeptProducer:
        """The producer's entry in the other file, as it is now."""
        ...


def pack(producers: Sequence[StoredProducer]) -> Packed:
    """Encode some producers of both files."""
    return Packed(
        encode_entries(entry for producer in producers for entry in producer.snapshot()),
        pack_producers(producer.kept() for producer in producers),
    )


def parts_of_both(packed: Sequence[Packed]) -> tuple[list[bytes], list[bytes]]:
    """The contents of the ``.snapshot`` and of the other file, in parts."""
    snapshot = parts_of([part.entries for part in packed])
    return snapshot, kept_parts([part.kept for part in packed], snapshot[0])


def files_of(producers: Iterable[StoredProducer]) -> ProducerFiles:
    """Both files of these producers."""
    snapshot, kept = parts_of_both([pack(list(producers))])
    return ProducerFiles(b"".join(snapshot), b"".join(kept))
