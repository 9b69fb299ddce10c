"""Mutations: rules of ordered resize switched off, one at a time or with a covering rule, in the running code."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Collection
from typing import Any

import pytest
import trio

from anabranch.broker.coordinator import offsets, position_owners
from anabranch.broker.delayed_produce import AwaitedRefusal
from anabranch.broker.handlers import offset_for_leader_epoch
from anabranch.broker.handlers.fetch_read import FetchRead
from anabranch.broker.log.producer_state import ProducerState
from anabranch.broker.replication.layout_admission import UNKNOWN
from anabranch.broker.replication.partition import Partition
from anabranch.broker.stock import producers
from anabranch.client.group.listener import PartitionKeyListener
from anabranch.client.ordered_delivery.delivery import OrderedDelivery
from anabranch.client.producer.accumulator import Accumulator
from anabranch.client.producer.placement_while_resized import TopicPlacement
from anabranch.client.producer.sender import Sender
from anabranch.controller import request_batch, view
from anabranch.controller.store import GuardedStore
from anabranch.ordered_resize import earlier_records, next_step, snapshot
from anabranch.ordered_resize.layout import Layout, Moves, moves
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.key_placement import parent
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp
from anabranch.zk_schemas.topic import TopicZnode
from tests.sim.mutations import Mutation
from tests.support.client.replaced_records import replace_records
from tests.support.resize import lineage_mutations as rules

Patch = pytest.MonkeyPatch
ORDER = ("promise",)


# ---------------------------------------------------------------- consumers


def positions_before_the_commit(patch: Patch) -> None:
    original = OrderedDelivery.report_positions

    async def report(self: Any, due: Any) -> None:
        self.config = dataclasses.replace(self.config, ordered_delivery_commit_before_report=False)
        await original(self, due)

    patch.setattr(OrderedDelivery, "report_positions", report)


def positions_without_a_flush(patch: Patch) -> None:
    async def nothing(_self: Any, _partitions: Any) -> None:
        return None

    patch.setattr(PartitionKeyListener, "maybe_revoked", nothing)


def keys_are_not_loaded(patch: Patch) -> None:
    async def nothing(_self: Any, _partitions: Any) -> None:
        return None

    patch.setattr(PartitionKeyListener, "assigned", nothing)


def a_partition_created_again_begins_at_0(patch: Patch) -> None:
    """Commits for the previous incarnation stay valid, without their leader epoch."""

    def as_committed(tp: TopicPartition, committed: Any, known: Any) -> Any:
        gone = known.merged_away(*tp)
        return None if gone else dataclasses.replace(committed, incarnation=-1, leader_epoch=-1)

    patch.setattr(TopicZnode, "base_offset", lambda *_: 0)
    patch.setattr(offsets, "committed_now", as_committed)


# ---------------------------------------------------------------- producers


def records_do_not_wait_for_unacknowledged_ones(patch: Patch) -> None:
    """The producer sends records by a new layout while older records of their keys are unacknowledged in the old one.

    If the older records are refused, they are written behind the newer records.
    """
    refuse = TopicPlacement.refuse
    placed_before: dict[str, Any] = {}

    def replace(acc: Any, topic: Any, placing: Any) -> Any:
        after = topic.next
        if after is None:
            return None
        drained: list[list[Any]] = []
        for queue in acc.queues_of(topic):
            never_sent = [batch for batch in queue.waiting if batch not in queue.outstanding]
            if queue.may_adopt:
                drained.append(queue.drain())
            else:
                drained.append(never_sent)
                queue.waiting = deque(batch for batch in queue.waiting if batch in queue.outstanding)
        if after is not topic.info:
            placed_before[topic.name] = topic.info
        replaced = replace_records(placed_before[topic.name], after, drained, placing)
        topic.advance(after)
        for partition, batches in replaced.batches.items():
            acc.queue(topic.name, partition).waiting.extend(batches)
        for batch, moved in replaced.sources:
            batch.resolve(moved=moved)
        return replaced

    def refused(self: Any, batch: Any, now_ms: float) -> bool:
        if self.next is None and batch.layout != self.layout:
            self.next = self.info
        return refuse(self, batch, now_ms)

    patch.setattr(Accumulator, "replace", replace)
    patch.setattr(TopicPlacement, "refuse", refused)


def a_batch_of_a_removed_partition_is_placed_again(patch: Patch) -> None:
    def give_up_gone(acc: Any, topic: Any) -> int:
        for queue in acc.queues_of(topic):
            for batch in queue.outstanding:
                if not batch.in_flight and topic.is_gone(queue.tp.partition, batch.incarnation):
                    batch.is_unwritten = True
        return 0

    patch.setattr(Accumulator, "give_up_gone", give_up_gone)


def a_retry_names_the_newest_layout(patch: Patch) -> None:
    original = Sender.post

    def post(self: Any, node_id: int, connection: Any, batches: list[Any]) -> None:
        for batch in batches:
            topic = self.accumulator.topics[batch.tp.topic]
            batch.layout = (topic.next or topic.info).named_layout
        original(self, node_id, connection, batches)

    patch.setattr(Sender, "post", post)


# ---------------------------------------------------------------- brokers


def layouts_are_not_compared(patch: Patch) -> None:
    patch.setattr(Layout, "takes", lambda self, partition, _named: self.counts(partition))


def closed_partitions_take_records(patch: Patch) -> None:
    original = producers.produce_admission

    def admission(key: TopicPartition, layout: Layout, *rest: Any) -> Any:
        return None if layout.closes(key.partition) else original(key, layout, *rest)

    patch.setattr(producers, "produce_admission", admission)


def one_layout_for_a_topic_on_a_broker(patch: Patch) -> None:
    newest: dict[tuple[int, str], Any] = {}

    def get(self: Any) -> Any:
        return newest.get((id(self.services), self.key.topic), UNKNOWN)

    def put(self: Any, new: Any) -> None:
        if new.layout_version >= get(self).layout_version:
            newest[id(self.services), self.key.topic] = new

    patch.setattr(Partition, "layout", property(get, put))


def layout_before_duplicates(patch: Patch) -> None:
    patch.setattr(ProducerState, "find_duplicate", lambda _self, _batch: None)


def a_parked_fetch_keeps_its_leader_epoch(patch: Patch) -> None:
    original = FetchRead.read_partition

    def read(self: Any, key: Any, state: Any, *rest: Any) -> Any:
        if self.target.delayed is not None:
            state.current_leader_epoch = -1
        return original(self, key, state, *rest)

    patch.setattr(FetchRead, "read_partition", read)


def answer_an_epochs_end_before_all_have_followed(patch: Patch) -> None:
    patch.setattr(offset_for_leader_epoch, "may_have_more", lambda *_: False)


def refuse_before_all_have_followed(patch: Patch) -> None:
    patch.setattr(AwaitedRefusal, "settle_in_term", lambda _self: True)


def an_unknown_position_counts_as_the_end(patch: Patch) -> None:
    original = position_owners.position_of

    def position_of(*of: Any) -> int:
        known = original(*of)
        return known if known >= 0 else 2**31

    patch.setattr(position_owners, "position_of", position_of)


# ---------------------------------------------------------------- controllers


def the_losers_are_those_of_the_new_count(patch: Patch) -> None:
    """A new partition gains keys only from its parent, although the parent may be new as well."""

    def by_parents(initial: int, before: int, after: int) -> Moves:
        found = moves(initial, before, after)
        if after <= before:
            return found
        losers_of = {p: (parent(p, initial),) for p in found.losers_of}
        return Moves(losers_of, frozenset(q for losers in losers_of.values() for q in losers))

    def last_epoch(snapshot: Snapshot, loser: int) -> int:
        state = snapshot.states[loser]
        return state.leader_epoch if state.before is None else state.before.leader_epoch

    patch.setattr(snapshot, "moves", by_parents)
    patch.setattr(next_step, "last_epoch", last_epoch)


def send_leaders_the_topics_layout(patch: Patch) -> None:
    original = request_batch.leader_and_isr_state

    def changed_state(index: int, topic: Any, *rest: Any) -> Any:
        state = original(index, topic, *rest)
        state.undeleted_partition_count = topic.znode.undeleted_partition_count
        state.layout_version = topic.znode.layout_version
        return state

    patch.setattr(request_batch, "leader_and_isr_state", changed_state)


def losers_need_not_answer(patch: Patch) -> None:
    patch.setattr(next_step, "losers_are_done", lambda snapshot, losers: all(map(snapshot.has_goal, losers)))


def gainers_do_not_wait_for_losers(patch: Patch) -> None:
    patch.setattr(next_step, "losers_are_done", lambda *_: True)
    patch.setattr(next_step, "last_epoch", lambda snapshot, loser: snapshot.states[loser].leader_epoch)


def a_loser_without_a_leader_counts_as_acknowledged(patch: Patch) -> None:
    def losers_are_done(snapshot: Snapshot, losers: Collection[int]) -> bool:
        return all(
            snapshot.has_goal(loser) and (loser in snapshot.answered or snapshot.states[loser].leader < 0)
            for loser in losers
        )

    patch.setattr(next_step, "losers_are_done", losers_are_done)


def a_removal_is_two_writes(patch: Patch) -> None:
    write = GuardedStore.write

    async def in_two(self: Any, ops: Any) -> list[int]:
        if not any(isinstance(op, DeleteOp) for op in ops):
            return await write(self, ops)
        versions = await write(self, ops[:1])
        await trio.sleep(1)  # pause: long enough for the controller to end; virtual time
        return versions + await write(self, ops[1:])

    patch.setattr(GuardedStore, "write", in_two)


def an_empty_partition_is_removed_unflushed(patch: Patch) -> None:
    """No live owner is asked to flush, and the result of the drain's check is ignored."""
    patch.setattr(view, "is_processed", lambda *_: True)


# ---------------------------------------------------------------- readers


def no_record_waits_for_a_loser(patch: Patch) -> None:
    patch.setattr(earlier_records, "required", lambda *_, **__: {})


def only_the_newest_entry_counts(patch: Patch) -> None:
    original = earlier_records.cap

    def cap(facts: Any, partition: int) -> int:
        known = facts.lineages.get(partition)
        if known is None:
            return -1
        facts.lineages[partition] = known._replace(entries=known.entries[-1:])
        try:
            return original(facts, partition)
        finally:
            facts.lineages[partition] = known

    patch.setattr(earlier_records, "cap", cap)


RETENTION_MUTATIONS = (
    Mutation("an expired log start opens the gate", rules.an_expired_log_start_counts_for_every_partition, ORDER),
)
RESIZE_MUTATIONS = (
    Mutation("no lineage", rules.no_lineage, ORDER, first_seed=5),
    Mutation("a revived partition gets no entry", rules.a_revived_partition_gets_no_entry, ORDER),
)
"""Rules without which a random workload must fail. Each also has a scenario in ``test_resize_scenarios.py``."""
