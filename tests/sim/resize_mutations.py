"""Rules of ordered resize switched off, one at a time (or with the rule that covers it), in the code that runs."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

import pytest
import trio

from broker.coordinator import offsets, position_poll, positions
from broker.handlers import offset_for_leader_epoch
from broker.handlers.fetch_read import FetchRead
from broker.log.producer_state import ProducerState
from broker.replication import layout
from broker.replication.delayed_produce import AwaitedRefusal
from broker.replication.partition import Partition
from client.accumulator import Accumulator
from client.listener import PartitionKeyListener
from client.ordered_delivery.barriers import NO_LIMIT
from client.ordered_delivery.delivery import OrderedDelivery
from client.replacement import replace_records
from client.sender import Sender
from client.topic_placement import TopicPlacement, layout_of
from controller import request_batch
from controller.admin import create_partitions
from controller.resize import checks, ends, owners, plan, removal
from controller.store import GuardedStore
from protocol.key_placement import parent
from protocol.types import TopicPartition
from runtime.env import DeleteOp
from tests.gate_mutations import an_expired_log_start_counts_for_every_partition, no_creation_barrier
from tests.sim.mutations import Mutation
from zk_schemas.topic import TopicZnode

Patch = pytest.MonkeyPatch
ORDER = ("promise",)


# ---------------------------------------------------------------- consumers


def positions_before_the_commit(patch: Patch) -> None:
    original = OrderedDelivery._report

    async def report(self: Any, due: Any) -> None:
        self._config = dataclasses.replace(self._config, ordered_delivery_commit_before_report=False)
        await original(self, due)

    patch.setattr(OrderedDelivery, "_report", report)


def positions_without_a_flush(patch: Patch) -> None:
    async def nothing(_self: Any, _partitions: Any) -> None:
        return None

    patch.setattr(PartitionKeyListener, "maybe_revoked", nothing)


def keys_are_not_loaded(patch: Patch) -> None:
    async def nothing(_self: Any, _partitions: Any) -> None:
        return None

    patch.setattr(PartitionKeyListener, "assigned", nothing)


def a_partition_created_again_begins_at_0(patch: Patch) -> None:
    """And what was committed for the one before counts, without the leader epoch that it names."""

    def as_committed(tp: TopicPartition, committed: Any, known: Any) -> Any:
        gone = known.merged_away(*tp)
        return None if gone else dataclasses.replace(committed, incarnation=-1, leader_epoch=-1)

    patch.setattr(TopicZnode, "base_offset", lambda *_: 0)
    patch.setattr(offsets, "_now", as_committed)


# ---------------------------------------------------------------- producers


def nothing_waits_for_what_is_not_answered(patch: Patch) -> None:
    """Records are placed by a new layout while older ones of their keys are open at the old; refused, these follow."""
    refuse = TopicPlacement.refuse
    placed_before: dict[str, Any] = {}

    def replace(acc: Any, topic: Any, placing: Any) -> Any:
        after = topic.next
        if after is None:
            return None
        drained: list[list[Any]] = []
        for queue in topic.queues:
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


def a_batch_of_a_partition_that_is_gone_is_placed_again(patch: Patch) -> None:
    def give_up_gone(_self: Any, topic: Any) -> int:
        for queue in topic.queues:
            for batch in queue.outstanding:
                if not batch.in_flight and topic.is_gone(queue.tp.partition, batch.incarnation):
                    batch.refused = True
        return 0

    patch.setattr(Accumulator, "give_up_gone", give_up_gone)


def a_retry_names_the_newest_layout(patch: Patch) -> None:
    original = Sender._post

    def post(self: Any, node_id: int, connection: Any, batches: list[Any]) -> None:
        for batch in batches:
            topic = self._accumulator.topics[batch.tp.topic]
            batch.layout = layout_of(topic.next or topic.info)
        original(self, node_id, connection, batches)

    patch.setattr(Sender, "_post", post)


# ---------------------------------------------------------------- brokers


def counts_without_versions(patch: Patch) -> None:
    def is_same(own: Any, client: Any) -> bool:
        return bool(client.undeleted_partition_count == own.undeleted_partition_count)

    patch.setattr(layout, "_is_same", is_same)


def layouts_are_not_compared(patch: Patch) -> None:
    patch.setattr(layout, "_is_same", lambda _own, _client: True)


def marked_partitions_take_records(patch: Patch) -> None:
    original = layout._refuse_mismatch

    def refuse(partition: int, own: Any, client: Any) -> Any:
        return None if own.seals(partition) else original(partition, own, client)

    patch.setattr(layout, "_refuse_mismatch", refuse)


def one_layout_for_a_topic_on_a_broker(patch: Patch) -> None:
    newest: dict[tuple[int, str], Any] = {}

    def get(self: Any) -> Any:
        return newest.get((id(self._services), self.key.topic), layout.PartitionLayout())

    def put(self: Any, new: Any) -> None:
        if new.layout_version >= get(self).layout_version:
            newest[id(self._services), self.key.topic] = new

    patch.setattr(Partition, "layout", property(get, put))


def layout_before_duplicates(patch: Patch) -> None:
    patch.setattr(ProducerState, "find_duplicate", lambda _self, _batch: None)


def a_parked_fetch_keeps_its_layout(patch: Patch) -> None:
    original = FetchRead._check_layout

    def check_once(self: Any, key: Any, partition: Any) -> None:
        if self.target.delayed is None:
            original(self, key, partition)

    patch.setattr(FetchRead, "_check_layout", check_once)


def a_parked_fetch_keeps_its_leader_epoch(patch: Patch) -> None:
    original = FetchRead._read_partition

    def read(self: Any, key: Any, state: Any, *rest: Any) -> Any:
        if self.target.delayed is not None:
            state.current_leader_epoch = -1
        return original(self, key, state, *rest)

    patch.setattr(FetchRead, "_read_partition", read)


def a_seal_is_told_before_all_have_followed(patch: Patch) -> None:
    patch.setattr(Partition, "is_followed_to_its_end", True)


def an_epochs_end_is_told_before_all_have_followed(patch: Patch) -> None:
    patch.setattr(offset_for_leader_epoch, "_may_have_more", lambda *_: False)


def a_refusal_is_told_before_all_have_followed(patch: Patch) -> None:
    patch.setattr(AwaitedRefusal, "_has_answer", lambda _self: True)


def a_position_that_nobody_knows_is_the_end(patch: Patch) -> None:
    original = positions.position_of

    def position_of(*of: Any) -> int:
        known = original(*of)
        return known if known >= 0 else NO_LIMIT

    patch.setattr(positions, "position_of", position_of)
    patch.setattr(position_poll, "position_of", position_of)


# ---------------------------------------------------------------- controllers


def ancestors_of_the_new_count(patch: Patch) -> None:
    patch.setattr(plan, "ancestor_below", lambda partition, initial, _undeleted: parent(partition, initial))


def leaders_are_told_the_topics_layout(patch: Patch) -> None:
    original = request_batch._leader_and_isr_state

    def told(index: int, topic: Any, *rest: Any) -> Any:
        state = original(index, topic, *rest)
        state.undeleted_partition_count = topic.znode.undeleted_partition_count
        state.layout_version = topic.znode.layout_version
        return state

    patch.setattr(request_batch, "_leader_and_isr_state", told)


def a_merge_raises_the_maps_of_the_one_before(patch: Patch) -> None:
    original = plan.bumps_of_survivors

    def bumps(topic: Any, controller_epoch: int) -> list[plan.Change]:
        changes = original(topic, controller_epoch)
        for change in changes:
            before = topic.state(change.partition)
            for gone in plan.marked(topic):
                state = topic.state(gone)
                if change.partition in state.leader_epoch_before_deletion:
                    epochs = {change.partition: before.leader_epoch}
                    change.with_it[gone] = state.replace(leader_epoch_before_deletion=epochs)
        return changes

    patch.setattr(plan, "bumps_of_survivors", bumps)


def who_is_gone_has_answered(patch: Patch) -> None:
    def gainers_may_be_led(topic: Any, gainers: Sequence[int]) -> bool:
        ancestors = {a for gainer in gainers for a in topic.state(gainer).leader_epoch_after_creation}
        return all(topic.told(ancestor) or topic.state(ancestor).leader < 0 for ancestor in ancestors)

    patch.setattr(plan, "gainers_may_be_led", gainers_may_be_led)


def a_seal_is_never_lowered(patch: Patch) -> None:
    original = ends._take

    def take(context: Any, tp: Any, partition: Any, question: Any, offset: int) -> Any:
        offset = max(offset, partition.state.sealed_offset) if question is ends.OffsetQuestion.END else offset
        return original(context, tp, partition, question, offset)

    patch.setattr(ends, "_take", take)


def a_removal_is_two_writes(patch: Patch) -> None:
    write = GuardedStore.write

    async def in_two(self: Any, ops: Any) -> list[int]:
        if not any(isinstance(op, DeleteOp) for op in ops):
            return await write(self, ops)
        versions = await write(self, ops[:1])
        await trio.sleep(1)  # pause: long enough to end in; virtual time
        return versions + await write(self, ops[1:])

    async def forget(context: Any, topic: Any, run: list[int]) -> None:
        patch.setattr(GuardedStore, "write", in_two)
        try:
            await original(context, topic, run)
        finally:
            patch.setattr(GuardedStore, "write", write)

    original = removal._forget
    patch.setattr(removal, "_forget", forget)


def what_is_empty_is_removed_unflushed(patch: Patch) -> None:
    """No live owner is asked, nor what was found out by the question of a drain."""
    patch.setattr(owners, "is_processed", lambda *_: True)


def _epochs_are_recorded_beforehand(patch: Patch) -> None:
    """A new partition names its ancestor's epoch of the moment from the start."""
    records = plan.records_of_new

    def records_of_new(topic: Any, controller_epoch: int) -> list[plan.Change]:
        return [
            dataclasses.replace(
                change,
                state=change.state.replace(
                    leader_epoch_after_creation={
                        ancestor: topic.state(ancestor).leader_epoch
                        for ancestor in change.state.leader_epoch_after_creation
                    }
                ),
            )
            for change in records(topic, controller_epoch)
        ]

    patch.setattr(plan, "records_of_new", records_of_new)


def a_map_is_not_written_with_the_bump(patch: Patch) -> None:
    """It keeps the epoch that was recorded beforehand, whatever elections there were since."""
    _epochs_are_recorded_beforehand(patch)
    bumps = plan.bumps_of_losers
    patch.setattr(
        plan, "bumps_of_losers", lambda *of: [dataclasses.replace(change, with_it={}) for change in bumps(*of)]
    )


def a_higher_epoch_counts_as_bumped(patch: Patch) -> None:
    """As in the KIP: the ancestors' epochs are recorded beforehand, and only whoever has not a higher one is bumped."""
    _epochs_are_recorded_beforehand(patch)
    bumps = plan.bumps_of_losers

    def bumps_of_losers(topic: Any, controller_epoch: int) -> list[plan.Change]:
        recorded: dict[int, int] = {}
        for child in plan.new_partitions(topic):
            recorded.update(topic.state(child).leader_epoch_after_creation)
        changes = bumps(topic, controller_epoch)
        return [
            dataclasses.replace(change, with_it={})
            for change in changes
            if topic.state(change.partition).leader_epoch <= recorded.get(change.partition, NO_LIMIT)
        ]

    patch.setattr(plan, "bumps_of_losers", bumps_of_losers)


def a_resize_begins_while_another_is_unfinished(patch: Patch) -> None:
    patch.setattr(checks, "_check_settled", lambda _topic: None)
    patch.setattr(checks, "plan", SimpleNamespace(**{**vars(plan), "unborn": lambda _topic: []}))
    # The request is undone as an edit would be, and the answer says so: the harm is in an answer that does not.
    patch.setattr(create_partitions, "plan", SimpleNamespace(**{**vars(plan), "goal": lambda _topic: ANY}))


RETENTION_MUTATIONS = (
    Mutation("an expired log start opens the gate", an_expired_log_start_counts_for_every_partition, ORDER),
    Mutation("what is empty is removed unflushed", what_is_empty_is_removed_unflushed, ORDER, first_seed=11),
)
RESIZE_MUTATIONS = (Mutation("no creation barrier", no_creation_barrier, ORDER, first_seed=5),)
"""What random lives have to notice. Each rule has a play: ``test_scenes.py``, ``test_resize_scenes.py``."""
