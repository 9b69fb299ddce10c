"""The effects of ElectLeaders: each decision is made from an image, and a request is carried out."""

from __future__ import annotations

import pytest

from anabranch.controller.admin.elect_leaders import decide, elect_leaders
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.elect_leaders import ElectLeadersRequest, TopicPartitions
from anabranch.protocol.request_kinds import ElectionType
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas import paths
from tests.support.controller.decisions import CONTROLLER_EPOCH, T0, T1, T2, cluster, context_of, state

PREFERRED, UNCLEAN = ElectionType.PREFERRED, ElectionType.UNCLEAN


def codes(effects: Effects) -> dict[TopicPartition, int]:
    return {tp: result.error_code for tp, result in effects.response.items()}


def test_each_partition_that_can_be_led_by_its_first_replica_is_written() -> None:
    image = cluster(state(2, [2, 1]), state(1, [1, 2]), state(2, [2, 3]))
    effects = decide(image, [T0, T1, T2], PREFERRED)
    elected = state(1, [2, 1], 3).replace(controller_epoch=CONTROLLER_EPOCH)
    assert effects == Effects(independent=[StateChange(T0, elected)], response=effects.response)
    assert codes(effects) == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.ELECTION_NOT_NEEDED,
        T2: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
    }
    assert image == cluster(state(2, [2, 1]), state(1, [1, 2]), state(2, [2, 3])), "a decision changed the image"


@pytest.mark.parametrize("out", ["shutting down", "failed disk", "gone"])
def test_a_preferred_replica_that_may_not_lead_is_not_elected(out: str) -> None:
    image = cluster(state(2, [2, 1]), brokers=(2, 3) if out == "gone" else (1, 2, 3))
    image.shutting_down.update([1] if out == "shutting down" else [])
    image.failed.update({1: {T0}} if out == "failed disk" else {})
    effects = decide(image, [T0], PREFERRED)
    assert (effects.independent, codes(effects)) == ([], {T0: ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE})


def test_an_unclean_leader_is_elected_only_if_there_is_no_leader() -> None:
    image = cluster(state(NO_LEADER, [1]), state(2, [2]), state(NO_LEADER, [1]), brokers=(2, 3))
    image.topics["t"].znode.partitions[2] = [1]
    effects = decide(image, [T0, T1, T2], UNCLEAN)
    assert codes(effects) == {
        T0: ErrorCode.NONE,
        T1: ErrorCode.ELECTION_NOT_NEEDED,
        T2: ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    }
    (change,) = effects.independent
    assert (change.tp, change.state.leader, change.state.isr, change.state.leader_epoch) == (T0, 2, [2], 3)


def test_an_unclean_election_prefers_replicas_that_are_not_being_added() -> None:
    image = cluster(state(NO_LEADER, [1]), brokers=(2, 3))
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(adding_replicas={0: [2]})
    (change,) = decide(image, [T0], UNCLEAN).independent
    assert change.state.leader == 3


def test_partitions_that_do_not_exist_or_are_being_deleted_are_refused() -> None:
    image = cluster(state(2, [2, 1]), None)
    image.topics["u"], image.deletions["u"] = image.topics["t"], {}
    effects = decide(image, [T1, T2, TopicPartition("u", 0)], PREFERRED)
    assert effects.independent == []
    assert codes(effects) == {
        T1: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        T2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        TopicPartition("u", 0): ErrorCode.INVALID_TOPIC_EXCEPTION,
    }


# ---------------------------------------------------------------- carrying out


def request(*partitions: int, kind: int = PREFERRED) -> ElectLeadersRequest:
    topics = [TopicPartitions(topic="t", partitions=list(partitions))]
    return ElectLeadersRequest(election_type=kind, topic_partitions=topics, timeout_ms=7)


def movable() -> ClusterImage:
    return cluster(state(2, [2, 1]), state(1, [1, 2]))


@pytest.mark.trio
async def test_the_answer_waits_until_brokers_have_the_batch_with_the_new_leaders() -> None:
    context = context_of(movable())
    outcome = await carry_out_all(context, elect_leaders(context, request(0, 1), 2))
    (topic,) = outcome.response.replica_election_results
    found = [(result.partition_id, result.error_code) for result in topic.partition_result]
    assert (topic.topic, found) == ("t", [(0, ErrorCode.NONE), (1, ErrorCode.ELECTION_NOT_NEEDED)])
    assert (context.image.topics["t"].state(0).leader, outcome.timeout_ms) == (1, 7)
    (wait,) = outcome.waits
    assert not wait.condition(context), "the batch is not sent yet"
    context.senders.acknowledged = lambda flush: flush == context.senders.last_flush + 1
    assert wait.condition(context)
    wait.time_out()
    timed_out = [result.error_code for result in topic.partition_result]
    assert timed_out == [ErrorCode.REQUEST_TIMED_OUT, ErrorCode.ELECTION_NOT_NEEDED]


@pytest.mark.trio
async def test_an_election_that_zookeeper_refuses_is_answered_with_an_error_and_not_waited_for() -> None:
    context = context_of(movable(), refused=[paths.partition_state("t", 0)])
    outcome = await carry_out_all(context, elect_leaders(context, request(0, 1), 2))
    (topic,) = outcome.response.replica_election_results
    assert [result.error_code for result in topic.partition_result] == [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.ELECTION_NOT_NEEDED,
    ]
    assert topic.partition_result[0].error_message
    assert (outcome.waits, context.image.topics["t"].state(0).leader, context.events.later) == ([], 2, 1)


@pytest.mark.trio
async def test_an_unknown_election_type_is_refused() -> None:
    context = context_of(movable())
    outcome = await carry_out_all(context, elect_leaders(context, request(0, kind=2), 2))
    assert outcome.response.error_code == ErrorCode.INVALID_REQUEST
