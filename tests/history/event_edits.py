"""Functions for mutations of histories: choose an event, replace it, find its other copies."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from hypothesis import HealthCheck, assume, settings
from hypothesis import strategies as st

from tests.history.events import Event, StoredBatch

E = TypeVar("E")
SEEDS = st.integers(0, 2**32)
FAST = settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])


def some(events: list[Event], rng: random.Random, kind: type[E], *where: Callable[[E], Any]) -> E:
    """One of the events of a kind; the example is rejected when there is none."""
    found = [event for event in events if isinstance(event, kind) and all(condition(event) for condition in where)]
    assume(found)
    return rng.choice(found)


def replaced(events: list[Event], old: Event, *new: Event) -> list[Event]:
    at = next(at for at, event in enumerate(events) if event is old)
    return [*events[:at], *new, *events[at + 1 :]]


def changed(event: E, **fields: Any) -> E:
    return msgspec.structs.replace(event, **fields)  # type: ignore[type-var]


def copies(events: list[Event], batch: StoredBatch) -> list[StoredBatch]:
    return [e for e in events if isinstance(e, StoredBatch) and (e.tp, e.base_offset) == (batch.tp, batch.base_offset)]
