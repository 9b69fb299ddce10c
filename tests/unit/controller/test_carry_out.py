"""Decisions are carried out one after the other, and each is made after the previous one."""

from __future__ import annotations

import pytest

from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import WatchedStateChanged
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import DeleteOp, SetOp, ZkError
from anabranch.zk_schemas import paths
from tests.support.controller.decisions import T0, T1, cluster, context_of, state

pytestmark = pytest.mark.trio


async def test_a_decision_is_made_from_the_image_after_the_previous_one() -> None:
    context = context_of(cluster(state(1, [1, 2])))

    def decisions() -> Decisions[int]:
        yield Effects(independent=[StateChange(T0, state(2, [2], 3))])
        found = context.image.topics["t"].state(0)
        assert found is not None
        return found.leader

    assert await carry_out_all(context, decisions()) == 2


async def test_refused_states_are_named_to_the_next_decision() -> None:
    context = context_of(cluster(state(1, [1, 2])), refused=[paths.partition_state("t", 0)])

    def decisions() -> Decisions[set[TopicPartition]]:
        return (yield Effects(independent=[StateChange(T0, state(2, [2], 3))]))

    assert await carry_out_all(context, decisions()) == {T0}


async def test_decisions_may_go_on_after_a_refused_write() -> None:
    context = context_of(cluster(state(1, [1, 2])), refused=["/bad"])

    def decisions() -> Decisions[str]:
        try:
            yield Effects(writes=[SetOp("/bad", b"")])
        except ZkError as error:
            yield Effects(writes=[SetOp("/good", b"")])
            return str(error)
        return ""

    assert "refused" in await carry_out_all(context, decisions())
    assert context.store.multis == [[SetOp("/good", b"")]]


async def test_an_error_that_the_decisions_do_not_expect_ends_them() -> None:
    context = context_of(cluster(state(1, [1, 2])), refused=["/bad"])

    def decisions() -> Decisions[None]:
        yield Effects(writes=[SetOp("/bad", b"")])
        yield Effects(writes=[SetOp("/good", b"")])

    with pytest.raises(ZkError, match="refused"):
        await carry_out_all(context, decisions())
    assert context.store.multis == []


async def test_groups_are_written_in_order_and_as_few_multis_as_fit() -> None:
    context = context_of(cluster(state(1, [1, 2])))

    def decisions() -> Decisions[None]:
        yield Effects(groups=[[DeleteOp("/a/b"), DeleteOp("/a")], [DeleteOp("/c")]])

    await carry_out_all(context, decisions())
    assert context.store.multis == [[DeleteOp("/a/b"), DeleteOp("/a"), DeleteOp("/c")]]


@pytest.mark.parametrize(("version", "is_changed"), [(7, False), (8, True)])
async def test_a_state_that_changed_before_its_watch_was_set_is_looked_at(version: int, is_changed: bool) -> None:
    context = context_of(cluster(state(1, [1, 2]), state(1, [1])))
    context.store.versions = {paths.partition_state("t", 1): version}

    def decisions() -> Decisions[None]:
        yield Effects(watches=[(T1, 7)])

    await carry_out_all(context, decisions())
    assert context.image.suspects == {paths.partition_state("t", 1)}
    assert context.events.watched == [WatchedStateChanged(T1)]
    assert context.events.puts == ([WatchedStateChanged(T1)] if is_changed else [])
