"""An exported topic with one violation in each of some partitions, and where the audit has to find it."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any, TypeAlias

from anabranch.protocol.batch_builder import build_control_batch
from anabranch.protocol.batch_layout import CONTROL_COMMIT, CRC_AT, MAGIC_AT
from anabranch.protocol.compression import CompressionType
from anabranch.protocol.key_placement import place, positive_hash
from anabranch.protocol.records import RecordBatch, iter_batches
from tests.audit_history import TOPIC, History
from tests.audit_samples import T0

ATTRIBUTES_AT = 21
MAX_DECOMPRESSED_BYTES = 1 << 20
Place: TypeAlias = tuple[str, int, int | None, str | None, int | None]
Record: TypeAlias = tuple[bytes | None, bytes]


class Seeds:
    """20 -> 24 -> 20 partitions with two segments each. ``expected``: check, partition, offset, file and byte."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.expected: set[Place] = set()
        self.history = History(root, 20, index_interval_bytes=1)
        self._keys = [b"key-%d" % n for n in range(400)]
        self._of = [[key for key in self._keys if self.history.partition_of(key) == x] for x in range(20)]
        self.history.write_rounds(self._keys, 2)
        self.history.resize(24)
        self.history.write_rounds(self._keys, 2)
        self.history.resize(20)
        self.history.write_rounds(self._keys, 1)
        for log in self.history.logs.values():
            log.roll()
        self.history.write_rounds(self._keys, 2)

    def _file(self, partition: int, suffix: str = ".log", segment: int = -1, replica: bool = False) -> Path:
        name = Path(self.history.logs[partition].segments[segment].path(suffix)).name
        below = self.history.root / "replicas" / "2" if replica else self.history.root
        return below / f"{TOPIC}-{partition}" / name

    def _expect(self, check: str, partition: int, offset: int | None, file: Path | None, at: int | None) -> None:
        self.expected.add((check, partition, offset, file and file.name, at))

    def _append(self, partition: int, records: list[Record], *checks: str, **fields: Any) -> None:
        offset, position = self.history.append_unchecked(partition, records, **fields)
        for check in checks:
            self._expect(check, partition, offset, self._file(partition), position)

    def append_violations(self) -> None:
        """What a log may hold that a leader would have refused."""
        history, of = self.history, self._of
        # Two records of a key that were swapped.
        history.append(0, [(of[0][0], b"900001\tlater")])
        self._append(0, [(of[0][0], b"900000\tearlier")], "key order")
        # A record where a producer of another layout would place it.
        other = next(b"new-%d" % n for n in range(1000) if history.partition_of(b"new-%d" % n) == 2)
        self._append(1, [(other, b"900002\t")], "placement")
        # A batch that was lost: the next one's sequence shows it.
        history.batch(2, [(of[2][1], b"900003\t")])
        self._append(2, [(of[2][1], b"900004\t")], "producer sequences")
        # A batch that was written twice.
        batch = history.batch(3, [(of[3][0], b"900005\t")])
        again = RecordBatch(batch).base_sequence
        history.logs[3].append_as_leader(batch, history.epochs[3])
        self._append(3, [(of[3][0], b"900005\t")], "duplicates", "producer sequences", sequence=again)
        # A record behind the seal of a partition.
        self._append(22, [(None, b"900006\t")], "closed partitions")
        # A leader epoch that goes back; the history of epochs has another one at that offset.
        self._append(4, [(None, b"900007\t")], "leader epochs", epoch=1)
        self._expect("leader epochs", 4, dict(history.logs[4].leader_epoch_cache.entries)[1], None, None)
        # A transaction marker without a producer.
        log = history.logs[5]
        self._expect("control batches", 5, log.log_end_offset, self._file(5), log.segments[-1].size_bytes)
        log.append_as_follower(
            build_control_batch(CONTROL_COMMIT, -1, -1, 0, T0, base_offset=log.log_end_offset, leader_epoch=2)
        )

    def append_bomb(self) -> None:
        """A few kilobytes that become more than ``MAX_DECOMPRESSED_BYTES``."""
        value = b"900008\t" + bytes(2 * MAX_DECOMPRESSED_BYTES)
        self._append(17, [(None, value)], "readable batches", compression=CompressionType.GZIP)

    def damage_files(self) -> None:
        """What happens to files after they were exported."""
        self._flip(6)
        self._tear(7)
        for partition, suffix, entry, at in ((8, ".index", ">ii", 1), (9, ".timeindex", ">qi", 0)):
            self._lie(partition, suffix, struct.Struct(entry), at)
        first = self._file(10, segment=0)
        first.unlink()
        self._expect("segment files", 10, 0, first, None)
        self._expect("log ends", 10, 0, None, None)
        foreign = first.with_name("notes.txt")
        foreign.write_text("no file of a log")
        self._expect("segment files", 10, None, foreign, None)
        self._misname(13, ATTRIBUTES_AT + 1, 7)  # a codec that does not exist
        self._misname(16, MAGIC_AT, 1)
        self._diverge(11)
        self._shorten(12)

    def _changed(self, partition: int, file: Path) -> None:
        self._expect("segment files", partition, int(file.stem), file, None)

    def _last(self, file: Path) -> tuple[bytearray, RecordBatch, int]:
        """A file's bytes, its last batch and where that begins."""
        data = bytearray(file.read_bytes())
        batch = list(iter_batches(data))[-1]
        return data, batch, len(data) - batch.length

    def _flip(self, partition: int) -> None:
        file = self._file(partition)
        data, batch, at = self._last(file)
        record = batch.records()[2]
        data[data.index(record.value or b"", at)] ^= 4
        file.write_bytes(data)
        self._expect("crc", partition, record.offset, file, at)
        self._changed(partition, file)

    def _tear(self, partition: int) -> None:
        file = self._file(partition)
        data, batch, at = self._last(file)
        file.write_bytes(data[:-10])
        self._expect("readable batches", partition, None, file, at)
        self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)

    def _misname(self, partition: int, at: int, value: int) -> None:
        """A byte of the header of the last batch is another one, and the CRC is right for it."""
        file = self._file(partition)
        data, batch, position = self._last(file)
        data[position + at] = value
        struct.pack_into(">I", data, position + CRC_AT, RecordBatch(data[position:]).compute_crc())
        file.write_bytes(data)
        is_batch = at != MAGIC_AT
        self._expect("readable batches", partition, batch.base_offset if is_batch else None, file, position)
        if not is_batch:
            self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)

    def _lie(self, partition: int, suffix: str, entry: struct.Struct, number: int) -> None:
        """Lower a field of the last entry by one."""
        file = self._file(partition, suffix)
        data = bytearray(file.read_bytes())
        at = len(data) - entry.size
        fields = list(entry.unpack_from(data, at))
        fields[number] -= 1
        entry.pack_into(data, at, *fields)
        file.write_bytes(data)
        offset = int(file.stem) + fields[0 if suffix == ".index" else 1]
        self._expect("indexes", partition, offset, file, at)
        self._changed(partition, file)

    def _diverge(self, partition: int) -> None:
        """A replica's last batch has another value, and a CRC that is right for it."""
        file = self._file(partition, replica=True)
        data, batch, at = self._last(file)
        data[-2] ^= 1
        struct.pack_into(">I", data, at + CRC_AT, RecordBatch(data[at:]).compute_crc())
        file.write_bytes(data)
        self._expect("replicas", partition, batch.base_offset, file, at)
        self._changed(partition, file)

    def _shorten(self, partition: int) -> None:
        """A replica lacks its last batch, which its indexes have."""
        file = self._file(partition, replica=True)
        data, batch, at = self._last(file)
        file.write_bytes(data[:at])
        self._expect("replicas", partition, batch.base_offset, self._file(partition), at)
        self._expect("log ends", partition, batch.last_offset, None, None)
        self._changed(partition, file)
        for suffix, size in ((".index", 8), (".timeindex", 12)):
            index = self._file(partition, suffix, replica=True)
            self._expect("indexes", partition, batch.last_offset, index, index.stat().st_size - size)

    def write_consumer_log(self, path: Path) -> None:
        """A member that goes back in partition 14, and a moved key that another delivers before its older records."""
        moved = next(key for key in self._keys if self._in_24(key) >= 20)
        child = self._in_24(moved)
        parent = next(number for number, keys in enumerate(self._of) if moved in keys)
        other = next(number for number in (14, 15) if number != parent)
        lines = [("m1", other, offset, 0.0) for offset in (0, 1, 2, 1)]
        lines += [("m2", parent, offset, 10.0 + offset) for offset in range(2 * len(self._of[parent]))]
        of_child = [key for key in self._keys if self._in_24(key) == child]
        lines += [("m3", child, offset, 5.0 if key == moved else 5000.0) for offset, key in enumerate(of_child)]
        with path.open("w") as file:
            for member, partition, offset, time in lines:
                line = {"group": "g", "member": member, "partition": partition, "offset": offset, "time": T0 + time}
                file.write(json.dumps(line) + "\n")
        self._expect("consumer positions", other, 1, None, None)
        first = self._file(child, segment=0)
        self._expect("consumer key order", child, of_child.index(moved), first, 0)

    def _in_24(self, key: bytes) -> int:
        """The key's partition while the topic had 24."""
        return place(positive_hash(key), 20, 24)
