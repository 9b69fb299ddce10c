"""Tests the tools of the fault runs: the proxy, the schedule, torn tails, the pace."""

from __future__ import annotations

import random
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from confluent_kafka import TopicPartition as StockPartition

from anabranch.broker.log.checkpoint_files import encode_offsets
from anabranch.broker.log.paths import RECOVERY_POINT_CHECKPOINT
from anabranch.client.errors import KafkaTimeoutError
from anabranch.client.group.coordinator_link import OffsetAndMetadata
from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.metadata import MetadataRequest
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SetOp
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from sim.zk import FakeZk
from tests.history.events import Committed, Drained, Event, Replica, Revoked, StoredBatch, read_history
from tests.soak import disks
from tests.soak.cluster import SoakCluster
from tests.soak.faults import BROKER_KINDS, SIDE_KINDS, Faults, kill_schedule, mixed_schedule
from tests.soak.network import HOST, FaultyNetwork, sender_of
from tests.soak.recorder import Recorder
from tests.soak.resizing import Resizer
from tests.soak.workload import Pace, Progress, StockMember, value_id
from tests.support.client.commits import record_commits
from tests.support.log.batches import batch_of

TP = TopicPartition("t", 0)


@asynccontextmanager
async def echo(network_names: tuple[str, str] = ("clients", "broker-1")) -> AsyncIterator[tuple[FaultyNetwork, int]]:
    """A network with a route to an echo server."""

    async def answer(stream: trio.SocketStream) -> None:
        try:
            async for data in stream:
                await stream.send_all(data)
        except trio.BrokenResourceError:
            pass

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer, 0)
        network = FaultyNetwork(nursery)
        source, target = network_names
        port = await network.route(target, listeners[0].socket.getsockname()[1], source)
        yield network, port
        nursery.cancel_scope.cancel()


async def exchange(stream: trio.SocketStream, data: bytes) -> bytes:
    await stream.send_all(data)
    return bytes(await stream.receive_some(100))


@pytest.mark.trio
async def test_a_route_carries_bytes_both_ways() -> None:
    async with echo() as (_, port), await trio.open_tcp_stream(HOST, port) as stream:
        assert await exchange(stream, b"hello") == b"hello"


@pytest.mark.trio
async def test_a_cut_resets_open_and_new_connections_until_it_is_healed() -> None:
    async with echo() as (network, port):
        async with await trio.open_tcp_stream(HOST, port) as stream:
            assert await exchange(stream, b"1") == b"1"
            network.cut("broker-1", "clients")
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        async with await trio.open_tcp_stream(HOST, port) as stream:
            with pytest.raises(trio.BrokenResourceError):
                await stream.receive_some(1)
        network.heal("clients", "broker-1")
        async with await trio.open_tcp_stream(HOST, port) as stream:
            assert await exchange(stream, b"2") == b"2"


@pytest.mark.parametrize("stalled", [("clients", "broker-1"), ("broker-1", "clients")])
@pytest.mark.trio
async def test_a_stall_holds_one_direction_and_loses_nothing(stalled: tuple[str, str]) -> None:
    async with echo() as (network, port), await trio.open_tcp_stream(HOST, port) as stream:
        assert await exchange(stream, b"1") == b"1"
        network.stall(*stalled)
        await stream.send_all(b"2")
        with trio.move_on_after(0.05) as limit:
            await stream.receive_some(1)
        assert limit.cancelled_caught
        network.heal("clients", "broker-1")
        assert await stream.receive_some(1) == b"2"


@pytest.mark.trio
async def test_faults_between_other_nodes_do_not_affect_a_connection() -> None:
    async with echo() as (network, port), await trio.open_tcp_stream(HOST, port) as stream:
        network.cut("clients", "broker-2")
        network.stall("broker-2", "broker-1")
        network.reset("broker-1", "broker-2")
        assert await exchange(stream, b"1") == b"1"


@pytest.mark.parametrize(
    ("client_id", "name"),
    [
        ("broker-2-fetcher", "broker-2"),
        ("broker-1", "broker-1"),
        ("controller-1000", "controller-1000"),
        ("rdkafka", "clients"),
        ("broker-x", "clients"),
        (None, "clients"),
    ],
)
def test_the_sender_is_known_by_the_client_id_of_its_first_request(client_id: str | None, name: str) -> None:
    header = RequestHeader(MetadataRequest.API_KEY, 5, 1, client_id)
    request = b"".join(map(bytes, encode_request(header, MetadataRequest())))
    assert sender_of(request) == name


@pytest.mark.trio
@pytest.mark.parametrize("deliver", [True, False])
async def test_a_stuck_connection_delivers_late_what_its_client_has_sent_again(deliver: bool) -> None:
    request = b"".join(
        map(bytes, encode_request(RequestHeader(MetadataRequest.API_KEY, 5, 1, "writer"), MetadataRequest()))
    )
    arrived: list[bytes] = []
    ended = trio.Event()

    async def collect(stream: trio.SocketStream) -> None:
        index = len(arrived)
        arrived.append(b"")
        with suppress(trio.BrokenResourceError):
            async for data in stream:
                arrived[index] += bytes(data)
                await stream.send_all(b"answered")
        if index == 0:
            ended.set()

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            listeners = await nursery.start(trio.serve_tcp, collect, 0)
            network = FaultyNetwork(nursery)
            port = await network.route("broker-1", listeners[0].socket.getsockname()[1], "clients")
            old = await trio.open_tcp_stream(HOST, port)
            assert await exchange(old, request) == b"answered"
            assert network.stick(("another",), "broker-1") == network.stick(("writer",), "broker-2") == []
            stuck = network.stick(("writer",), "broker-1")
            await old.send_all(b"copy")
            await old.aclose()
            async with await trio.open_tcp_stream(HOST, port) as new:
                assert await exchange(new, b"copy") == b"answered"
            assert arrived == [request, b"copy"]
            assert network.release(stuck, deliver=deliver) == 1
            await ended.wait()
            assert arrived == [request + b"copy" * deliver, b"copy"]
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("last", "found"), [("controller: h:1: no ZooKeeper server answered within 4 s", True), ("x", False)]
)
def test_a_start_without_zookeeper_is_told_from_another_end(tmp_path: Path, last: str, found: bool) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "controller-1000.log").write_text(f"no ZooKeeper server answered\n{last}\n")
    cluster = SoakCluster(tmp_path, cast(FaultyNetwork, None), "", {}, 1, lambda name, status: None)
    assert cluster.found_no_zookeeper("controller-1000") == found


@pytest.mark.parametrize("make", [mixed_schedule, kill_schedule])
def test_a_schedule_follows_from_its_seed_and_breaks_one_broker_at_a_time(make: type) -> None:
    plans = list(islice(make(5), 500))
    assert plans == list(islice(make(5), 500)) != list(islice(make(6), 500))
    assert all(sum(plan.kind in BROKER_KINDS for plan in together) <= 1 for together in plans)
    assert all(hasattr(Faults, f"_{kind}") for kind in (*BROKER_KINDS, *SIDE_KINDS))


def test_the_schedule_has_every_kind_of_fault() -> None:
    kinds = {plan.kind for together in islice(mixed_schedule(1), 1000) for plan in together}
    assert kinds == {*BROKER_KINDS, *SIDE_KINDS}


def a_log(directory: Path, recovery_point: int) -> tuple[Path, list[bytes]]:
    (directory / "t-0").mkdir(parents=True)
    batches = [batch_of(2, base_offset=offset, leader_epoch=3) for offset in (0, 2, 4)]
    path = directory / "t-0" / f"{0:020d}.log"
    path.write_bytes(b"".join(batches))
    (directory / RECOVERY_POINT_CHECKPOINT).write_bytes(encode_offsets({TP: recovery_point}))
    return path, batches


@pytest.mark.parametrize("recovery_point", [0, 2, 6])
def test_a_torn_tail_keeps_the_synced_batches(tmp_path: Path, recovery_point: int) -> None:
    synced = recovery_point // 2
    sizes = set()
    for seed in range(20):
        path, batches = a_log(tmp_path / str(seed), recovery_point)
        torn = disks.tear_tails(tmp_path / str(seed), random.Random(seed))
        left = path.read_bytes()
        assert len(left) + torn == sum(map(len, batches))
        assert left.startswith(b"".join(batches[:synced]))
        sizes.add(len(left))
    assert (len(sizes) > 1) == (synced < len(batches))


def test_a_partition_that_is_removed_while_it_is_read_has_no_segments(tmp_path: Path) -> None:
    assert disks.segments_of(tmp_path / "t-0") == []


def test_a_log_dir_that_is_lost_while_it_is_read_has_no_segments(tmp_path: Path) -> None:
    (tmp_path / "lost").write_bytes(b"")
    assert disks.segments_of(tmp_path / "lost" / "t-0") == []


def test_a_segment_that_is_removed_while_sizes_are_read_is_left_out(tmp_path: Path) -> None:
    small, large, gone = tmp_path / "0.log", tmp_path / "1.log", tmp_path / "2.log"
    small.write_bytes(b"1")
    large.write_bytes(b"12345")
    gone.symlink_to(tmp_path / "nowhere")
    assert disks.median_size([small, large, gone]) == 5


def test_replicas_are_read_batch_by_batch(tmp_path: Path) -> None:
    _, batches = a_log(tmp_path, 0)
    replica, *stored = disks.read_replicas(tmp_path, 7, "t", 1.0)
    assert isinstance(replica, Replica) and (replica.broker, replica.log_end_offset) == (7, 6)
    assert [(b.base_offset, b.leader_epoch, len(b.values)) for b in stored if isinstance(b, StoredBatch)] == [
        (0, 3, 2),
        (2, 3, 2),
        (4, 3, 2),
    ]
    assert list(disks.read_replicas(tmp_path, 7, "another", 1.0)) == []
    assert len(stored) == len(batches)


class Watched:
    """A topic in a fake ZooKeeper with the watcher of its resizes. Partition 1 is not an initial partition."""

    def __init__(self, directory: Path) -> None:
        self._zk = FakeZk().session()
        self.recorder = Recorder(directory / "history")
        self.resizer = Resizer(directory / "cluster", self.recorder, "t", 1, [])
        self.archive = directory / "archive"

    async def create(self, *, base: int, isr: Sequence[int] = (1,)) -> int:
        """Grow to two partitions. Returns the incarnation of the new partition."""
        zk, znode = self._zk, TopicZnode(uuid.UUID(int=7), {0: [1], 1: [1]}, 1, 2, 1, {1: 3}, {1: base})
        await zk.create(TopicZnode.path("t"), znode.encode(), make_parents=True)
        for number in znode.partitions:
            state = PartitionState(1, 1, 4, [*isr])
            await zk.create(PartitionState.path("t", number), state.encode(), make_parents=True)
        return (await zk.get(PartitionState.path("t", 1))).czxid

    async def close(self) -> None:
        """Shrink to one partition. The other partition still exists."""
        znode = TopicZnode(uuid.UUID(int=7), {0: [1], 1: [1]}, 1, 1, 2, {1: 3})
        await self._zk.set(TopicZnode.path("t"), znode.encode(), -1)

    def counts(self) -> set[int | None]:
        """The counts that may be requested next."""
        rng = random.Random(7)
        return {self.resizer._next_count(rng) for _ in range(50)}

    async def remove(self, *, end: int) -> None:
        """Remove the closed partition, as the controller does."""
        znode = TopicZnode(uuid.UUID(int=7), {0: [1]}, 1, 1, 2, {1: 5}, {1: end})
        ops = [SetOp(TopicZnode.path("t"), znode.encode()), DeleteOp(PartitionState.path("t", 1))]
        await self._zk.multi(ops)

    async def look(self) -> None:
        await self.resizer._look(self._zk)

    def keep(self, incarnation: int, base: int, *batches: bytes, broker: int = 1) -> None:
        """Keep a replica's log in the archive; broker 1 is in sync."""
        directory = self.archive / f"t-1-{incarnation}" / f"broker-{broker}"
        directory.mkdir(parents=True)
        (directory / f"{base:020d}.log").write_bytes(b"".join(batches))

    def end(self) -> list[Event]:
        """All events of the history at the end."""
        self.recorder.record(*self.resizer.events(["g"]))
        self.recorder.close()
        return list(read_history(self.recorder.path))


@pytest.mark.trio
async def test_a_removed_partition_ends_where_its_in_sync_replicas_end(tmp_path: Path) -> None:
    """The topic's znode has the highest end. Records that only a replica out of sync had were never committed."""
    watched = Watched(tmp_path)
    incarnation = await watched.create(base=5)
    await watched.look()
    await watched.remove(end=9)
    watched.keep(incarnation, 5, batch_of(2, base_offset=5))
    watched.keep(incarnation, 5, batch_of(2, base_offset=5), batch_of(2, base_offset=7), broker=2)
    for _ in range(2):
        await watched.look()
    events, tp = watched.end(), TopicPartition("t", 1)
    assert [(e.tp, e.incarnation, e.end_offset) for e in events if isinstance(e, Drained)] == [(tp, incarnation, 7)]
    assert [(e.log_start_offset, e.log_end_offset) for e in events if isinstance(e, Replica)] == [(5, 7)]
    assert [e.base_offset for e in events if isinstance(e, StoredBatch)] == [5]
    assert watched.recorder.problems == []


@pytest.mark.trio
async def test_a_removed_partition_has_the_records_of_a_log_without_a_hole(tmp_path: Path) -> None:
    """A replica that lost its tail began again at the log start offset: its kept log has segments of both lives."""
    watched = Watched(tmp_path)
    incarnation = await watched.create(base=5, isr=[1, 2])
    await watched.look()
    await watched.remove(end=9)
    watched.keep(incarnation, 5, batch_of(1, base_offset=5), batch_of(2, base_offset=7))
    watched.keep(incarnation, 5, batch_of(2, base_offset=5), batch_of(2, base_offset=7), broker=2)
    for _ in range(2):
        await watched.look()
    ends = [batch.base_offset + len(batch.values) for batch in watched.end() if isinstance(batch, StoredBatch)]
    assert ends == [7, 9]
    assert watched.recorder.problems == []


@pytest.mark.trio
@pytest.mark.parametrize(("base", "problems"), [(5, 0), (3, 1)], ids=["its log was empty", "its log was not kept"])
async def test_a_log_that_never_held_a_record_ends_where_it_begins(tmp_path: Path, base: int, problems: int) -> None:
    """A partition that is created again begins at the old log's end."""
    watched = Watched(tmp_path)
    watched.keep(await watched.create(base=base), base)
    await watched.look()
    await watched.remove(end=5)
    await watched.look()
    (replica,) = [event for event in watched.end() if isinstance(event, Replica)]
    assert (replica.log_start_offset, replica.log_end_offset) == (base, base)
    assert len(watched.recorder.problems) == problems


@pytest.mark.trio
async def test_the_resizer_may_revive_a_closed_partition_but_not_create_a_removed_one(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    await watched.create(base=0)
    await watched.look()
    assert watched.counts() == {1}
    await watched.close()
    await watched.look()
    assert watched.counts() == {2, None}
    await watched.remove(end=0)
    await watched.look()
    assert watched.counts() == {None}, "a stock client may not know yet that it was removed"


def test_a_value_is_identified_by_its_text_before_the_padding() -> None:
    assert value_id(b"w-1:5....") == "w-1:5"


def test_after_a_delay_the_pace_makes_up_for_at_most_one_second() -> None:
    pace = Pace(10.0)
    assert [pace.due(100.0), pace.due(100.5), pace.due(100.55), pace.due(160.5)] == [0, 5, 0, 10]


def test_a_closed_stock_member_records_its_revocation_and_no_later_assignment(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "history")
    member = StockMember("one", "g", "127.0.0.1:1", recorder, Progress())
    member.last_generation = 3
    member._consumer.close()
    member._revoked(member._consumer, [StockPartition("t", 0)])
    member.stop.set()
    member._assigned(member._consumer, [StockPartition("t", 0)])
    recorder.close()
    (revoked,) = read_history(recorder.path)
    assert isinstance(revoked, Revoked)
    assert (revoked.member, revoked.generation, revoked.partitions) == ("one", 3, [TP])


@pytest.mark.trio
async def test_commits_that_a_consumer_makes_by_itself_are_recorded_too() -> None:
    """The consumer itself commits at a flush. If the member is lost at that time, it has not called ``commit``."""

    async def answered(offsets: Any, timeout_ms: float, **of_member: Any) -> set[TopicPartition]:
        if timeout_ms < 0:
            raise KafkaTimeoutError("no response")
        return {TP}

    link = SimpleNamespace(commit_offsets=answered, group_id="g")
    seen: list[Committed] = []
    record_commits(cast("Any", SimpleNamespace(_link=link)), "one", lambda: 5.0, seen.append)
    assert await link.commit_offsets({TP: OffsetAndMetadata(7, incarnation=3)}, 1.0, generation_id=2) == {TP}
    with pytest.raises(KafkaTimeoutError):
        await link.commit_offsets({TP: OffsetAndMetadata(9)}, -1.0)
    assert seen == [
        Committed(5.0, "g", "one", 2, TP, 7, "ok", 5.0, 3),
        Committed(5.0, "g", "one", -1, TP, 9, "unknown", 5.0),
    ]
