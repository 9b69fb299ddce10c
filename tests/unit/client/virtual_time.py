"""A client and its fake brokers on one simulated machine, in virtual time."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from anabranch.runtime.env import Env
from sim.clock import SimClock
from sim.network import SimFabric
from sim.scheduler import run_deterministic

T = TypeVar("T")


def in_virtual_time(ask: Callable[[Env], Awaitable[T]]) -> T:
    """Run ``ask`` in an environment where a time limit does not depend on the speed of the real machine."""
    network = SimFabric(random.Random(0), delay_s=lambda: 0.001).node("here")
    return run_deterministic(0, ask, Env(SimClock(), network, random.Random(0)))
