"""The effects of ControlledShutdown: each decision is made from an image."""

from __future__ import annotations

import pytest

from anabranch.controller.admin.controlled_shutdown import controlled_shutdown, decide
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.controlled_shutdown import ControlledShutdownRequest
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas import paths
from tests.support.controller.decisions import BROKER_EPOCH, CONTROLLER_EPOCH, T0, T1, T2, cluster, context_of, state


def request(broker: int = 1, epoch: int = BROKER_EPOCH) -> ControlledShutdownRequest:
    return ControlledShutdownRequest(broker_id=broker, broker_epoch=epoch)


def remaining(effects: Effects) -> list[tuple[str, int]]:
    assert effects.response.error_code == ErrorCode.NONE
    return [(found.topic_name, found.partition_index) for found in effects.response.remaining_partitions]


def test_leaders_move_and_isrs_shrink_in_one_write_each() -> None:
    states = (state(1, [1, 2, 3]), state(2, [2, 1, 3]), state(3, [3, 2, 1]), state(2, [2, 3]))
    image = cluster(*states)
    effects = decide(image, request())
    found = [(change.tp, change.state.leader, change.state.isr) for change in effects.independent]
    assert found == [(T0, 2, [2, 3]), (T1, 2, [2, 3]), (T2, 3, [3, 2])]
    epochs = {(change.state.leader_epoch, change.state.controller_epoch) for change in effects.independent}
    assert epochs == {(3, CONTROLLER_EPOCH)}
    assert (remaining(effects), effects.shutting_down) == ([], (1,))
    assert image == cluster(*states), "a decision changed the image"


def test_the_last_member_of_the_isr_stays_leader_of_the_remaining_partitions() -> None:
    effects = decide(cluster(state(1, [1]), state(2, [2, 1])), request())
    assert (remaining(effects), [change.tp for change in effects.independent]) == ([("t", 0)], [T1])


def test_a_partition_with_one_replica_stays_and_is_not_waited_for() -> None:
    effects = decide(cluster(state(1, [1]), replicas=[[1]]), request())
    assert (remaining(effects), effects.independent, effects.shutting_down) == ([], [], (1,))


def test_another_broker_that_shuts_down_or_has_a_failed_disk_does_not_become_leader() -> None:
    image = cluster(state(1, [1, 2]), state(1, [1, 3]), state(1, [1, 2, 3]))
    image.shutting_down.add(2)
    image.failed[3] = {T1}
    effects = decide(image, request())
    assert (remaining(effects), [change.tp for change in effects.independent]) == ([("t", 0), ("t", 1)], [T2])


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request(9), ErrorCode.BROKER_NOT_AVAILABLE),
        (request(epoch=BROKER_EPOCH - 1), ErrorCode.STALE_BROKER_EPOCH),
    ],
)
def test_a_refusal_has_no_effect_except_its_response(asked: ControlledShutdownRequest, code: ErrorCode) -> None:
    effects = decide(cluster(state(1, [1, 2])), asked)
    assert effects == Effects(response=effects.response)
    assert effects.response.error_code == code


def test_a_request_without_a_broker_epoch_is_accepted() -> None:
    assert decide(cluster(), request(epoch=-1)).shutting_down == (1,)


@pytest.mark.parametrize("refused", [[], [T0], [T1]])
@pytest.mark.trio
async def test_a_broker_that_shuts_down_gets_no_leadership_and_unwritten_partitions_remain(
    refused: list[TopicPartition],
) -> None:
    image: ClusterImage = cluster(state(1, [1, 2, 3]), state(2, [2, 1]))
    context = context_of(image, [paths.partition_state(*tp) for tp in refused])
    response = (await carry_out_all(context, controlled_shutdown(context, request(), 3))).response
    assert image.live_ids() == {2, 3}
    led = [T0] if refused else []  # both states are in one multi
    assert [tp for tp, _, _, state in image.led_partitions() if state.leader == 1] == led
    assert [(found.topic_name, found.partition_index) for found in response.remaining_partitions] == led
