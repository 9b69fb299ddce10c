"""The demo's resizes: their times, their partition counts, and the broker that is killed during one of them."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import trio

from anabranch import Admin, ErrorCode, KafkaError
from anabranch.local.cluster import LocalCluster
from anabranch.ordered_resize.delete_when_drained import DRAIN_KEY
from anabranch.protocol.plurals import counted
from anabranch.view.resize import wait_until_resized

RESIZE_DEADLINE_MS = 60_000
DRAIN_DEADLINE_S = 30.0
RETRY_S = 0.2
LOOK_S = 0.02
APART_S = 0.4
"""The pause between the resizes of the two topics."""


class PlannedResize(NamedTuple):
    """A resize to ``partitions``, which begins when the share ``at`` of the stream is acknowledged.

    The stream continues during the resize, but only up to the share ``until``. Thus some events are left for the new
    layout, however slow the machine is. ``kill``: a broker is killed during the resize.
    """

    at: float
    until: float
    partitions: int
    kill: bool = False


STEPS = (
    PlannedResize(0.10, 0.20, 6),
    PlannedResize(0.24, 0.34, 9),
    PlannedResize(0.38, 0.56, 6, kill=True),
    PlannedResize(0.60, 0.70, 4),
    PlannedResize(0.74, 0.82, 8),
    PlannedResize(0.86, 0.95, 4),
)
"""Steps 3 and 4 close partitions, which drain until the end of the run; step 5 opens four of these again."""


@dataclass(frozen=True, slots=True)
class Done:
    """A completed resize of the first topic, in a step that resizes all topics in turn.

    ``last_began_ns`` is the start of the last topic's resize.

    Times are of the machine's monotonic clock. ``killed`` is the killed broker's id.
    """

    partitions_before: int
    partitions: int
    began_ns: int
    last_began_ns: int
    took_s: float
    killed: int | None

    @property
    def shrinks(self) -> bool:
        return self.partitions < self.partitions_before


@dataclass(frozen=True, slots=True)
class EventStream:
    """The stream of ``events``: the count acknowledged in all topics, and a function that raises its limit."""

    events: int
    acknowledged: Callable[[], int]
    let_go_on: Callable[[int], Awaitable[None]]


class Resizer:
    """Resizes both topics by ``STEPS``: at each step one topic after the other."""

    def __init__(
        self, cluster: LocalCluster, topics: Sequence[str], stream: EventStream, report_line: Callable[[str], None]
    ) -> None:
        self._cluster = cluster
        self._topics = topics
        self._stream = stream
        self._report_line = report_line
        self._partitions = 0
        self.done: list[Done] = []

    @property
    def finished(self) -> bool:
        return len(self.done) == len(STEPS)

    async def run(self) -> None:
        """Take all steps. Raises ``CommandError`` when one is not complete in time."""
        stream = self._stream
        async with Admin(bootstrap_servers=self._cluster.bootstrap) as admin:
            for step in STEPS:
                await stream.let_go_on(math.ceil(step.until * stream.events))
                while stream.acknowledged() < math.floor(step.at * stream.events):
                    await trio.sleep(LOOK_S)
                await self._take(admin, step)
        await stream.let_go_on(stream.events)

    async def _take(self, admin: Admin, step: PlannedResize) -> None:
        topic = (await admin.describe_topics(self._topics[:1]))[self._topics[0]]
        began_ns = time.monotonic_ns()
        before = topic.undeleted_partition_count
        # The victim leads a partition that the resize closes. No controller has noticed its death when the resize
        # begins, and the resize cannot end before another broker leads that partition.
        victim = topic.partitions[step.partitions].leader if step.kill else None
        death = f", and broker {victim} is killed" if victim is not None else ""
        self._report_line(f"{before} -> {counted(step.partitions, 'partition')}{death}")
        if victim is not None:
            self._kill(victim)
        last_began_ns, took_s = await self._resize(admin, step.partitions)
        self.done.append(Done(before, step.partitions, began_ns, last_began_ns, round(took_s, 3), victim))
        self._report_line(f"{before} -> {step.partitions} partitions took {took_s:.1f} s")

    async def _resize(self, admin: Admin, partitions: int) -> tuple[int, float]:
        """Resize the topics in turn. Returns the start of the last resize, and the duration of the first in seconds."""
        began_ns, took_s = [], []
        for name in self._topics:
            began_ns.append(time.monotonic_ns())
            await _ask(admin, name, partitions)
            await wait_until_resized(admin, name, partitions, RESIZE_DEADLINE_MS)
            took_s.append((time.monotonic_ns() - began_ns[-1]) / 1e9)
            await trio.sleep(APART_S)  # otherwise both groups rebalance at the same time, and two cores are full
        return began_ns[-1], took_s[0]

    def _kill(self, broker: int) -> None:
        (plan,) = [plan for plan in self._cluster.brokers if plan.node_id == broker]
        self._cluster.kill(plan.name)


async def _ask(admin: Admin, topic: str, partitions: int) -> None:
    """Request a resize, and repeat the request while the previous resize is not complete.

    The client repeats a request whose response was lost. The controller then refuses the repeated request, because the
    topic has that count already.
    """
    deadline = trio.current_time() + RESIZE_DEADLINE_MS / 1000
    while True:
        try:
            await admin.create_partitions({topic: partitions})
            return
        except KafkaError as error:
            described = (await admin.describe_topics([topic]))[topic]
            if described.undeleted_partition_count == partitions:
                return
            if error.code is not ErrorCode.POLICY_VIOLATION or trio.current_time() > deadline:
                raise
        await trio.sleep(RETRY_S)


async def drained_after(admin: Admin, topic: str, partitions: int) -> float | None:
    """Let the controller delete the marked partitions once the group has read them.

    Returns the seconds until they were deleted; None if that takes too long.
    """
    started = trio.current_time()
    await admin.incremental_alter_configs(topics={topic: {DRAIN_KEY: "true"}})
    with trio.move_on_after(DRAIN_DEADLINE_S):
        while len((await admin.describe_topics([topic]))[topic].partitions) > partitions:
            await trio.sleep(RETRY_S)
        return round(trio.current_time() - started, 3)
    return None
