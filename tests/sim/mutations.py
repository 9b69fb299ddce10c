"""Mutations: safety rules switched off, one at a time, in the running code. The history checker must notice them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch.broker.coordinator import leadership
from anabranch.broker.coordinator.durable import DurableState
from anabranch.broker.handlers.fetch_read import FetchRead
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.replication import isr
from anabranch.broker.replication.appended import Appended
from anabranch.broker.replication.fetcher import ReplicaFetcher
from anabranch.broker.replication.partition import Partition
from anabranch.protocol.errors import ErrorCode

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Mutation:
    """``switch_off`` breaks a rule; one of the checks ``found_by`` must report it within ``seeds`` runs.

    ``first_seed`` finds the broken rule. After changes of the code a later seed may be the one that does.
    """

    name: str
    switch_off: Callable[[Patch], None]
    found_by: tuple[str, ...]
    faults: tuple[str, ...] = ()
    first_seed: int = 0
    seeds: int = 30


LOST = ("lost_acknowledged", "replicas_identical", "watermarks", "inconsistent_offsets")
TWICE = ("duplicates", "key_order")


def answer_before_replication(patch: Patch) -> None:
    patch.setattr(Appended, "outcome", lambda _self: ErrorCode.NONE)


def watermark_is_the_leaders_own_end(patch: Patch) -> None:
    patch.setattr(isr, "high_watermark", lambda local_end_offset, _waited_for, _progress: local_end_offset)


def answer_before_the_disk(patch: Patch) -> None:
    patch.setattr(Partition, "durable_end_offset", property(lambda self: self.log.log_end_offset))

    async def no_flush(self: ReplicaFetcher, appended: list[Any]) -> None:
        return None

    patch.setattr(ReplicaFetcher, "flush_appended", no_flush)
    patch.setattr(ReplicaFetcher, "unsynced", lambda self: [])


def repeated_batches_are_appended(patch: Patch) -> None:
    patch.setattr(ProducerState, "check", lambda self, batch, origin: None)


def consumers_read_above_the_watermark(patch: Patch) -> None:
    original = FetchRead.read_log

    def read(self: FetchRead, partition: Partition, state: Any, *rest: Any) -> Any:
        if self.limits.is_follower:
            return original(self, partition, state, *rest)
        log = partition.log
        return log.read(state.fetch_offset, state.max_bytes, upper_bound=log.log_end_offset, at_least_one=True)

    patch.setattr(FetchRead, "read_log", read)


def a_coordinator_loads_nothing(patch: Patch) -> None:
    async def nothing(*_: Any) -> DurableState:
        return DurableState()

    patch.setattr(leadership, "read_state", nothing)


MUTATIONS = (
    Mutation("acks=all is answered before replication", answer_before_replication, LOST, first_seed=6),
    Mutation("the watermark is the leader's own end", watermark_is_the_leaders_own_end, LOST, first_seed=12),
    Mutation("log.flush=ack is answered before the disk", answer_before_the_disk, LOST, ("power",), first_seed=3),
    Mutation("repeated batches are appended", repeated_batches_are_appended, TWICE, first_seed=12),
    Mutation("consumers read above the watermark", consumers_read_above_the_watermark, (*LOST, "polls"), first_seed=27),
    Mutation("a coordinator loads nothing", a_coordinator_loads_nothing, ("commits", "polls"), first_seed=3),
)
