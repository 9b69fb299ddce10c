"""A request whose connection has ended is not decided, unless its first slice is decided already."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from anabranch.controller.active import ActiveController
from anabranch.controller.admin.dispatch import on_call
from anabranch.controller.admin.slices import ITEMS_AT_ONCE
from anabranch.controller.config import ControllerConfig
from anabranch.controller.controller_election import Office
from anabranch.controller.events import AdminCall
from anabranch.controller.metrics import ControllerMetrics
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.generated.delete_topics import DeleteTopicsRequest, DeleteTopicState
from anabranch.runtime.env import Env
from sim.clock import SimClock
from sim.network import SimFabric
from sim.zk import FakeZk
from tests.support.controller.decisions import cluster, context_of, decided

VERSION = 6


def deletion(count: int) -> DeleteTopicsRequest:
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=f"u{number}") for number in range(count)])


def decide(context: object, call: AdminCall) -> None:
    decided(on_call(context, call, (set(), set())))  # type: ignore[arg-type]


@pytest.mark.trio
async def test_a_call_is_dropped_when_the_wait_for_its_answer_ends() -> None:
    env = Env(SimClock(), SimFabric(random.Random(1)).node("controller"), random.Random(1), zk=FakeZk().session())
    config = ControllerConfig.parse({"controller.id": 1000, "zookeeper.connect": "simulated"})
    active = ActiveController(env, config, Office(1, 0), ControllerMetrics())
    call = active.submit(ApiKey.DELETE_TOPICS, deletion(1), VERSION)
    async with trio.open_nursery() as connection:
        connection.start_soon(active.answer, call)
        await trio.testing.wait_all_tasks_blocked()
        connection.cancel_scope.cancel()
    assert call.is_given_up and call.body is None
    active._refuse_undecided()
    assert not call.decided.is_set(), "the controller does not remember the call"


def test_a_call_that_is_given_up_before_its_turn_is_not_decided() -> None:
    context, call = context_of(cluster()), AdminCall(ApiKey.DELETE_TOPICS, deletion(1), VERSION)
    call.give_up()
    decide(context, call)
    assert call.outcome is None and context.events.puts == []


def test_a_call_that_has_begun_is_decided_to_its_end_and_then_needs_no_request() -> None:
    context, call = context_of(cluster()), AdminCall(ApiKey.DELETE_TOPICS, deletion(2 * ITEMS_AT_ONCE), VERSION)
    decide(context, call)
    assert call.outcome is None and context.events.puts == [call]
    call.give_up()
    decide(context, call)
    assert len(call.outcome.response.responses) == 2 * ITEMS_AT_ONCE
    assert (call.body, call.slices) == (None, None)
