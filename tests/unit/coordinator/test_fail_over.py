"""A random workload of three coordinators over a replicated log checks the guarantees for clients.

- An acknowledged commit is never lost, whoever leads next.
- A returned offset is never taken back: the next coordinator returns it or a later one.
- A coordinator whose leadership is over acknowledges nothing.
- A coordinator's state is the state of its log.
- Every request is answered.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.unit.coordinator.replicas import BROKERS, ReplicatedCoordinators

Event: TypeAlias = tuple[str, int]

EVENTS: dict[str, Callable[[ReplicatedCoordinators, int], None]] = {
    "commit": lambda world, _: world.commit(world.leader),
    "commit and replicate": lambda world, _: world.commit_and_replicate(),
    "commit at": lambda world, broker: world.commit(broker),
    "fetch": lambda world, _: world.fetch(world.leader),
    "fetch at": lambda world, broker: world.fetch(broker),
    "replicate": lambda world, broker: world.fetch_from_leader(broker),
    "replicate to all": lambda world, _: world.replicate_to_all(),
    "elect": lambda world, broker: world.elect(broker, others_out=False),
    "fail over": lambda world, broker: world.elect(broker, others_out=True),
    "notify": lambda world, broker: world.notify(broker),
    "notify the leader": lambda world, _: world.notify(world.leader),
    "notify all": lambda world, _: world.notify_all(),
    "shrink": lambda world, broker: world.shrink(broker),
    "grow": lambda world, broker: world.grow(broker),
    "restart": lambda world, broker: world.restart(broker),
    "deliver": lambda world, broker: world.replicas[broker].deliver(),
    "deliver at leader": lambda world, _: world.replicas[world.leader].deliver(),
    "hold reads": lambda world, broker: world.replicas[broker].hold_reads(),
    "let reads go on": lambda world, broker: world.replicas[broker].may_read.set(),
}
NAMES = [*EVENTS, "wait", *["commit and replicate", "fetch", "replicate", "deliver at leader", "notify all"] * 2]


def run_workload(events: list[Event]) -> None:
    """Run one workload: ``events`` one after the other, and everything settled at the end."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            world = ReplicatedCoordinators(nursery)
            for broker in BROKERS:
                world.epoch = 1
                world.notify(broker)
            await trio.testing.wait_all_tasks_blocked()
            for name, broker in events:
                if name == "wait":
                    await trio.sleep(6)  # virtual time: longer than offsets.commit.timeout.ms
                else:
                    EVENTS[name](world, broker)
                await trio.testing.wait_all_tasks_blocked()
                world.answers()
            await world.heal()
            nursery.cancel_scope.cancel()

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


FIRST = SETTLED = [("replicate to all", 0), ("deliver at leader", 0)]
LEADS_1 = [("elect", 1), ("notify all", 0)]
LEADS_2 = [("elect", 2), ("notify all", 0)]

RETURNED_AND_LOST = [*FIRST, ("commit", 0), ("replicate", 1), *LEADS_1, ("fetch", 0), *LEADS_2, *SETTLED, ("fetch", 0)]
COMMITTED_LATE = [*FIRST, ("commit", 0), ("wait", 0), *SETTLED, ("fetch", 0)]
READ_ACROSS_TWO_CHANGES = [
    *FIRST,
    ("commit", 0),
    ("hold reads", 1),
    *SETTLED,
    *LEADS_1,
    *LEADS_2,
    *SETTLED,
    ("commit", 0),
    *SETTLED,
    *LEADS_1,
    ("let reads go on", 1),
    *SETTLED,
    ("fetch", 0),
]
UNSEEN_EPOCHS = [
    *FIRST,
    ("fail over", 1),
    ("notify the leader", 0),
    ("notify", 2),
    *SETTLED,
    ("commit", 0),
    *SETTLED,
    ("elect", 2),
    ("notify", 2),
    ("notify", 1),
    *SETTLED,
    ("commit", 0),
    *SETTLED,
]


@settings(max_examples=200)
@given(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(BROKERS)), min_size=20, max_size=60))
@example(RETURNED_AND_LOST)
@example(COMMITTED_LATE)
@example(READ_ACROSS_TWO_CHANGES)
@example(UNSEEN_EPOCHS)
def test_no_acknowledged_commit_is_lost_and_no_returned_offset_is_taken_back(events: list[Event]) -> None:
    run_workload(events)
