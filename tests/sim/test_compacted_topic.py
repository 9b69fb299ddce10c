"""A compacted topic is resized 3 -> 4 -> 8 -> 3 -> 6, cleaned between resizes, and read from its start in each layout.

The cluster runs in virtual time, with the real producer, cleaners and consumers. The producer also writes tombstones of
moved keys. Half of the keys are deleted at some time. A new reader gets each key in order, and ends at the last value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

import pytest
import trio

from anabranch.broker.node import Node
from anabranch.client import Consumer, ConsumerRecord, Producer
from anabranch.ordered_resize import kept_tombstones
from anabranch.ordered_resize.delete_when_drained import Marked
from anabranch.ordered_resize.lineage import EVERY_EPOCH
from anabranch.protocol.key_placement import MOVED_HEADER
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import LineageEntry
from sim.scheduler import run_deterministic
from tests.history import promise_checks, resize_checks
from tests.history.events import Acked, Sent
from tests.history.index import History
from tests.sim.faults import BROKERS
from tests.sim.recording import log_end, now_ms, replica_events, stored_batches, stored_values
from tests.sim.scenes import TOPIC, Scene
from tests.sim.sim_cluster import SimCluster
from tests.support.resize.lineage_mutations import no_lineage

KEYS = [f"key-{number}" for number in range(24)]
COUNTS = (4, 8, 3, 6)
CLEANED_SOON = {
    "cleanup_policy": "compact",
    "min_cleanable_dirty_ratio": "0.01",
    "segment_bytes": "14",
    "delete_retention_ms": "0",
}
"""Each batch gets its own segment, and all segments of a partition except the last one are cleaned."""
NUMBER = "number"
CLEANED_S = 3.0
TRIES = range(2, 12)
"""Seeds to try with a rule switched off. The first one finds every rule."""
CHECKS = (
    promise_checks.promise,
    promise_checks.callbacks,
    promise_checks.positions,
    resize_checks.routing,
    resize_checks.closed,
    resize_checks.layouts,
    resize_checks.incarnations,
)
"""The checks that are valid with compaction."""


class Table:
    """The written values of each key, and the values that readers found."""

    def __init__(self, cluster: SimCluster) -> None:
        self.cluster = cluster
        self.scene: Scene
        self.numbers = dict.fromkeys(KEYS, 0)
        self.last: dict[str, bytes] = {}
        """The last value of each key that is not deleted."""
        self.found: list[str] = []
        self.kept = 0
        """The number of tombstones that hide older values at the end of the run."""

    async def run(self, scene: Scene, producer: Producer) -> None:
        self.scene = scene
        scene.read()
        await self.write(producer, KEYS)
        await self.write(producer, KEYS, deletes=KEYS[:3])
        await self.clean(producer)
        if left := self.stored_tombstones():
            self.found.append(f"stays: no partition has older values of {left}")
        await self.read_anew("reader-3")
        for number, count in enumerate(COUNTS, 1):
            await scene.resize(count)
            some = self.cluster.rng.sample(KEYS, 12)
            await self.write(producer, some, deletes=KEYS[3 * number : 3 * number + 3])
            await self.clean(producer)
            await self.read_anew(f"reader-{count}")
        if (left := [tp.partition for tp in scene.watch.tps()]) != list(range(8)):
            self.found.append(f"removed: partitions {left} are left")
        self.kept = len(self.stored_tombstones())

    async def end(self) -> None:
        """Wait until the group has read all remaining records, and add the logs to the history."""
        disks = {broker: self.cluster.disks[f"broker{broker}"] for broker in BROKERS}
        tps = self.scene.watch.tps()
        values = set[str]().union(*(stored_values(disk, tp) for disk in disks.values() for tp in tps)) - {""}
        await self.scene.until(lambda: all(self.scene.is_delivered(value) for value in values))
        for tp in tps:
            incarnation, end = self.scene.watch.incarnation(tp), max(log_end(disk, tp) for disk in disks.values())
            for broker in self.scene.znode.partitions[tp.partition]:
                for event in replica_events(disks[broker], broker, tp, incarnation, end):
                    self.scene.recorder.add(event)

    async def write(self, producer: Producer, keys: Sequence[str], deletes: Sequence[str] = ()) -> None:
        """Write a value of each key, then tombstones. Each record is acknowledged before the next is sent."""
        for key in keys:
            self.numbers[key] += 1
            value = f"{key}:{self.numbers[key]}"
            self.scene.recorder.add(Sent(now_ms(), "writer", TOPIC, key, value))
            found = await self.send(producer, key, value.encode())
            self.scene.recorder.add(Acked(now_ms(), "writer", found[0], found[1], value))
            self.last[key] = value.encode()
        for key in deletes:
            self.numbers[key] += 1
            await self.send(producer, key, None)
            self.last.pop(key, None)

    async def send(self, producer: Producer, key: str, value: bytes | None) -> tuple[TopicPartition, int]:
        headers = [(NUMBER, b"%d" % self.numbers[key])]
        done = await producer.send_and_wait(TOPIC, value, key.encode(), headers=headers)
        return TopicPartition(TOPIC, done.partition), done.offset

    async def clean(self, producer: Producer) -> None:
        """Wait until every log is cleaned twice: the first cleaning sets the time up to which a tombstone is kept."""
        for _ in range(2):
            for partition in range(self.scene.layout.undeleted_partition_count):
                await producer.send_and_wait(TOPIC, b"", b"filler-%d" % partition, partition=partition)
            await trio.sleep(CLEANED_S)  # virtual time: for every cleaner to look at every log

    def stored_tombstones(self) -> list[str]:
        """The keys of the tombstones in the logs, without tombstones of moved keys."""
        return [
            (record.key or b"").decode()
            for tp in self.scene.watch.tps()
            for batch in stored_batches(self.cluster.disks["broker1"].mount(), tp)
            for record in (batch if not batch.is_control else ())
            if record.value is None and MOVED_HEADER not in dict(record.headers)
        ]

    async def read_anew(self, name: str) -> None:
        """A new reader reads from the beginning to the present ends."""
        given: list[ConsumerRecord] = []
        async with Consumer(
            bootstrap_servers=self.cluster.bootstrap_servers,
            env=self.cluster.client_env(name),
            auto_offset_reset="earliest",
        ) as reader:
            tps = [TopicPartition(TOPIC, partition) for partition in await reader.partitions_for_topic(TOPIC)]
            ends = await reader.end_offsets(tps)
            reader.assign(tps)
            with trio.move_on_after(60) as limit:
                while any([await reader.position(tp) < ends[tp] for tp in tps]):
                    for records in (await reader.getmany(timeout_ms=100)).values():
                        given += [record for record in records if NUMBER in dict(record.headers)]
        if limit.cancelled_caught:
            self.found.append(f"{name} hangs")
        self.judge(name, given)

    def judge(self, name: str, given: list[ConsumerRecord]) -> None:
        numbers, table = dict.fromkeys(KEYS, 0), dict[str, bytes | None]()
        for record in given:
            key, number = (record.key or b"").decode(), int(dict(record.headers)[NUMBER] or b"")
            if number <= numbers[key]:
                self.found.append(f"{name}: order: {key} goes from {numbers[key]} to {number}")
            numbers[key], table[key] = number, record.value
        made = {key: value for key, value in table.items() if value is not None}
        for key in KEYS:
            if made.get(key) != self.last.get(key):
                self.found.append(f"{name}: latest: {key} is {made.get(key)!r} and not {self.last.get(key)!r}")


async def _run_scenario(seed: int) -> Table:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed)
        scene, table = Scene(cluster, nursery), Table(cluster)
        scene.broker_keys["log_cleaner_backoff_ms"] = 100
        try:
            await scene.start(3)
            await scene.configure(**CLEANED_SOON)
            await trio.sleep(1)  # virtual time: until the brokers use the configuration
            async with Producer(
                bootstrap_servers=cluster.bootstrap_servers, env=cluster.client_env("writer"), metadata_max_age_ms=1000
            ) as producer:
                await table.run(scene, producer)
            await table.end()
        finally:
            with trio.CancelScope(shield=True):
                scene.stop()
                await cluster.end()
        history = History(scene.recorder.events)
        table.found += [violation.check for check in CHECKS for violation in check(history)]
        return table


def run_scenario(seed: int) -> Table:
    """Run the scenario; returns the written values, and the violations."""
    return run_deterministic(seed, partial(_run_scenario, seed))


@pytest.mark.parametrize("seed", range(2))
def test_hole_24_a_reader_from_the_beginning_ends_at_the_newest_value_of_each_key(seed: int) -> None:
    table = run_scenario(seed)
    assert table.found == []
    assert table.kept > 0, "no tombstone hides an older value"


# ---------------------------------------------------------------- each rule switched off


def tombstones_go_after_their_time(patch: pytest.MonkeyPatch) -> None:
    async def every_epoch(_node: Node, _tp: TopicPartition) -> int:
        return EVERY_EPOCH

    patch.setattr(Node, "first_kept_epoch", every_epoch)


def survivors_keep_no_tombstones(patch: pytest.MonkeyPatch) -> None:
    """The lineage entries of shrinks, which name partitions 3 and above here, keep no tombstones."""
    original = kept_tombstones.first_kept_epoch

    def of_grows(entries: Iterable[LineageEntry], as_of: int, over: Mapping[int, int]) -> int:
        return original([entry for entry in entries if min(entry.losers) < 3], as_of, over)

    patch.setattr(kept_tombstones, "first_kept_epoch", of_grows)


def marked_partitions_are_drained(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Marked, "of", lambda _values: Marked.DRAINED)


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        (tombstones_go_after_their_time, "latest"),
        (survivors_keep_no_tombstones, "latest"),
        (marked_partitions_are_drained, "latest"),
        (no_lineage, "order"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
@pytest.mark.mutation
def test_hole_24_a_check_fails_when_a_rule_is_switched_off(
    rule: Callable[[pytest.MonkeyPatch], None], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule(monkeypatch)
    seen = []
    for seed in TRIES:
        broken = run_scenario(seed).found
        if any(f": {found}: " in line for line in broken):
            return
        seen.append(broken)
    pytest.fail(f"{found} reported nothing: {seen}")
