"""Sends hostile frames to a broker and a controller, real processes, and watches them.

After each frame the process must be alive, answer another connection, have taken bounded memory, and have logged no
failed background work.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import trio

from anabranch.protocol.framing import RequestHeader, encode_request
from anabranch.protocol.generated.api_versions import ApiVersionsRequest
from anabranch.protocol.message_limits import MIB
from tests.soak.cluster import SoakCluster, run_cluster
from tests.soak.hostile import send_frame
from tests.soak.network import HOST
from tests.support.protocol.hostile_frames import random_request

FRAME_BYTES = MIB
MOST_TIMES = 16
FLAT_BYTES = 96 * MIB
"""Memory beside the request: the answer, at most 64 MiB, and what the process needs for anything."""
PROBE_LIMIT_S = 20.0
FAILED = "background.failed"
"""No request may make background work of a process fail."""
MOST_OF_A_LINE = 1_000
SESSION_TIMEOUT_MS = 18_000
"""The default: the watchdog ends a process by this time, and shall not by the load of the machine."""
START_LIMIT_S = 60.0
ONE_BROKER = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
}


@dataclass(slots=True)
class FuzzResult:
    """The number of frames by kind of end, and what was wrong, with the frame that caused it."""

    frames: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    most_bytes: dict[str, int] = field(default_factory=dict)
    """The largest growth of each process."""

    def summary(self) -> str:
        ends = ", ".join(f"{end} {count}" for end, count in sorted(self.frames.items()))
        sizes = ", ".join(f"{name} +{size // MIB} MiB" for name, size in self.most_bytes.items())
        return "\n".join([f"frames: {ends}", f"memory: {sizes}", f"{len(self.problems)} problems", *self.problems])


class Target:
    """A process under fuzz."""

    def __init__(self, cluster: SoakCluster, name: str, port: int, pid: int) -> None:
        self._cluster = cluster
        self._looked_bytes = cluster.log_size(name)
        self.name = name
        self.port = port
        self.pid = pid
        self._first_bytes = _peak_bytes(pid)

    @property
    def grown_bytes(self) -> int:
        """The growth of the process, at its highest, since the beginning."""
        return _peak_bytes(self.pid) - self._first_bytes

    def failures(self) -> list[str]:
        """The lines about failed background work that were logged since the last call."""
        begin, self._looked_bytes = self._looked_bytes, self._cluster.log_size(self.name)
        lines = self._cluster.logged_since(self.name, begin).splitlines()
        return [f"{self.name} logged {line[:MOST_OF_A_LINE]}" for line in lines if FAILED in line]

    async def answers_others(self) -> bool:
        """Whether another connection gets an answer."""
        header = RequestHeader(ApiVersionsRequest.API_KEY, 0, 1, "probe")
        probe = b"".join(encode_request(header, ApiVersionsRequest()))  # type: ignore[arg-type]
        with trio.move_on_after(PROBE_LIMIT_S), contextlib.suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream(HOST, self.port) as stream:
                await stream.send_all(probe)
                return bool(await stream.receive_some())
        return False


def _peak_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"process {pid} has no VmHWM")


async def fuzz(directory: Path, seed: int, goes_on: Callable[[int], bool]) -> FuzzResult:
    """Run a cluster of one broker and one controller, and send frames to both while ``goes_on(count)``."""
    result = FuzzResult()

    def on_death(name: str, status: int) -> None:
        result.problems.append(f"{name} ended with status {status}")

    async with trio.open_nursery() as nursery:
        async with run_cluster(
            directory,
            nursery,
            on_death=on_death,
            overrides=ONE_BROKER,
            brokers=1,
            controllers=1,
            session_timeout_ms=SESSION_TIMEOUT_MS,
        ) as cluster:
            await _fuzz(cluster, random.Random(seed), goes_on, result)
        nursery.cancel_scope.cancel()
    return result


async def _fuzz(cluster: SoakCluster, rng: random.Random, goes_on: Callable[[int], bool], result: FuzzResult) -> None:
    targets = [
        await _started(cluster, "broker-1", cluster.direct[1]),
        await _started(cluster, "controller-1000", _controller_port(cluster)),
    ]
    count = 0
    while goes_on(count) and not result.problems:
        count += 1
        what, frame = random_request(rng, FRAME_BYTES)
        for target in targets:
            result.frames[await send_frame(target.port, frame)] += 1
            if not await target.answers_others():
                result.problems.append(f"{target.name} does not answer after frame {count}: {what}")
            elif (grown := target.grown_bytes) > MOST_TIMES * FRAME_BYTES + FLAT_BYTES:
                result.problems.append(f"{target.name} took {grown // MIB} MiB by frame {count}: {what}")
            else:
                result.most_bytes[target.name] = grown
            result.problems += target.failures()
        if result.problems:
            result.problems.append(f"frame {count} had {len(frame)} bytes, at first {frame[:64].hex()}")
    result.problems += [problem for target in targets for problem in target.failures()]


async def _started(cluster: SoakCluster, name: str, port: int) -> Target:
    with trio.fail_after(START_LIMIT_S):
        while True:
            target = Target(cluster, name, port, cluster.nodes[name].child.pid)
            if await target.answers_others():
                return Target(cluster, name, port, target.pid)
            await trio.sleep(0.1)  # polls: until the process listens


def _controller_port(cluster: SoakCluster) -> int:
    text = (cluster.directory / "controller-1000.properties").read_text()
    (listener,) = (line for line in text.splitlines() if line.startswith("controller.listener="))
    return int(listener.rpartition(":")[2])
