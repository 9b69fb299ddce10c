"""Stored offsets (``enable_auto_offset_store=False``) say what is processed: in commits, reports and hand-overs."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from anabranch import ConfigError, Consumer, ConsumerRecord
from anabranch.client.errors import IllegalStateError
from anabranch.client.subscription.fetched_batch import FetchedBatch
from anabranch.client.subscription.subscription import AssignedPartition
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.batch_builder import build_batch
from anabranch.protocol.records import RecordBatch
from tests.unit.client.resized_broker import CHILD, FAST, PARENT, Coordinated, Grouped, Story, member_of

STORING = {"enable_auto_offset_store": False}


def batch(base_offset: int, count: int, *, visible: bool = True) -> FetchedBatch:
    records = [(b"k", b"v", (), 0)] * count
    return FetchedBatch(RecordBatch(build_batch(records, base_offset=base_offset)), base_offset, visible=visible)


def partition(*batches: FetchedBatch) -> AssignedPartition:
    state = AssignedPartition(PARENT, stores=True)
    state.seek(0)
    for one in batches:
        state.add(one)
    return state


def test_only_records_before_the_stored_offset_are_processed() -> None:
    state = partition(batch(0, 10))
    assert state.processed == (0, -1)
    state.take(5)
    assert state.processed[0] == 0, "delivered, not stored"
    state.store(3, 0, "")
    assert (state.processed, state.position) == ((3, 0), 5)
    state.take(5)
    assert state.processed[0] == 3
    state.store(1, 0, "")
    assert state.processed[0] == 1, "a lower offset replaces a higher one"
    state.store(10, 0, "")
    assert state.processed[0] == 10


def test_offsets_without_a_record_are_processed_with_the_last_record_before_them() -> None:
    """Other partitions may wait for the end of the log, where no record is delivered."""
    state = partition(batch(0, 3), batch(3, 2, visible=False))
    state.take(3)
    assert state.take(1) == []
    assert (state.processed[0], state.position) == (0, 5)
    state.store(3, 0, "")
    assert state.processed[0] == 5, "the end of the control records"
    state.add(batch(8, 1))
    assert state.processed[0] == 8, "the end of a gap that compaction left"
    state.take(1)
    assert state.processed[0] == 8
    state.store(9, 0, "")
    assert state.processed[0] == 9


def test_a_jump_of_the_position_forgets_what_was_stored() -> None:
    state = partition(batch(0, 10))
    state.take(10)
    state.store(10, 0, "m")
    state.seek(4)
    assert (state.processed[0], state.stored_metadata) == (4, "")


def test_an_offset_of_a_record_that_was_not_delivered_is_refused() -> None:
    state = partition(batch(0, 10))
    state.take(4)
    with pytest.raises(IllegalStateError, match="t-0: offset 5 cannot be stored: only records before 4 were delivered"):
        state.check_storable(5)
    with pytest.raises(IllegalStateError, match="no record was delivered"):
        AssignedPartition(PARENT, stores=True).check_storable(0)


def test_stored_offsets_need_a_group() -> None:
    with pytest.raises(ConfigError, match="enable_auto_offset_store: needs a group_id"):
        Consumer(**STORING)  # type: ignore[arg-type]


async def test_a_commit_has_the_stored_offsets() -> None:
    broker = Coordinated()
    async with broker.running(), member_of(broker, **STORING) as consumer:
        consumer.assign([PARENT])
        await consumer.commit()
        assert broker.committed == {0: (0, 1000)} or broker.committed == {}, "nothing is stored"
        records = [await consumer.getone() for _ in range(4)]
        await consumer.commit()
        assert broker.committed.get(0, (0, 1000)) == (0, 1000)
        consumer.store_offsets(records[1])
        await consumer.commit()
        assert broker.committed[0] == (2, 1000)
        consumer.store_offsets(offsets={PARENT: (3, "three")})
        await consumer.commit()
        assert broker.committed[0] == (3, 1000)


async def test_store_offsets_refuses_what_it_cannot_store_and_stores_nothing_then() -> None:
    broker = Coordinated()
    async with broker.running(), member_of(broker, **STORING) as consumer:
        consumer.assign([PARENT])
        record = await consumer.getone()
        with pytest.raises(IllegalStateError, match="only records before 1 were delivered"):
            consumer.store_offsets(offsets={PARENT: 2})
        with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
            consumer.store_offsets(offsets={PARENT: 1, CHILD: 0})
        with pytest.raises(ValueError, match="either a message or offsets"):
            consumer.store_offsets(record, offsets={PARENT: 1})
        with pytest.raises(TypeError, match=r"message\.offset 'x' is not"):
            consumer.store_offsets(record._replace(offset="x"))  # type: ignore[arg-type]
        await consumer.commit()
        assert broker.committed.get(0, (0, 1000)) == (0, 1000)
    async with broker.running(), member_of(broker) as consumer:
        consumer.assign([PARENT])
        with pytest.raises(IllegalStateError, match="needs enable_auto_offset_store=False"):
            consumer.store_offsets(await consumer.getone())


@pytest.mark.parametrize("is_member", [True, False])
async def test_hole_18_keys_are_handed_over_when_their_records_are_stored(is_member: bool) -> None:
    """The child waits until the parent's last record is stored, however often the consumer polls."""
    story, broker = Story(), Grouped([PARENT, CHILD]) if is_member else Coordinated()
    async with broker.running(), member_of(broker, **STORING) as consumer:
        if is_member:
            consumer.subscribe(["t"], partition_key_listener=story)
        else:
            consumer.assign([PARENT, CHILD], partition_key_listener=story)
        parents: list[ConsumerRecord[Any, Any]] = []
        while len(parents) < 10:
            for tp, records in (await consumer.getmany(timeout_ms=20)).items():
                assert tp == PARENT
                parents += records
        consumer.store_offsets(parents[8])
        for _ in range(5):
            assert await consumer.poll(0.02) is None, "the last record of the parent is not processed"
        with pytest.raises(IllegalStateError, match="t-1: offset 1 cannot be stored"):
            consumer.store_offsets(offsets={CHILD: 1})
        consumer.store_offsets(parents[9])
        assert (await consumer.getone()).partition == 1
        assert broker.committed[0] == (10, 1000)
    assert ("load", [1]) in story.lines


async def test_a_store_wakes_a_consumer_that_waits_for_it() -> None:
    """One task reads, and another processes."""
    never_ms = 600_000
    broker = Coordinated()
    config = {**STORING, "session_timeout_ms": never_ms + 1, "heartbeat_interval_ms": never_ms}
    async with broker.running(), member_of(broker, **config) as consumer, anyio.create_task_group() as tasks:
        consumer.assign([PARENT, CHILD])
        parents = [await consumer.getone() for _ in range(10)]

        async def process() -> None:
            await anyio.wait_all_tasks_blocked()
            consumer.store_offsets(parents[-1])

        tasks.start_soon(process)
        record = await consumer.poll(never_ms / 1000)
        assert record is not None and record.partition == 1


async def test_an_offset_that_is_stored_again_lower_blocks_the_child_again() -> None:
    broker = Coordinated()
    async with broker.running(), member_of(broker, **STORING) as consumer:
        consumer.assign([PARENT, CHILD])
        parents = [await consumer.getone() for _ in range(10)]
        consumer.store_offsets(parents[-1])
        assert (await consumer.getone()).partition == 1
        consumer.store_offsets(parents[5])
        assert await consumer.poll(0.02) is None
        assert [wait.on for one in consumer.explain_blocked() for wait in one.waits_for] == [PARENT]
        consumer.store_offsets(parents[-1])
        assert (await consumer.getone()).partition == 1


async def test_the_automatic_commit_and_the_end_commit_stored_offsets() -> None:
    broker = Grouped([PARENT, CHILD])
    config: dict[str, Any] = {**FAST, **STORING, "auto_commit_interval_ms": 1}
    async with (
        broker.running(),
        Consumer("t", bootstrap_servers=broker.address, group_id="g", **config) as consumer,
    ):
        records = [await consumer.getone() for _ in range(6)]
        consumer.store_offsets(records[2])
        while broker.committed.get(0) != (3, 1000):
            await consumer.getmany(timeout_ms=20, max_records=1)
        consumer.store_offsets(records[3])
    assert broker.committed[0] == (4, 1000)
    assert broker.seen(ApiKey.LEAVE_GROUP)
