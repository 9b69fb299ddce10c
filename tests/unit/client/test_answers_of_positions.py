"""The effect of a coordinator's answers on the gates, between two polls of the user."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.client.ordered_delivery import delivery
from anabranch.client.ordered_delivery.delivery import OrderedDelivery
from anabranch.client.ordered_delivery.positions_task import AnsweredPosition, PositionAnswer
from anabranch.client.ordered_delivery.topic_gates import TopicGates
from anabranch.ordered_resize.gate import GateState
from anabranch.protocol.sentinels import NO_INCARNATION
from anabranch.protocol.types import TopicPartition
from tests.support.resize.layouts import tp
from tests.unit.client.test_topic_gates import child_that_waits


def delivery_with(monkeypatch: pytest.MonkeyPatch, gates: TopicGates) -> OrderedDelivery:
    """Return the delivery of a consumer that answers reach and that never polls."""
    any_part: Any = SimpleNamespace(
        clock=SimpleNamespace(monotonic=lambda: 0.0), on_update=lambda _: None, config=SimpleNamespace()
    )
    monkeypatch.setattr(delivery, "TopicGates", lambda: gates)
    return OrderedDelivery(any_part, any_part, any_part, any_part, any_part, None, lambda: None)


def answer(consumer: OrderedDelivery, positions: Mapping[TopicPartition, tuple[int, int]]) -> None:
    """Take an answer: by partition, the group's position, and how often it was lowered."""
    wanted = {tp: AnsweredPosition(NO_INCARNATION, at, rewinds=rewinds) for tp, (at, rewinds) in positions.items()}
    consumer._on_answer(PositionAnswer(wanted, set(wanted), {}, 0, None))


@pytest.mark.parametrize(("rewinds", "state"), [(1, GateState.DUE), (2, GateState.WAITING)])
def test_a_position_that_is_not_known_any_more_releases_only_if_it_was_not_lowered(
    monkeypatch: pytest.MonkeyPatch, rewinds: int, state: GateState
) -> None:
    gates = child_that_waits()
    consumer = delivery_with(monkeypatch, gates)
    answer(consumer, {tp(0): (5, 1)})
    answer(consumer, {tp(0): (10, 1)})
    answer(consumer, {tp(0): (-1, rewinds)})
    assert gates.look(tp(1), 0) is state
    gates.on_end(tp(0), 0, 1, 10)
    answer(consumer, {tp(0): (10, rewinds)})
    assert gates.look(tp(1), 0) is GateState.DUE


def test_the_gates_are_settled_once_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a change of the coordinator no position is known. Each settling takes as long as all held partitions."""
    gates, settled = child_that_waits(position=10), list[bool]()
    gates.on_position(tp(1), 3)
    monkeypatch.setattr(TopicGates, "settle", lambda _: settled.append(True))
    answer(delivery_with(monkeypatch, gates), {tp(0): (-1, 0), tp(1): (-1, 0)})
    assert settled == [True]
