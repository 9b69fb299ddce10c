"""What a hostile request costs others: ``python -m bench.hostile [--mib N]``.

Each request is sent to a broker of its own cluster, without any authentication, while another connection asks for the
broker's API versions all the time. A line says how long the other connection waited at most, how long it waited at
most before the request in the same run, and how much the broker's memory grew for each byte of the request.
"""

from __future__ import annotations

import argparse
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.generated.fetch import FetchPartition, FetchRequest, FetchTopic
from anabranch.protocol.generated.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from anabranch.protocol.generated.metadata import MetadataRequest, MetadataRequestTopic
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from anabranch.protocol.message import Message
from anabranch.testing.processes import ProcessCluster

QUIET_S = 2.0
"""The time in which the other connection is measured without the request."""
PAUSE_S = 0.005
TIMEOUT_S = 300.0


def fetch(count: int) -> Message:
    asked = [FetchPartition(partition=index, partition_max_bytes=1 << 20) for index in range(count)]
    return FetchRequest(max_bytes=1 << 20, topics=[FetchTopic(topic="unknown", partitions=asked)])


def list_offsets(count: int) -> Message:
    asked = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(count)]
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name="unknown", partitions=asked)])


def commit(count: int) -> Message:
    asked = [OffsetCommitRequestPartition(partition_index=index, committed_offset=1) for index in range(count)]
    return OffsetCommitRequest(group_id="g", topics=[OffsetCommitRequestTopic(name="unknown", partitions=asked)])


def metadata(count: int) -> Message:
    return MetadataRequest(topics=[MetadataRequestTopic(name=f"n{index}") for index in range(count)])


REQUESTS: dict[str, tuple[Callable[[int], Message], int]] = {
    "Fetch of unknown partitions": (fetch, 12),
    "ListOffsets of unknown partitions": (list_offsets, 6),
    "OffsetCommit of unknown partitions": (commit, 8),
    "Metadata of unknown topics": (metadata, 9),
}
"""How to make a request with a number of items, and its version."""


class Cost(NamedTuple):
    """Waits in seconds, and the growth of the broker's memory in bytes for each byte of the request."""

    worst_wait: float
    quiet_wait: float
    memory: float


def framed(message: Message, version: int) -> bytes:
    header = RequestHeader(message.API_KEY, version, 1, "hostile")
    return b"".join(bytes(part) for part in encode_request(header, message))  # type: ignore[arg-type]


def of_size(name: str, size: int) -> bytes:
    make, version = REQUESTS[name]
    few = len(framed(make(100), version)) / 100
    return framed(make(int(size / few)), version)


def answered(connection: socket.socket, request: bytes) -> None:
    """Send a request and read its answer; return as well if the connection is closed instead."""
    connection.sendall(request)
    left = 4
    size = b""
    while len(size) < 4:
        some = connection.recv(4 - len(size))
        if not some:
            return
        size += some
    (left,) = struct.unpack(">i", size)
    while left > 0:
        some = connection.recv(min(left, 1 << 20))
        if not some:
            return
        left -= len(some)


class Other:
    """Another connection, which asks for the API versions again and again."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address
        self._ends = threading.Event()
        self.worst = 0.0

    @contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._ask)
        thread.start()
        try:
            yield
        finally:
            self._ends.set()
            thread.join()

    def _ask(self) -> None:
        request = framed(ApiVersionsRequest(), 0)
        with socket.create_connection(self._address, TIMEOUT_S) as connection:
            while not self._ends.wait(PAUSE_S):
                begun = time.perf_counter()
                answered(connection, request)
                self.worst = max(self.worst, time.perf_counter() - begun)


def _memory(pid: int, field: str) -> int:
    """``VmRSS`` or ``VmHWM`` of a process, in bytes (Linux)."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def measure(name: str, size: int) -> Cost:
    with ProcessCluster(brokers=1) as cluster:
        host, port = cluster.bootstrap.rsplit(":", 1)
        pid = cluster.broker_pids()[1]
        request = of_size(name, size)
        other = Other((host, int(port)))
        with other.asking(), socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
            time.sleep(QUIET_S)
            quiet, other.worst = other.worst, 0.0
            before = _memory(pid, "VmRSS")
            answered(connection, request)
        grown = max(0, _memory(pid, "VmHWM") - before)
        return Cost(other.worst, quiet, grown / len(request))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.hostile", description=__doc__)
    parser.add_argument("--mib", type=float, default=8.0, help="the size of each request; 8 by default")
    size = int(parser.parse_args().mib * 1024 * 1024)
    for name in REQUESTS:
        cost = measure(name, size)
        print(
            f"{name}, {size / 1024 / 1024:g} MiB: others wait at most {1000 * cost.worst_wait:.0f} ms "
            f"({1000 * cost.quiet_wait:.0f} ms before), memory {cost.memory:.1f} bytes for each byte"
        )


if __name__ == "__main__":
    main()
