"""Exact state per key across resizes and rebalances: ``python examples/state_per_key.py counts.db``.

Each member counts the records of a key in memory. Before another member, or another partition, goes on with a key, the
flush callback saves the counts and the offsets behind them in one transaction. Started again, also after a crash, a
member continues from these offsets: so each record is counted once. Start as many members as you like, and resize the
topic meanwhile. Ctrl-C ends a member.
"""

import argparse
import contextlib
import os
import sqlite3
from collections.abc import Iterable

import anyio

from anabranch import Consumer, TopicPartition

SERVERS = os.environ.get("ANABRANCH_BOOTSTRAP_SERVER", "127.0.0.1:9092")
TOPIC, GROUP = "events", "counters"
SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (key BLOB PRIMARY KEY, count INTEGER);
CREATE TABLE IF NOT EXISTS offsets (partition INTEGER PRIMARY KEY, next INTEGER);
"""


class States:
    """Counts per key: in memory while they change, in a database that all members reach once they are saved."""

    def __init__(self, path: str) -> None:
        self._database = sqlite3.connect(path, timeout=30)
        self._database.executescript(SCHEMA)
        self._counts: dict[TopicPartition, dict[bytes, int]] = {}
        self._next: dict[TopicPartition, int] = {}

    def count(self, tp: TopicPartition, key: bytes, offset: int) -> None:
        if offset < self.saved_offset(tp):
            return  # counted before a crash, after which the group had no newer commit
        counts = self._counts.setdefault(tp, {})
        if key not in counts:
            row = self._database.execute("SELECT count FROM counts WHERE key = ?", [key]).fetchone()
            counts[key] = row[0] if row else 0
        counts[key] += 1
        self._next[tp] = offset + 1

    def saved_offset(self, tp: TopicPartition) -> int:
        if tp not in self._next:
            row = self._database.execute("SELECT next FROM offsets WHERE partition = ?", [tp.partition]).fetchone()
            self._next[tp] = row[0] if row else 0
        return self._next[tp]

    def save(self, partitions: Iterable[TopicPartition]) -> None:
        """Save the counts of these partitions' keys with the offsets, and forget them."""
        with self._database:  # one transaction
            for tp in partitions:
                counts = self._counts.pop(tp, {})
                self._database.executemany("REPLACE INTO counts VALUES (?, ?)", counts.items())
                if (next_offset := self._next.pop(tp, None)) is not None:
                    self._database.execute("REPLACE INTO offsets VALUES (?, ?)", [tp.partition, next_offset])

    def save_all(self) -> None:
        self.save(list(self._next))

    # A partition goes to another member, as in Kafka.
    on_partitions_revoked = save
    # Keys go to another partition.
    on_partition_key_maybe_revoked = save
    # Keys come from another one: their first records read the database.
    on_partition_key_assigned = save


async def main(path: str) -> None:
    states = States(path)
    async with Consumer(
        bootstrap_servers=SERVERS, group_id=GROUP, auto_offset_reset="earliest", enable_auto_commit=False
    ) as consumer:
        consumer.subscribe([TOPIC], listener=states, partition_key_listener=states)
        print("counting", TOPIC, flush=True)
        while True:
            for tp, records in (await consumer.getmany(timeout_ms=1_000)).items():
                for record in records:
                    states.count(tp, record.key or b"", record.offset)
            states.save_all()  # before the commit: what is committed is saved
            await consumer.commit()


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("database", help="a file that all members use")
with contextlib.suppress(KeyboardInterrupt):
    anyio.run(main, parser.parse_args().database)
