"""Late requests, and removals that are not first written to ZooKeeper. Each scenario runs with its rule on and off.

Late requests bypass the checks of the controller's and the broker's epoch, which refuse most of them. As in the model,
the other rules must work without these checks.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
import trio

from anabranch.broker.link.lineage_reader import NOTHING_READ, LineageReader
from anabranch.broker.replication import replica_manager
from anabranch.broker.replication.replica_manager import Ended, ReplicaManager
from anabranch.controller import carry_out
from anabranch.controller.context import Context
from anabranch.controller.effects import Effects
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionLayout
from tests.sim.faults import BROKERS
from tests.sim.scenes import TOPIC, Scene, stage
from tests.support.resize.lineage_mutations import (
    a_recreated_partition_begins_at_epoch_0,
    batches_newer_than_the_known_lineage_are_delivered,
)

Patch = pytest.MonkeyPatch
SwitchOff = Callable[[Patch], None]
LITTLE_S = 3.0
LONG = 60
TRIES = 5
"""The number of schedules for a scenario with its rule off: in some schedules no check fails."""
MEMBERS = ("one", "two")

# ---------------------------------------------------------------- late requests


class Order(NamedTuple):
    """A broker's request for one partition: ``apply`` is a LeaderAndIsr, ``stop`` a StopReplica."""

    broker: ReplicaManager
    name: str
    arguments: tuple[Any, ...]


class Late:
    """Keeps the requests to brokers and the responses with lineages, to deliver them again later."""

    def __init__(self, patch: Patch) -> None:
        self._orders: list[Order] = []
        self._maps: dict[TopicPartition, Any] = {}
        """By partition: the last response to request 25301."""
        self.maps: dict[TopicPartition, Any] = {}
        """By partition: an old response to request 25301 that is delivered instead of the current response."""
        for name in ("apply", "stop"):
            self._keep_orders(patch, name)
        self._keep_maps(patch)

    def _keep_orders(self, patch: Patch, name: str) -> None:
        original = getattr(ReplicaManager, name)

        def received(broker: ReplicaManager, topic: str, *arguments: Any) -> Any:
            if topic == TOPIC:
                self._orders.append(Order(broker, name, copy.deepcopy(arguments)))
            return original(broker, topic, *arguments)

        patch.setattr(ReplicaManager, name, received)

    def _keep_maps(self, patch: Patch) -> None:
        original = LineageReader.answer

        def answer(lineages: LineageReader, question: Any, read: Any = NOTHING_READ) -> Any:
            if question.tp in self.maps:
                return self.maps[question.tp]
            found = original(lineages, question, read)
            if found is not None and not found.error_code:
                self._maps[question.tp] = found
            return found

        patch.setattr(LineageReader, "answer", answer)

    def received(self, name: str, partition: int) -> list[Order]:
        """The requests for a partition so far, the oldest first."""
        return [
            order for order in self._orders if order.name == name and order.arguments[-1].partition_index == partition
        ]

    def arrives(self, orders: list[Order]) -> None:
        """Deliver each request again to its broker."""
        assert orders
        for order in orders:
            getattr(order.broker, order.name)(TOPIC, *copy.deepcopy(order.arguments))

    def last_map(self, partition: int) -> Any:
        """The last response to 25301 for a partition."""
        return self._maps[TopicPartition(TOPIC, partition)]


async def keep_the_group_away(scene: Scene) -> None:
    for broker in BROKERS:
        for member in MEMBERS:
            scene.cluster.fabric.cut(member, f"broker{broker}")
    await trio.sleep(LITTLE_S)  # pause: until responses on their way are read; virtual time


# ---------------------------------------------------------------- scenarios


async def lead_again_by_the_previous_layout(scene: Scene, late: Late) -> None:
    """After the child is read, the parent's leader gets its request from before the split again, and an old record."""
    key, before = scene.key(1, 2), late.received("apply", 0)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    scene.read()
    assert await scene.until(lambda: scene.is_delivered("scenario:1"))
    late.arrives(before)
    await scene.produce(key, PartitionLayout(1, 0), limit_s=LITTLE_S)
    await scene.produce(key, PartitionLayout(2, 1))


async def lead_a_removed_partition_again(scene: Scene, late: Late) -> None:
    """A late request makes a broker lead a removed partition again.

    No consumer would ever read a record that is written to that partition.
    """
    await scene.resize(2)
    key, leader, before = scene.key(1, 2), scene.leader(1), late.received("apply", 1)
    await scene.resize(1)
    assert await scene.until(lambda: not scene.watch.unfinished())
    late.arrives(before)
    await scene.produce(key, PartitionLayout(2, 1), limit_s=LITTLE_S, broker=leader)


async def remove_a_recreated_partition_again(scene: Scene, late: Late) -> None:
    """2 -> 1 -> 2: the first incarnation's StopReplica arrives again once the second one has a record (hole 20)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    await scene.produce(key, scene.layout)
    await scene.resize(1)
    scene.read()
    assert await scene.until(lambda: not scene.watch.unfinished())
    stops = late.received("stop", 1)
    await keep_the_group_away(scene)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    late.arrives(stops)


async def answer_with_the_lineage_of_the_previous_incarnation(scene: Scene, late: Late) -> None:
    """2 -> 1 -> 2: the lineage of the first incarnation names only an epoch that the group has read (hole 9)."""
    await scene.resize(2)
    key = scene.key(1, 2)
    await scene.produce(key, scene.layout)
    scene.read()
    assert await scene.until(lambda: scene.is_delivered("scenario:1"))
    before = late.last_map(1)
    await scene.resize(1)
    assert await scene.until(lambda: not scene.watch.unfinished())
    await keep_the_group_away(scene)
    for _ in range(LONG):
        await scene.produce(key, scene.layout)
    await scene.resize(2)
    await scene.produce(key, scene.layout)
    late.maps[TopicPartition(TOPIC, 1)] = before
    scene.cluster.fabric.heal_all()
    await trio.sleep(3 * LITTLE_S)  # pause: time for a request, and for a wrong delivery; virtual time
    late.maps.clear()


async def die_while_replicas_are_deleted(scene: Scene, _late: Late) -> None:
    """One replica's broker is down, the other brokers have deleted their replicas, and the controller ends."""
    await scene.resize(2)
    key, leader = scene.key(1, 2), scene.leader(1)
    await scene.produce(key, scene.layout)
    away = next(name for broker in BROKERS if (name := f"broker{broker}") != leader)
    await scene.cluster.kill(away)
    await scene.ask_for(1)
    scene.expect(1)
    scene.read()
    assert await scene.until(lambda: not scene.has(leader, 1, "scenario:1"))
    await trio.sleep(LITTLE_S)  # pause: until all live brokers have deleted theirs; virtual time
    controller = await scene.cluster.active_controller()
    await scene.cluster.kill(controller)
    assert await scene.until(lambda: controller not in scene.cluster.running)
    await scene.cluster.start_controller(int(controller.removeprefix("controller")))
    await trio.sleep(LITTLE_S)  # pause: time for requests to all leaders; virtual time
    await scene.restart(away)


# ---------------------------------------------------------------- rules, switched off


def older_leader_epochs_are_obeyed(patch: Patch) -> None:
    original = ReplicaManager.apply

    def apply(self: Any, topic: str, topic_id: Any, state: Any) -> Any:
        partition = self.hosted(TopicPartition(topic, state.partition_index))
        if partition is not None and state.leader_epoch < partition.leader_epoch:
            partition.leader_epoch = state.leader_epoch - 1
        return original(self, topic, topic_id, state)

    patch.setattr(ReplicaManager, "apply", apply)
    patch.setattr(replica_manager, "is_behind", lambda *_: False)  # the log's own epochs refuse late requests too


def deletions_are_forgotten(patch: Patch) -> None:
    patch.setattr(ReplicaManager, "remember_end", lambda *_: Ended())


def requests_name_no_incarnation(patch: Patch) -> None:
    for name in ("apply", "stop"):
        _forget_incarnations(patch, name)


def _forget_incarnations(patch: Patch, name: str) -> None:
    original = getattr(ReplicaManager, name)

    def received(self: Any, topic: str, *arguments: Any) -> Any:
        *rest, state = arguments
        nameless = copy.copy(state)
        nameless.incarnation = -1
        return original(self, topic, *rest, nameless)

    patch.setattr(ReplicaManager, name, received)


def neither_incarnations_nor_ascending_epochs(patch: Patch) -> None:
    requests_name_no_incarnation(patch)
    a_recreated_partition_begins_at_epoch_0(patch)


def a_removal_is_known_to_its_controller_alone(patch: Patch) -> None:
    """The controller does not write that a partition is being removed before it deletes the replicas."""

    original = carry_out.carry_out

    async def remember(context: Context, effects: Effects) -> set[TopicPartition]:
        if effects.step != "leave":
            return await original(context, effects)
        for change in itertools.chain.from_iterable(effects.states):
            found = context.image.partition(change.tp)
            assert found is not None
            found.state = change.state
        return set()

    patch.setattr(carry_out, "carry_out", remember)


# ---------------------------------------------------------------- both

LateScenario = Callable[[Scene, Late], Awaitable[None]]
RULES: tuple[tuple[LateScenario, SwitchOff, str], ...] = (
    (lead_again_by_the_previous_layout, older_leader_epochs_are_obeyed, "promise"),
    (lead_a_removed_partition_again, deletions_are_forgotten, "lost_acknowledged"),
    (lead_a_removed_partition_again, requests_name_no_incarnation, "lost_acknowledged"),
    (remove_a_recreated_partition_again, neither_incarnations_nor_ascending_epochs, "lost_acknowledged"),
    (
        answer_with_the_lineage_of_the_previous_incarnation,
        batches_newer_than_the_known_lineage_are_delivered,
        "promise",
    ),
    (die_while_replicas_are_deleted, a_removal_is_known_to_its_controller_alone, "unfinished"),
)


def staged(scenario: LateScenario, seed: int = 0) -> list[str]:
    with Patch.context() as patch:
        late = Late(patch)
        factor = 3 if scenario is die_while_replicas_are_deleted else 1
        return stage(lambda scene: scenario(scene, late), 1, seed, replication_factor=factor)


@pytest.mark.parametrize("scenario", dict.fromkeys(scenario for scenario, _, _ in RULES))
def test_a_scenario_passes_with_every_rule_on(scenario: LateScenario) -> None:
    assert staged(scenario) == []


@pytest.mark.parametrize(("scenario", "switch_off", "found_by"), RULES)
@pytest.mark.mutation
def test_a_scenario_fails_its_check_with_its_rule_switched_off(
    scenario: LateScenario, switch_off: SwitchOff, found_by: str, monkeypatch: Patch
) -> None:
    switch_off(monkeypatch)
    assert any(found_by in staged(scenario, seed) for seed in range(TRIES))


@pytest.mark.parametrize("switch_off", [requests_name_no_incarnation, a_recreated_partition_begins_at_epoch_0])
def test_either_rule_alone_protects_a_recreated_partition_from_a_late_removal(
    switch_off: SwitchOff, monkeypatch: Patch
) -> None:
    """No record is lost. Epochs that begin at 0 again are a violation (``incarnations``) by themselves."""
    switch_off(monkeypatch)
    assert set(staged(remove_a_recreated_partition_again)) <= {"incarnations"}
