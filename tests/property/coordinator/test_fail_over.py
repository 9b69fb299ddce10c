"""A random workload of three coordinators over a replicated log checks the guarantees for clients.

- An acknowledged commit is never lost, whoever leads next.
- A returned offset is never taken back: the next coordinator returns the same offset or a later offset.
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
    "commit": lambda cluster, _: cluster.commit(cluster.leader),
    "commit and replicate": lambda cluster, _: cluster.commit_and_replicate(),
    "commit at": lambda cluster, broker: cluster.commit(broker),
    "fetch": lambda cluster, _: cluster.fetch(cluster.leader),
    "fetch at": lambda cluster, broker: cluster.fetch(broker),
    "replicate": lambda cluster, broker: cluster.fetch_from_leader(broker),
    "replicate to all": lambda cluster, _: cluster.replicate_to_all(),
    "elect": lambda cluster, broker: cluster.elect(broker, others_out=False),
    "fail over": lambda cluster, broker: cluster.elect(broker, others_out=True),
    "notify": lambda cluster, broker: cluster.notify(broker),
    "notify the leader": lambda cluster, _: cluster.notify(cluster.leader),
    "notify all": lambda cluster, _: cluster.notify_all(),
    "shrink": lambda cluster, broker: cluster.shrink(broker),
    "grow": lambda cluster, broker: cluster.grow(broker),
    "restart": lambda cluster, broker: cluster.restart(broker),
    "deliver": lambda cluster, broker: cluster.replicas[broker].deliver(),
    "deliver at leader": lambda cluster, _: cluster.replicas[cluster.leader].deliver(),
    "hold reads": lambda cluster, broker: cluster.replicas[broker].hold_reads(),
    "let reads continue": lambda cluster, broker: cluster.replicas[broker].may_read.set(),
}
NAMES = [*EVENTS, "wait", *["commit and replicate", "fetch", "replicate", "deliver at leader", "notify all"] * 2]


def run_workload(events: list[Event]) -> None:
    """Run the ``events`` of one workload one after the other. Then end all faults, and check that work continues."""

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            cluster = ReplicatedCoordinators(nursery)
            for broker in BROKERS:
                cluster.epoch = 1
                cluster.notify(broker)
            await trio.testing.wait_all_tasks_blocked()
            for name, broker in events:
                if name == "wait":
                    await trio.sleep(6)  # virtual time: longer than offsets.commit.timeout.ms
                else:
                    EVENTS[name](cluster, broker)
                await trio.testing.wait_all_tasks_blocked()
                cluster.answers()
            await cluster.heal()
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
    ("let reads continue", 1),
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
