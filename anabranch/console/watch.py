"""Requests the data of open pages from the cluster.

A response is used again for ``FRESH_S``, or for ``COST_FACTOR`` times the duration of its request if that is longer.
Thus the load on brokers does not grow with the number of open pages or the size of the cluster. When the cluster does
not respond, the last response is shown with the error.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar, cast

import anyio

from anabranch import (
    Admin,
    ClusterDescription,
    KafkaError,
    KafkaTimeoutError,
    LogDirDescription,
    TopicDescription,
    TopicPartition,
)
from anabranch.client.consumer.log_reader import LogReader
from anabranch.console.history import STEP_S, ClusterSnapshot, History, sampled
from anabranch.console.owners import LastOwners, host_of
from anabranch.console.rates import READ_LEAST_S, READ_WINDOW_S, Hottest, Samples, hottest
from anabranch.console.schemas import Registry
from anabranch.console.tree import At, DrawnTree, Gain, columns_of, draw, gains_of, times_of
from anabranch.console.watched import Owner, WatchedGroup, WatchedPartition
from anabranch.view.group_lag import first_readable, timestamp_at
from anabranch.view.groups import GroupPartition, describe_groups
from anabranch.view.topics import DescribedTopic, describe_topics, existing, is_resized, known_offsets, lineages
from anabranch.view.unread import lag_of, total_lag

T = TypeVar("T")

FRESH_S = 0.8
COST_FACTOR = 10.0
MOST_BUSY = 0.045
"""The samples for charts use at most this share of a processor core."""
BROKER_ANSWERS_S = 5.0
"""The time limit for one broker's response; a slower broker is left out."""
SIZES_FRESH_S = 10.0
SILENT_S = 1.0
"""After this time without a response of any broker, a page shows the last responses."""
LOOK_S = 0.1
AWAY_S = 3.0
"""After a timeout no request is sent for this time: a page needs several requests, and must not wait for each."""
ASKED_AT_ONCE = 32
LANES, COLUMNS, GAINS = 48, 40, 400
"""Limits of the tree: partitions drawn, resizes drawn, and splits and merges examined."""
TIMED = 64
"""So many of the newest gains get a date: the time of their first record."""
FIRST_UNREAD = 64
"""For at most this many partitions of a group, the first unread record is fetched to compute the lag in seconds."""
SAMPLED, SAMPLE_FRESH_S = 200, 10.0
"""A partition's hottest key is taken from this many newest records. The result is kept for this many seconds."""
COMMITTED_LATELY_S = 600.0
"""A group whose offsets were seen to change within this time is in use, even if it has no members now."""
MOST_KEPT = 50_000
"""Samples are kept for at most this many partitions, and for at most this many partitions of groups."""
MOST_RATED = 2_000
"""A page shows rates only if its topics have at most this many partitions in all."""
MOST_RANKED, RANKED_S = 20_000, 10.0
"""Groups are ordered by lag if they have commits in at most this many partitions. The order stays for this time."""


@dataclass(slots=True)
class Seen(Generic[T]):
    """A response; ``error`` is the reason why there is no newer response."""

    value: T
    at_s: float
    took_s: float
    error: str | None = None

    @property
    def every_s(self) -> float:
        """The time until the request is sent again: a cluster that answers slowly is asked less often."""
        return max(FRESH_S, COST_FACTOR * self.took_s)


class NotThereError(Exception):
    """A topic or group that does not exist; the message names it."""


class UnreachableError(Exception):
    """The cluster has never responded to this request; the message gives the reason."""


def pause_s(took_s: float, busy_s: float) -> float:
    """The time between two samples for charts, after one that took ``took_s`` and ``busy_s`` of processor time."""
    return max(STEP_S - took_s, COST_FACTOR * took_s, busy_s / MOST_BUSY - took_s)


class Watch:
    """Sends requests to one cluster.

    ``registry`` has the schemas of its records, if one is known. ``history`` gets samples for charts, if there is one.
    """

    def __init__(
        self, admin: Admin, reader: LogReader, registry: Registry | None = None, history: History | None = None
    ) -> None:
        self.admin, self.reader, self.registry, self.history = admin, reader, registry, history
        self._seen: dict[object, Seen[Any]] = {}
        self._away, self._away_until_s = KafkaTimeoutError(""), 0.0
        self._locks: dict[object, anyio.Lock] = {}
        self._samples: dict[TopicPartition, Samples] = {}
        self._read: dict[tuple[str, TopicPartition], Samples] = {}
        self._commits: dict[str, tuple[int, float]] = {}
        """By group, the sum of its committed offsets, and the time when the sum was seen to change."""
        self._first_records_ms: dict[tuple[str, int, int], int | None] = {}
        self._unread: dict[tuple[TopicPartition, int], int | None] = {}
        self._owners = LastOwners()

    async def cached(
        self, key: object, ask: Callable[[], Awaitable[T]], fresh_s: float = FRESH_S, *, since_s: float = -math.inf
    ) -> Seen[T]:
        """The result of ``ask``, possibly an earlier one that was requested after ``since_s``.

        Raises ``UnreachableError`` when there is no result at all, or when the error cannot be retried.
        """
        async with self._locks.setdefault(key, anyio.Lock()):
            seen = cast("Seen[T] | None", self._seen.get(key))
            began = time.monotonic()
            is_fresh = seen is not None and began - seen.at_s < max(fresh_s, seen.every_s)
            if seen is not None and is_fresh and seen.at_s - seen.took_s >= since_s:
                return seen
            try:
                if began < self._away_until_s:
                    raise self._away
                value = await (ask() if seen is None else self._unless_silent(ask))
            except (KafkaError, ExceptionGroup) as failed:
                error = _single_cause(failed)
                if isinstance(error, KafkaTimeoutError) and error is not self._away:
                    self._away, self._away_until_s = error, time.monotonic() + AWAY_S
                if seen is None or not error.code.retriable:
                    raise UnreachableError(f"{error.code.name}: {error.message}") from failed
                seen.error = f"{error.code.name}: {error.message}"
                return seen
            now = time.monotonic()
            found = self._seen[key] = Seen(value, now, now - began)
            self._forget()
            return found

    async def _unless_silent(self, ask: Callable[[], Awaitable[T]]) -> T:
        """The result of ``ask``. Raises ``KafkaTimeoutError`` when no broker answers meanwhile for ``SILENT_S``."""
        found: list[T] = []
        async with anyio.create_task_group() as tasks:

            async def run() -> None:
                found.append(await ask())
                tasks.cancel_scope.cancel()

            tasks.start_soon(run)
            await anyio.sleep(SILENT_S)
            while (why := self.admin.outage(SILENT_S)) is None:
                await anyio.sleep(LOOK_S)
            raise KafkaTimeoutError(why)
        return found[0]

    def _forget(self, most: int = 2_000) -> None:
        """Drop the oldest results: a user may open the pages of 10,000 topics once."""
        while len(self._seen) > most:
            oldest = min(self._seen, key=lambda key: self._seen[key].at_s)
            del self._seen[oldest]
            if not self._locks[oldest].locked():
                del self._locks[oldest]
        kept: tuple[dict[Any, Any], ...] = (
            self._samples,
            self._read,
            self._commits,
            self._first_records_ms,
            self._unread,
        )
        for one in kept:
            while len(one) > MOST_KEPT:
                del one[next(iter(one))]

    # ------------------------------------------------------------ samples for charts

    async def sample_for_ever(self, history: History) -> None:
        """Add a sample in each step, also while no page is open. Without an answer the step is a gap."""
        while True:
            began, busy_began = time.monotonic(), time.process_time()
            with contextlib.suppress(UnreachableError, KafkaError, ExceptionGroup):
                await self._sample(history)
            await anyio.sleep(pause_s(time.monotonic() - began, time.process_time() - busy_began))

    async def _sample(self, history: History) -> None:
        seen = await self.topics()
        if seen.error is not None:
            return
        topics = {name: topic for name, topic in seen.value.items() if not topic.internal}
        names = sampled({name: len(topic.partitions) for name, topic in topics.items()})
        chosen = [topics[name] for name in names]
        ends, lags = await self.ends(chosen), await self.group_lags(chosen)
        counts = {(topic.topic_id.hex, topic.name): topic.partition_count for topic in chosen}
        history.add(ClusterSnapshot(time.monotonic(), counts, ends, lags, len(topics) - len(names)))

    # ------------------------------------------------------------ cluster and topics

    async def cluster(self) -> Seen[ClusterDescription]:
        return await self.cached("cluster", self.admin.describe_cluster)

    async def topics(self, *, since_s: float = -math.inf) -> Seen[dict[str, TopicDescription]]:
        """Every topic, from responses that were requested after ``since_s``."""

        async def ask() -> dict[str, TopicDescription]:
            names = [topic.name for topic in await self.admin.list_topics()]
            return await self.admin.describe_topics(names)

        return await self.cached("topics", ask, since_s=since_s)

    async def log_dirs(self) -> Seen[dict[int, list[LogDirDescription]]]:
        """The log directories of the brokers that respond; other brokers are among the page's problems already."""

        async def ask(broker: int) -> list[LogDirDescription]:
            return (await self.admin.describe_log_dirs([broker]))[broker]

        return await self._of_brokers("log dirs", ask)

    async def releases(self) -> Seen[dict[int, str | None]]:
        """The release of this software on each broker that responds; None for a broker of another project."""
        return await self._of_brokers("releases", self.admin.describe_release)

    async def _of_brokers(self, what: str, ask: Callable[[int], Awaitable[T]]) -> Seen[dict[int, T]]:
        async def ask_all() -> dict[int, T]:
            found: dict[int, T] = {}

            async def one(broker: int) -> None:
                with contextlib.suppress(KafkaError, TimeoutError), anyio.fail_after(BROKER_ANSWERS_S):
                    found[broker] = await ask(broker)

            async with anyio.create_task_group() as tasks:
                for node in (await self.cluster()).value.nodes:
                    tasks.start_soon(one, node.id)
            return found

        return await self.cached(what, ask_all, SIZES_FRESH_S)

    async def sizes(self) -> dict[str, int]:
        """The bytes on disk of all replicas, by topic."""
        found: dict[str, int] = {}
        for dirs in (await self.log_dirs()).value.values():
            for directory in dirs:
                for tp, replica in directory.partitions.items():
                    found[tp.topic] = found.get(tp.topic, 0) + replica.size_bytes
        return found

    async def ends(self, topics: Iterable[TopicDescription]) -> dict[TopicPartition, int]:
        """The high watermarks of the partitions with leaders; a sample of each is kept."""
        return await self._ends_of(
            [TopicPartition(topic.name, p.partition) for topic in topics for p in topic.partitions if p.leader >= 0]
        )

    async def _ends_of(self, led: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        async def ask() -> dict[TopicPartition, int]:
            found = await known_offsets(self.admin, list(led), "latest")
            now = time.monotonic()
            for tp, offset in found.items():
                self._samples.setdefault(tp, Samples()).add(now, offset)
            return found

        return (await self.cached(("ends", *led), ask)).value

    async def starts_of(self, led: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offsets of the partitions whose leaders respond. They move seldom, and are kept longer."""
        return (
            await self.cached(
                ("starts", *led), lambda: known_offsets(self.admin, list(led), "earliest"), SAMPLE_FRESH_S
            )
        ).value

    def rate(self, topic: TopicDescription) -> float | None:
        """Records a second written to the topic: the sum of the known rates of partitions, None without any."""
        rates = [self.partition_rate(topic.name, p.partition) for p in topic.partitions]
        known = [rate for rate in rates if rate is not None]
        return sum(known) if known else None

    def partition_rate(self, topic: str, partition: int) -> float | None:
        samples = self._samples.get(TopicPartition(topic, partition))
        return samples.rate if samples is not None else None

    # ------------------------------------------------------------ one topic

    async def topic(self, name: str) -> Seen[DescribedTopic]:
        async def ask() -> DescribedTopic:
            (topic,) = await describe_topics(self.admin, [name])
            now = time.monotonic()
            for row in topic.partitions:
                if row.high_watermark is not None:
                    tp = TopicPartition(name, row.partition)
                    self._samples.setdefault(tp, Samples()).add(now, row.high_watermark)
            return topic

        return await self.cached(("topic", name), ask)

    async def tree(self, topic: TopicDescription) -> DrawnTree | None:
        """The splits and merges of a topic's first ``LANES`` partitions; None when it was never resized."""
        if not is_resized(topic):
            return None

        async def ask() -> DrawnTree:
            numbers = [p.partition for p in topic.partitions][:LANES]
            known = existing(await lineages(self.admin, topic.name, numbers))
            gains = sorted(gains_of(known), key=lambda gain: gain.epoch)[-GAINS:]
            times = times_of(known)
            undated = [gain for gain in gains if (gain.partition, gain.epoch) not in times]
            times |= await self._began(topic, undated)
            in_use, initial = topic.partition_count, topic.initial_partition_count
            every = [p.partition for p in topic.partitions]
            floors = [p for p, lineage in known.items() if lineage.floor >= 0]
            return draw(every, in_use, initial, columns_of(gains, times), LANES, COLUMNS, floors)

        return (await self.cached(("tree", topic.name), ask)).value

    async def _began(self, topic: TopicDescription, gains: Collection[Gain]) -> dict[tuple[int, int], At]:
        """The time of each leader epoch's first record, by partition and epoch. The epoch began before that time.

        A known time is not requested again.
        """
        led = {p.partition for p in topic.partitions if p.leader >= 0}
        incarnation = topic.topic_id.hex
        known = self._first_records_ms
        open_ = [g for g in gains if g.partition in led and (incarnation, g.partition, g.epoch) not in known]
        limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

        async def date(gain: Gain) -> None:
            async with limiter:
                at_ms = await self._first_record_ms(TopicPartition(topic.name, gain.partition), gain.epoch)
            if at_ms is not None:
                known[incarnation, gain.partition, gain.epoch] = at_ms

        async with anyio.create_task_group() as tasks:
            for gain in open_[-TIMED:]:
                tasks.start_soon(date, gain)
        return {
            (g.partition, g.epoch): At(at_ms, is_exact=False)
            for g in gains
            if (at_ms := known.get((incarnation, g.partition, g.epoch))) is not None
        }

    async def _first_record_ms(self, tp: TopicPartition, epoch: int) -> int | None:
        try:
            with anyio.fail_after(2):
                ends = await self.admin.epoch_ends({tp: epoch - 1}, within_ms=1_000) if epoch > 0 else {}
                first = max(ends[tp].end_offset if tp in ends else 0, 0)  # the partition began with this epoch
                samples = self._samples.get(tp)
                if samples is None or first >= samples.last:
                    return None  # the epoch has no record yet
                fetched = await self.reader.fetch(tp, first)
        except (KafkaError, TimeoutError):
            return None
        return next((b.base_timestamp for b, _ in fetched.batches if b.partition_leader_epoch >= epoch), None)

    async def hottest(self, topic: str, ends: Mapping[int, int]) -> dict[int, Hottest]:
        """By partition, the most frequent key of the newest records; ``ends`` are the high watermarks."""

        async def ask() -> dict[int, Hottest]:
            found: dict[int, Hottest] = {}
            limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

            async def one(partition: int, end: int) -> None:
                first = max(0, end - SAMPLED)
                async with limiter:
                    try:
                        with anyio.fail_after(2):
                            fetched = await self.reader.fetch(TopicPartition(topic, partition), first)
                    except (KafkaError, TimeoutError):
                        return  # no leader, or the records are deleted: other columns show this
                records = (record for batch, is_read in fetched.batches if is_read for record in batch.records())
                if (sample := hottest(record.key for record in records if record.offset >= first)) is not None:
                    found[partition] = sample

            async with anyio.create_task_group() as tasks:
                for partition, end in ends.items():
                    if end > 0:
                        tasks.start_soon(one, partition, end)
            return found

        return (await self.cached(("hottest", topic, *ends), ask, SAMPLE_FRESH_S)).value

    # ------------------------------------------------------------ groups

    async def lags(self) -> Seen[dict[str, dict[TopicPartition, int]]]:
        """The committed offsets of every group."""

        async def ask() -> dict[str, dict[TopicPartition, int]]:
            found: dict[str, dict[TopicPartition, int]] = {}
            limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

            async def one(group: str) -> None:
                async with limiter:
                    committed = await self.admin.list_group_offsets(group)
                found[group] = {tp: offset.offset for tp, offset in committed.items()}
                self._note_commits(group, sum(found[group].values()))

            async with anyio.create_task_group() as tasks:
                for listing in await self.admin.list_groups():
                    tasks.start_soon(one, listing.group_id)
            return found

        return await self.cached("lags", ask)

    def _note_commits(self, group: str, offsets: int) -> None:
        before, at_s = self._commits.get(group, (offsets, -math.inf))
        self._commits[group] = (offsets, at_s if offsets == before else time.monotonic())

    def committing(self) -> set[str]:
        """The groups whose committed offsets have changed lately, while pages were open."""
        since_s = time.monotonic() - COMMITTED_LATELY_S
        return {group for group, (_, at_s) in self._commits.items() if at_s >= since_s}

    async def group_lags(self, topics: Collection[TopicDescription]) -> dict[str, dict[str, int]]:
        """The lags in records by group and topic, in topics with a committed offset of the group."""
        ends = await self.ends(topics)
        starts = await self.starts_of(list(ends))
        names = {topic.name for topic in topics}
        found: dict[str, dict[str, int]] = {}
        for group, committed in (await self.lags()).value.items():
            for tp, offset in committed.items():
                if tp.topic in names and tp in ends:
                    of_group = found.setdefault(group, {})
                    of_group[tp.topic] = of_group.get(tp.topic, 0) + lag_of(offset, starts.get(tp, 0), ends[tp])
        return found

    async def lags_in_all(self, groups: Iterable[str]) -> dict[str, int]:
        """The lags in records of these groups over all partitions with a commit, if they are known.

        Empty if the groups have commits in more than ``MOST_RATED`` partitions.
        """
        every = (await self.lags()).value
        committed = {group: every[group] for group in groups if group in every}
        led = await self._led(committed)
        if len(led) > MOST_RATED:
            return {}
        return _in_all(committed, await self.starts_of(led), await self._ends_of(led))

    async def ranks(self) -> dict[str, int] | None:
        """The rank of each group with a known lag, the largest lag first.

        The ranks stay for ``RANKED_S``: otherwise rows would move at each live update. None if the groups have commits
        in more than ``MOST_RANKED`` partitions.
        """

        async def ask() -> dict[str, int] | None:
            committed = (await self.lags()).value
            led = await self._led(committed)
            if len(led) > MOST_RANKED:
                return None
            starts = await known_offsets(self.admin, led, "earliest")
            lags = _in_all(committed, starts, await known_offsets(self.admin, led, "latest"))
            ordered = sorted(lags, key=lambda group: (-lags[group], group))
            return {group: place for place, group in enumerate(ordered)}

        return (await self.cached("ranks", ask, RANKED_S)).value

    async def _led(self, committed: Mapping[str, Mapping[TopicPartition, int]]) -> list[TopicPartition]:
        """The partitions with a leader, among the partitions in which the groups have ``committed`` offsets."""
        known = (await self.topics()).value
        found = {tp for offsets in committed.values() for tp in offsets}
        names = {tp.topic for tp in found} & known.keys()
        return sorted(
            found
            & {TopicPartition(name, p.partition) for name in names for p in known[name].partitions if p.leader >= 0}
        )

    async def worst_lags(self, topics: Collection[TopicDescription]) -> dict[str, tuple[int, str]]:
        """By topic, the largest lag of a group in records, and the group."""
        worst: dict[str, tuple[int, str]] = {}
        for group, of_topic in (await self.group_lags(topics)).items():
            for topic, lag in of_topic.items():
                worst[topic] = max(worst.get(topic, (-1, "")), (lag, group))
        return worst

    async def group(self, group_id: str) -> Seen[WatchedGroup]:
        """A group with rates and lags in seconds. Raises ``NotThereError``.

        Brokers name no owners during a rebalance. A partition without a commit is described only while it is assigned,
        so a row is added for one that had an owner before the rebalance.
        """

        async def ask() -> WatchedGroup:
            described, _ = await describe_groups(self.admin, [group_id])
            if not described:
                raise NotThereError(f"group {group_id} does not exist")
            found = described[0]
            before = self._owners.note(found, int(time.time() * 1000))
            owned = {} if before is None else before.owners
            listed = {(row.topic, row.partition) for row in found.partitions}
            rows = [*found.partitions, *(GroupPartition(*place) for place in sorted(owned.keys() - listed))]
            uncommitted = await self._uncommitted(rows)
            self._note_offsets(group_id, rows)
            ages = await self._lag_seconds(rows)
            return WatchedGroup(
                found.group,
                found.state,
                found.members,
                [member._replace(host=host_of(member.host)) for member in found.awaited_members],
                [self._watched(group_id, row, uncommitted, ages, owned) for row in rows],
                found.waits,
                uncommitted,
                None if before is None else before.seen_ms,
            )

        return await self.cached(("group", group_id), ask)

    def _note_offsets(self, group_id: str, rows: Iterable[GroupPartition]) -> None:
        """Add the ends and the commits to the samples."""
        now = time.monotonic()
        for row in rows:
            tp = TopicPartition(row.topic, row.partition)
            if row.high_watermark is not None:
                self._samples.setdefault(tp, Samples()).add(now, row.high_watermark)
            if row.committed_offset is not None:
                read = self._read.setdefault((group_id, tp), Samples(READ_WINDOW_S, READ_LEAST_S))
                read.add(now, row.committed_offset)

    def _watched(
        self,
        group_id: str,
        row: GroupPartition,
        uncommitted: Mapping[TopicPartition, int | None],
        ages: Mapping[TopicPartition, float],
        owned: Mapping[tuple[str, int], Owner],
    ) -> WatchedPartition:
        tp = TopicPartition(row.topic, row.partition)
        read = self._read.get((group_id, tp))
        return WatchedPartition(
            topic=row.topic,
            partition=row.partition,
            committed_offset=row.committed_offset,
            high_watermark=row.high_watermark,
            lag=row.lag,
            lag_s=ages.get(tp),
            at_most=uncommitted.get(tp),
            expired=row.expired,
            member=row.member,
            client_id=row.client_id,
            host=host_of(row.host),
            written_rate=self.partition_rate(*tp),
            read_rate=read.rate if read is not None else None,
            was=owned.get((row.topic, row.partition)),
        )

    async def _uncommitted(self, rows: Iterable[GroupPartition]) -> dict[TopicPartition, int | None]:
        """The records in each partition without a commit, in the topics of ``rows``. None where they are unknown."""
        known = (await self.topics()).value
        committed = {(row.topic, row.partition) for row in rows if row.committed_offset is not None}
        topics = {row.topic for row in rows}
        infos = {TopicPartition(name, p.partition): p for name in topics & known.keys() for p in known[name].partitions}
        found = sorted(infos.keys() - committed)
        led = [tp for tp in found if infos[tp].leader >= 0]
        starts = await known_offsets(self.admin, led, "earliest")
        ends = await known_offsets(self.admin, list(starts), "latest")  # not again from a silent leader
        return {tp: max(0, ends[tp] - starts[tp]) if tp in ends else None for tp in found}

    async def _lag_seconds(self, rows: Iterable[GroupPartition]) -> dict[TopicPartition, float]:
        """The age of the first readable record that is not committed, by partition. Unknown ages are left out."""
        ages = {TopicPartition(row.topic, row.partition): 0.0 for row in rows if row.lag == 0}
        limiter = anyio.CapacityLimiter(ASKED_AT_ONCE)

        async def one(row: GroupPartition) -> None:
            tp, offset = TopicPartition(row.topic, row.partition), first_readable(row)
            async with limiter:
                if (tp, offset) not in self._unread:
                    with anyio.move_on_after(2):
                        self._unread[tp, offset] = await timestamp_at(self.reader, tp, offset)
            at_ms = self._unread.get((tp, offset))
            if at_ms is not None:
                ages[tp] = max(0.0, time.time() - at_ms / 1000)

        behind = [row for row in rows if row.lag]
        async with anyio.create_task_group() as tasks:
            for row in sorted(behind, key=lambda row: -(row.lag or 0))[:FIRST_UNREAD]:
                tasks.start_soon(one, row)
        return ages

    async def existing_topic(self, name: str) -> TopicDescription:
        """The topic, from the list of all topics: a request by name might create it. Raises ``NotThereError``."""
        now = time.monotonic()
        found = (await self.topics()).value.get(name)
        if found is None:  # the topic may be newer than the list
            found = (await self.topics(since_s=now)).value.get(name)
        if found is None:
            raise NotThereError(f"topic {name} does not exist")
        return found


def _in_all(
    committed: Mapping[str, Mapping[TopicPartition, int]],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> dict[str, int]:
    """The lag of each group over the partitions with known ``ends``. Groups without such a partition are left out."""
    return {
        group: total_lag(offsets, starts, ends) for group, offsets in committed.items() if offsets.keys() & ends.keys()
    }


def _single_cause(error: BaseException) -> KafkaError:
    """The first ``KafkaError`` in nested groups of errors. An error of another kind is raised again."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if not isinstance(error, KafkaError):
        raise error
    return error


class Placed(NamedTuple):
    """The number of partitions that a broker leads and hosts."""

    leads: int
    hosts: int


def by_broker(topics: Mapping[str, TopicDescription]) -> dict[int, Placed]:
    """The partitions of each broker."""
    infos = [info for topic in topics.values() for info in topic.partitions]
    leads = Counter(info.leader for info in infos if info.leader >= 0)
    hosts = Counter(broker for info in infos for broker in info.replicas)
    return {broker: Placed(leads[broker], hosts[broker]) for broker in leads.keys() | hosts.keys()}
