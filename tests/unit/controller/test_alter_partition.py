"""The effects of AlterPartition: each decision is made from an image, and a request is carried out (KIP-497)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from anabranch.controller.admin.alter_partition import alter_partition, decide
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.image import ClusterImage
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition import AlterPartitionRequest, PartitionData, TopicData
from anabranch.zk_schemas import paths
from tests.support.controller.decisions import (
    BROKER_EPOCH,
    CONTROLLER_EPOCH,
    STATE_VERSION,
    T0,
    T1,
    cluster,
    context_of,
    live,
    state,
)


def request(
    isr: Sequence[int], *, leader: int = 1, broker_epoch: int = BROKER_EPOCH, topic: str = "t", **fields: Any
) -> AlterPartitionRequest:
    """Return a request of a leader for partition 0 of a topic, by default with the epochs of the image."""
    given: dict[str, Any] = {"leader_epoch": 2, "current_isr_version": STATE_VERSION, "new_isr_epochs": [], **fields}
    asked = PartitionData(partition_index=0, new_isr=list(isr), **given)
    topics = [TopicData(name=topic, partitions=[asked])]
    return AlterPartitionRequest(broker_id=leader, broker_epoch=broker_epoch, topics=topics)


def led(isr: Sequence[int] = (1, 2, 3)) -> ClusterImage:
    """Return an image of ``t``, whose partition 0 is led by 1."""
    return cluster(state(1, isr))


def answer(effects: Effects) -> Any:
    return effects.response.topics[0].partitions[0]


def code(image: ClusterImage, asked: AlterPartitionRequest) -> int:
    """Return the error of the partition, or NONE if the ISR is written."""
    effects = decide(image, asked)
    found: int = answer(effects).error_code
    assert bool(effects.independent) == (found == ErrorCode.NONE)
    return found


def test_a_new_isr_is_written_in_the_same_leader_epoch_and_answered_with_the_next_version() -> None:
    image = led()
    effects = decide(image, request([1, 2]))
    written = state(1, [1, 2]).replace(controller_epoch=CONTROLLER_EPOCH)
    change = StateChange(T0, written, isr_only=True)
    assert effects == Effects(independent=[change], confirms_office=True, response=effects.response)
    found = answer(effects)
    assert (found.error_code, found.leader_id, found.leader_epoch) == (ErrorCode.NONE, 1, 2)
    assert (found.isr, found.current_isr_version) == ([1, 2], STATE_VERSION + 1)
    assert image == led(), "a decision changed the image"


def test_a_request_whose_answer_was_lost_is_answered_again_and_not_written() -> None:
    effects = decide(led([1, 2]), request([1, 2], current_isr_version=STATE_VERSION - 1))
    found = answer(effects)
    assert (list(effects.independent), effects.confirms_office) == ([], True)
    assert (found.error_code, found.isr, found.current_isr_version) == (ErrorCode.NONE, [1, 2], STATE_VERSION)


def test_stale_epochs_are_refused_before_the_isr_is_judged() -> None:
    image = led([1, 2])
    assert code(image, request([1, 9], current_isr_version=STATE_VERSION - 1)) == ErrorCode.INVALID_UPDATE_VERSION
    assert code(image, request([1, 9], leader_epoch=3)) == ErrorCode.FENCED_LEADER_EPOCH
    assert code(image, request([1, 2], leader=2)) == ErrorCode.FENCED_LEADER_EPOCH


def test_a_partition_that_is_unknown_or_being_deleted_is_refused() -> None:
    assert code(led(), request([1], topic="other")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(cluster(None), request([1])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    deleted = led()
    deleted.deletions["t"] = {}
    assert code(deleted, request([1])) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("given", [{"broker_epoch": BROKER_EPOCH - 1}, {"leader": 9}])
def test_a_broker_that_is_not_registered_in_this_epoch_is_refused(given: dict[str, int]) -> None:
    effects = decide(led(), request([1], **given))
    assert effects == Effects(confirms_office=True, response=effects.response)
    assert (effects.response.error_code, effects.response.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])


@pytest.mark.parametrize("isr", [[], [1, 9], [1, 1], [2], [2, 3, 4]])
def test_an_invalid_isr_is_refused(isr: list[int]) -> None:
    """In the last two cases the leader resigns, but the new ISR is not the old ISR without the leader."""
    assert code(led(), request(isr)) == ErrorCode.INVALID_REQUEST


def test_a_replica_that_shuts_down_does_not_join_the_isr() -> None:
    """KAFKA-14140: the broker stops soon, and its replica would still be in the ISR."""
    image = led([1, 2])
    image.shutting_down.add(3)
    assert code(image, request([1, 2, 3])) == ErrorCode.INELIGIBLE_REPLICA
    assert code(image, request([1])) == ErrorCode.NONE


def test_a_replica_that_registered_anew_since_it_fetched_does_not_join() -> None:
    """KIP-903: the replica may have lost the records that it had when it fetched."""
    image = led([1, 2])
    image.brokers[3] = live(3, BROKER_EPOCH + 2)
    assert code(image, request([1, 2, 3], new_isr_epochs=[-1, -1, BROKER_EPOCH])) == ErrorCode.INELIGIBLE_REPLICA
    assert code(image, request([1, 2, 3], new_isr_epochs=[-1, -1, BROKER_EPOCH + 2])) == ErrorCode.NONE


def test_a_leader_that_proposes_the_isr_without_itself_is_replaced() -> None:
    """A leader whose disk is full resigns in this way (docs/adr/0025)."""
    effects = decide(led(), request([2, 3]))
    (change,) = effects.independent
    assert (change.state.leader, change.state.leader_epoch, change.state.isr, change.isr_only) == (2, 3, [2, 3], False)
    found = answer(effects)
    assert (found.leader_id, found.leader_epoch, found.current_isr_version) == (2, 3, STATE_VERSION + 1)


def test_a_resignation_can_complete_a_reassignment() -> None:
    image = led()
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(removing_replicas={0: [1]})
    assert [change.completes for change in decide(image, request([2, 3])).independent] == [True]


def test_a_leader_does_not_resign_to_a_broker_without_a_replica() -> None:
    """An edit by hand can leave such a broker in the ISR."""
    image = led([1, 4])
    image.brokers[4] = live(4)
    assert code(image, request([4])) == ErrorCode.INELIGIBLE_REPLICA
    assert code(image, request([1])) == ErrorCode.NONE


def test_each_partition_is_judged_and_answered_in_the_order_of_the_request() -> None:
    image = cluster(state(1, [1, 2, 3]), state(2, [1, 2, 3]))
    asked = request([1, 2])
    asked.topics[0].partitions.insert(0, PartitionData(partition_index=1, leader_epoch=2, new_isr=[1]))
    effects = decide(image, asked)
    found = [(each.partition_index, each.error_code) for each in effects.response.topics[0].partitions]
    assert found == [(1, ErrorCode.FENCED_LEADER_EPOCH), (0, ErrorCode.NONE)]
    assert [change.tp for change in effects.independent] == [T0]


# ---------------------------------------------------------------- carrying out


@pytest.mark.trio
async def test_a_written_isr_is_sent_by_update_metadata_only() -> None:
    context = context_of(led())
    outcome = await carry_out_all(context, alter_partition(context, request([1, 2]), 0))
    assert outcome.response.topics[0].partitions[0].isr == context.image.topics["t"].state(0).isr == [1, 2]
    assert outcome.response.topics[0].partitions[0].current_isr_version == context.image.topics["t"].partitions[0].epoch
    sent = {type(each).__name__ for requests in context.batch.build().values() for each in requests}
    assert (sent, context.store.confirmed, context.events.puts) == ({"UpdateMetadataRequest"}, 0, [])


@pytest.mark.parametrize("asked", [request([1, 9]), request([1], broker_epoch=0), request([1, 2, 3])])
@pytest.mark.trio
async def test_a_response_without_a_write_is_sent_only_by_the_active_controller(asked: AlterPartitionRequest) -> None:
    """KAFKA-14154: a controller that has not noticed its replacement may only answer NOT_CONTROLLER."""
    context = context_of(led())
    await carry_out_all(context, alter_partition(context, asked, 0))
    assert (context.store.multis, context.store.confirmed) == ([], 1)


@pytest.mark.trio
async def test_a_partition_whose_isr_zookeeper_refuses_gets_only_an_error() -> None:
    context = context_of(cluster(state(1, [1, 2, 3]), state(1, [1, 2])), refused=[paths.partition_state("t", 0)])
    asked = request([1, 2])
    asked.topics[0].partitions += [
        PartitionData(partition_index=1, leader_epoch=2, new_isr=[1, 2], current_isr_version=STATE_VERSION)
    ]
    outcome = await carry_out_all(context, alter_partition(context, asked, 0))
    refused, other = outcome.response.topics[0].partitions
    assert (refused.error_code, refused.leader_id, refused.isr) == (ErrorCode.UNKNOWN_SERVER_ERROR, 0, [])
    assert (other.error_code, other.isr) == (ErrorCode.NONE, [1, 2])
    assert (context.store.confirmed, context.image.topics["t"].state(0).isr) == (1, [1, 2, 3])


@pytest.mark.parametrize("refused", [[], [paths.partition_state("t", 1)]])
@pytest.mark.parametrize(("isr", "is_due"), [([1, 2], False), ([1, 2, 3], True)])
@pytest.mark.trio
async def test_a_reassignment_continues_when_its_target_is_in_sync(
    isr: list[int], is_due: bool, refused: list[str]
) -> None:
    image = cluster(state(1, [1]), state(1, [1]))
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(adding_replicas={0: [3], 1: [3]})
    context = context_of(image, refused)
    asked = request(isr)
    await carry_out_all(context, alter_partition(context, asked, 0))
    assert context.events.puts == ([ReassignmentsDue()] if is_due else [])
    asked.topics[0].partitions[0].partition_index = T1.partition
    context.events.puts.clear()
    await carry_out_all(context, alter_partition(context, asked, 0))
    assert context.events.puts == ([ReassignmentsDue()] if is_due and not refused else [])
