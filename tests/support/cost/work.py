"""The work whose cost is counted: fixed requests to simulated brokers, by frames that were encoded before.

``python -m tests.support.cost.work`` (``make gen``) writes the counts of every work and process, per request, into a
file for this release of Python and of trio. ``--walk WORK`` prints the files that a work enters.
"""

from __future__ import annotations

import argparse
import logging
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import structlog
import trio

from anabranch.client import Admin, Consumer, NewTopic, Producer
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.framing import RequestHeader, decode_response, encode_request
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.find_coordinator import FindCoordinatorRequest
from anabranch.protocol.generated.heartbeat import HeartbeatRequest
from anabranch.protocol.generated.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from anabranch.protocol.generated.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from anabranch.runtime.env import Stream
from sim.scheduler import SimTasks, run_deterministic
from tests.sim.sim_cluster import BROKER_PORT, SimCluster
from tests.support.cost.counting import Counts, ProcessCounts

FOLDER = Path(__file__).parent
ROOT = Path(__file__).resolve().parents[3]
LIMIT_S = 120.0
"""Virtual seconds that a work may take."""
TOPIC = "cost"
WARM_UP, TIMES = 5, 10
PRODUCE, FETCH, HEARTBEAT, COMMIT = 8, 11, 3, 7
"""The versions that librdkafka uses."""
RECORDS = [(b"key-%d" % number, b"x" * 100, (), 0) for number in range(100)]
UNORDERED = {"enable.ordered.delivery": "false"}
Work = Callable[["Stage"], Awaitable[None]]


class Peer:
    """A client that only sends and receives frames."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def exchange(self, *frames: bytes) -> list[bytes]:
        """Send frames at once, and return the body of the response to each."""
        await self._stream.send(frames)
        return [await self.response() for _ in frames]

    async def response(self) -> bytes:
        (size,) = struct.unpack(">i", await self._receive(4))
        return await self._receive(size)

    async def _receive(self, size: int) -> bytes:
        found = bytearray(size)
        at = 0
        while at < size:
            at += await self._stream.receive_into(memoryview(found)[at:])
        return bytes(found)


def frame(body: Any, version: int) -> bytes:
    header = RequestHeader(api_key=body.API_KEY, api_version=version, correlation_id=1, client_id="cost")
    return b"".join(encode_request(header, body))


class Stage:
    """A simulated cluster with one topic, whose network neither delays nor splits."""

    def __init__(self, cluster: SimCluster, admin: Admin, leader: str, peer: Peer) -> None:
        self.cluster = cluster
        self.admin = admin
        self.leader = leader
        self.peer = peer
        self.found: Counts = {}
        self.files: Counts = {}
        """By process: the calls in each file of the software."""

    async def count(self, once: Callable[[], Awaitable[object]], *, clients: dict[str, SimTasks] | None = None) -> None:
        """Do the work some times, then count it."""
        for _ in range(WARM_UP):
            await once()
            await trio.sleep(0.01)  # pause: until followers are done; virtual time
        names = sorted(name for name in self.cluster.running if name.startswith("broker"))
        roles = {name: "leader" if name == self.leader else "follower" for name in names}
        counting = ProcessCounts({name: self.cluster.running[name].tasks for name in names} | (clients or {}))
        with counting.counting():
            for _ in range(TIMES):
                await once()
                await trio.sleep(0.01)  # pause: until followers are done; virtual time
        for name, found in counting.found.items():
            self.found[roles.get(name, name)] = found  # the last of the followers
            self.files[roles.get(name, name)] = counting.files[name]

    async def connect(self, machine: str) -> Peer:
        return Peer(await self.cluster.fabric.node("client").connect(machine, BROKER_PORT))

    def fetch(self, offset: int) -> bytes:
        wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=2**20)
        return frame(
            FetchRequest(
                replica_id=-1,
                max_wait_ms=500,
                min_bytes=1,
                max_bytes=2**24,
                session_id=0,
                session_epoch=-1,
                topics=[FetchTopic(topic=TOPIC, partitions=[wanted])],
            ),
            FETCH,
        )


def produce() -> bytes:
    data = PartitionProduceData(index=0, records=memoryview(build_batch(RECORDS)))
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[TopicProduceData(name=TOPIC, partition_data=[data])]
    )
    return frame(request, PRODUCE)


@asynccontextmanager
async def staged(brokers: int, configs: dict[str, str], flush: str) -> AsyncIterator[Stage]:
    async with trio.open_nursery() as nursery:
        cluster = SimCluster(nursery, seed=0)
        cluster.fabric.delay_s = lambda: 0.001
        cluster.fabric.split = lambda count: count
        await cluster.start_controller(1000)
        for broker_id in range(1, brokers + 1):
            await cluster.start_broker(
                broker_id, log_flush=flush, offsets_topic_replication_factor=1, offsets_topic_num_partitions=1
            )
        async with Admin(bootstrap_servers=cluster.bootstrap_servers, env=cluster.client_env("admin")) as admin:
            await admin.create_topics([NewTopic(TOPIC, 1, brokers, configs)])
            described = (await admin.describe_topics([TOPIC]))[TOPIC]
            leader = f"broker{described.partitions[0].leader}"
            stage = Stage(
                cluster, admin, leader, Peer(await cluster.fabric.node("client").connect(leader, BROKER_PORT))
            )
            yield stage
        await cluster.end()
        nursery.cancel_scope.cancel()


async def produces(stage: Stage) -> None:
    sent = produce()
    await stage.count(lambda: stage.peer.exchange(sent))


async def fetches(stage: Stage) -> None:
    await stage.peer.exchange(produce())
    wanted = stage.fetch(0)
    await stage.count(lambda: stage.peer.exchange(wanted))


async def completes_a_parked_fetch(stage: Stage) -> None:
    reader = await stage.connect(stage.leader)
    sent = produce()
    offset = 0

    async def once() -> None:
        nonlocal offset
        await reader._stream.send([stage.fetch(offset)])
        await trio.sleep(0.01)  # pause: until it is parked; virtual time
        await stage.peer.exchange(sent)
        await reader.response()
        offset += len(RECORDS)

    await stage.count(once)


async def asked(stage: Stage, body: Any, version: int) -> Any:
    """The response to a request, once it has no error."""
    while True:
        (answer,) = await stage.peer.exchange(frame(body, version))
        _, response = decode_response(body.API_KEY, version, memoryview(answer))
        found: Any = response
        if not getattr(found, "error_code", 0) and not any(c.error_code for c in getattr(found, "coordinators", ())):
            return found
        await trio.sleep(0.1)  # pause: virtual time


async def member(stage: Stage) -> tuple[int, str]:
    """Join a group as its only member. Returns the generation and the member id."""
    await asked(stage, FindCoordinatorRequest(coordinator_keys=["group"]), 4)
    joined = await asked(
        stage,
        JoinGroupRequest(
            group_id="group",
            session_timeout_ms=30_000,
            rebalance_timeout_ms=30_000,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        ),
        3,
    )
    assignment = SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"")
    await asked(
        stage,
        SyncGroupRequest(
            group_id="group",
            generation_id=joined.generation_id,
            member_id=joined.member_id,
            assignments=[assignment],
        ),
        3,
    )
    return joined.generation_id, joined.member_id


async def beats(stage: Stage) -> None:
    generation, member_id = await member(stage)
    sent = frame(HeartbeatRequest(group_id="group", generation_id=generation, member_id=member_id), HEARTBEAT)
    await stage.count(lambda: stage.peer.exchange(sent))


async def commits(stage: Stage) -> None:
    generation, member_id = await member(stage)
    offsets = [OffsetCommitRequestPartition(partition_index=0, committed_offset=1)]
    sent = frame(
        OffsetCommitRequest(
            group_id="group",
            generation_id=generation,
            member_id=member_id,
            topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=offsets)],
        ),
        COMMIT,
    )
    await stage.count(lambda: stage.peer.exchange(sent))


async def client_sends(stage: Stage) -> None:
    """Our producer sends a batch of records."""
    env = stage.cluster.client_env("producer")
    await _of_a_client(stage, "producer", partial(Producer, env=env, linger_ms=0), _send)


async def _send(producer: Producer) -> None:
    for key, value, _, _ in RECORDS:
        await producer.send(TOPIC, value, key)
    await producer.flush()


async def client_reads(stage: Stage) -> None:
    """Our consumer gets a batch through its gate."""
    sent = produce()
    env = stage.cluster.client_env("consumer")

    async def read(consumer: Consumer) -> None:
        await stage.peer.exchange(sent)
        records = 0
        while records < len(RECORDS):
            found = await consumer.getmany(timeout_ms=1000)
            records += sum(1 for some in found.values() for _ in some)

    def made(**config: Any) -> Consumer:
        return Consumer(group_id="readers", auto_offset_reset="earliest", env=env, **config)

    await _of_a_client(stage, "consumer", made, read)


async def _of_a_client(
    stage: Stage, name: str, make: Callable[..., Any], work: Callable[[Any], Awaitable[None]]
) -> None:
    """Count the work of a client, which runs as a simulated process."""
    tasks = SimTasks()

    async def run() -> None:
        async with make(bootstrap_servers=stage.cluster.bootstrap_servers) as client:
            if isinstance(client, Consumer):
                client.subscribe([TOPIC])
            await stage.count(lambda: work(client), clients={name: tasks})

    await tasks.run(run)


class Kind(NamedTuple):
    work: Work
    brokers: int = 1
    configs: dict[str, str] = {}
    flush: str = "os"
    """The value of ``log.flush``."""


WORKS: dict[str, Kind] = {
    "produce, one replica, unordered topic": Kind(produces, 1, UNORDERED),
    "produce, one replica": Kind(produces),
    "produce, one replica, on disk before the answer": Kind(produces, flush="ack"),
    "produce, three replicas": Kind(produces, 3, {"min.insync.replicas": "3"}),
    "fetch with data": Kind(fetches),
    "produce that completes a parked fetch": Kind(completes_a_parked_fetch),
    "heartbeat": Kind(beats),
    "commit": Kind(commits),
    "batch sent by our producer": Kind(client_sends),
    "batch read by our consumer": Kind(client_reads),
}


async def _staged(kind: Kind) -> Stage:
    async with staged(kind.brokers, kind.configs, kind.flush) as stage:
        with trio.fail_after(LIMIT_S):
            await kind.work(stage)
    return stage


def done(name: str) -> Stage:
    """The stage of a work, with its counts."""
    return run_deterministic(0, _staged, WORKS[name])


def path() -> Path:
    """The file of the counts for this release of Python and of trio."""
    python = ".".join(map(str, sys.version_info[:2]))
    return FOLDER / f"python-{python}-trio-{trio.__version__}.txt"


def lines(name: str) -> Iterator[str]:
    """One line for each count of a work, per request."""
    for process, found in sorted(done(name).found.items()):
        for what, count in sorted(found.items()):
            yield f"{name} | {process} | {what} | {count if what == 'files' else count / TIMES:g}"


def walk(name: str) -> Iterator[str]:
    """The files that a work enters, with the calls per request."""
    stage = done(name)
    for process, files in stage.files.items():
        found = stage.found[process]
        each = {what: found[what] / TIMES for what in ("calls", "changes of file", "steps")}
        yield f"{name}, {process}: {len(files)} files, {', '.join(f'{count:g} {what}' for what, count in each.items())}"
        for file, calls in files.items():
            yield f"  {Path(file).resolve().relative_to(ROOT)} {calls / TIMES:g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--walk", choices=list(WORKS), metavar="WORK", help="print the files that a work enters")
    name = parser.parse_args().walk
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    if name is not None:
        print(*walk(name), sep="\n")
    else:
        path().write_text("".join(f"{line}\n" for name in WORKS for line in lines(name)))


if __name__ == "__main__":
    main()
