"""Which broker a client asks next, if any broker may answer. No IO, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TypeAlias

from anabranch.client.cluster import Node

CONNECTED, UNTRIED, FAILING, SILENT = range(4)
"""The ranks of brokers. A silent broker is last, because a request to it takes its whole time limit."""
FORGIVEN_S = 30.0
"""A failure counts for this many seconds. After that the broker may be available again."""
Load: TypeAlias = tuple[int, int]
"""A rank, and within it the failures or the requests in flight. The broker with the least load is chosen."""


def load_of(*, is_silent: bool, failures: int, in_flight: Sequence[int]) -> Load:
    """The load of a broker with ``failures`` that are not forgiven, and requests in flight on each open connection."""
    if is_silent:
        return SILENT, 0
    if failures:
        return FAILING, failures
    return (CONNECTED if in_flight else UNTRIED), sum(in_flight)


def choose(known: Sequence[Node], bootstrap: Sequence[Node], load: Callable[[Node], Load], rng: Random) -> Node:
    """The least loaded broker; if none is known, or all known brokers fail, a bootstrap server too."""
    brokers = list(known)
    rng.shuffle(brokers)
    brokers.sort(key=load)
    if brokers and load(brokers[0])[0] < FAILING:
        return brokers[0]
    return min(brokers + rng.sample(bootstrap, len(bootstrap)), key=load)
