"""The effects of reassignments: each decision is made from an image, and requests and last steps are carried out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import structlog

from anabranch.controller.admin.alter_partition_reassignments import alter_partition_reassignments
from anabranch.controller.admin.slices import sliced
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.events import ReassignmentsDue
from anabranch.controller.image import ClusterImage
from anabranch.controller.reassignment import PARTITIONS_PER_WRITE, TOPICS_AT_ONCE, advance, decide, decide_due
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.runtime.env import SetOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode
from tests.support.controller.decisions import CONTROLLER_EPOCH, STATE_VERSION, T0, cluster, context_of, state
from tests.support.controller.topic_images import asked, image_of, resized, unfinished

SIX = (1, 2, 3, 4, 5, 6)


def moving(
    found: PartitionState,
    replicas: Sequence[int],
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    brokers: Sequence[int] = SIX,
) -> ClusterImage:
    """Return an image of ``t``, whose partition 0 is being reassigned."""
    image = cluster(found, replicas=[replicas], brokers=brokers)
    changing(image, adding, removing)
    return image


def changing(image: ClusterImage, adding: Sequence[int], removing: Sequence[int]) -> None:
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(
        adding_replicas={0: list(adding)} if adding else {}, removing_replicas={0: list(removing)} if removing else {}
    )


def written(effects: Effects) -> tuple[TopicZnode, PartitionState]:
    """Return the znode and the state of partition 0 in the multi of ``effects``. Checks the expected versions."""
    topic, found = effects.writes
    assert isinstance(topic, SetOp) and isinstance(found, SetOp)
    assert [(op.path, op.version) for op in (topic, found)] == [
        (paths.topic("t"), 6),
        (paths.partition_state("t", 0), STATE_VERSION),
    ]
    znode, decoded = TopicZnode.decode(topic.path, topic.data), PartitionState.decode(found.path, found.data)
    ((change,),) = effects.states
    assert (effects.znode, change.tp, change.state) == (znode, T0, decoded)
    assert decoded.controller_epoch == CONTROLLER_EPOCH
    return znode, decoded


def error(image: ClusterImage, targets: Mapping[int, Sequence[int] | None], topic: str = "t") -> dict[int, int]:
    """Return the errors of a request that changes nothing."""
    effects = decide(image, topic, targets)
    assert effects == Effects(topic, response=effects.response)
    assert all(found.message for found in effects.response.values())
    return {tp.partition: found.code for tp, found in effects.response.items()}


# ---------------------------------------------------------------- requests


def test_a_move_begins_with_all_replicas_in_one_write() -> None:
    image = cluster(state(1, [1, 2, 3]), brokers=SIX)
    effects = decide(image, "t", {0: [4, 5, 6]})
    znode, found = written(effects)
    assert znode.partitions == {0: [4, 5, 6, 1, 2, 3]}
    assert (znode.adding_replicas, znode.removing_replicas) == ({0: [4, 5, 6]}, {0: [1, 2, 3]})
    assert (found.leader, found.leader_epoch, found.isr) == (1, 3, [1, 2, 3])
    assert (effects.response, effects.stops) == ({}, [])
    assert image == cluster(state(1, [1, 2, 3]), brokers=SIX), "a decision changed the image"


def test_fewer_replicas_take_effect_at_once_and_the_others_are_deleted() -> None:
    effects = decide(cluster(state(1, [1, 2, 3])), "t", {0: [2]})
    znode, found = written(effects)
    assert (znode.partitions, found.leader, found.isr, effects.stops) == ({0: [2]}, 2, [2], [(1, T0), (3, T0)])
    assert (znode.adding_replicas, znode.removing_replicas) == ({}, {})


def test_another_order_of_replicas_takes_effect_at_once_and_keeps_the_leader() -> None:
    effects = decide(cluster(state(2, [1, 2, 3])), "t", {0: [3, 2, 1]})
    znode, found = written(effects)
    assert (znode.partitions, found.leader, found.leader_epoch, effects.stops) == ({0: [3, 2, 1]}, 2, 3, [])


def test_the_present_replicas_as_target_change_nothing() -> None:
    assert decide(cluster(state(1, [1, 2, 3])), "t", {0: [1, 2, 3]}) == Effects("t", response={})


def test_a_cancelled_move_deletes_the_replicas_that_were_being_added() -> None:
    effects = decide(moving(state(1, [1, 2, 4]), [4, 2, 3, 1], [4], [1]), "t", {0: None})
    znode, found = written(effects)
    assert (znode.partitions, znode.adding_replicas, znode.removing_replicas) == ({0: [2, 3, 1]}, {}, {})
    assert (found.leader, found.isr, effects.stops) == (1, [1, 2], [(4, T0)])


def test_another_target_drops_the_replicas_being_added_for_the_first() -> None:
    effects = decide(moving(state(1, [1, 2, 3]), [1, 2, 4, 3], [4], [3]), "t", {0: [1, 2, 5]})
    znode, _ = written(effects)
    assert (znode.partitions, znode.adding_replicas, znode.removing_replicas) == ({0: [1, 2, 5, 3]}, {0: [5]}, {0: [3]})
    assert effects.stops == [(4, T0)]


def test_a_move_cannot_be_cancelled_if_only_new_replicas_are_in_sync() -> None:
    image = moving(state(4, [4]), [4, 5, 1], [4, 5], [1], brokers=(4, 5, 6))
    assert error(image, {0: None}) == {0: ErrorCode.INVALID_REPLICA_ASSIGNMENT}


def test_an_offline_partition_keeps_its_last_isr_member_as_a_replica() -> None:
    effects = decide(moving(state(1, [1]), [4, 1, 2, 3], [4], [1, 2, 3], brokers=(4, 5)), "t", {0: [5]})
    znode, found = written(effects)
    assert (znode.partitions, found.leader, found.isr) == ({0: [5, 1, 2, 3]}, NO_LEADER, [1])
    (ended,), _ = decide_due(moving(state(1, [1, 5]), [5, 1, 2, 3], [5], [1, 2, 3]))
    znode, found = written(ended)
    assert (znode.partitions, found.leader, found.isr) == ({0: [5]}, 5, [5])


@pytest.mark.parametrize(
    ("targets", "code"),
    [
        ({0: [1, 1]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: []}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [9]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: [-2]}, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ({0: None}, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS),
        ({1: [1]}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_invalid_target_is_refused(targets: dict[int, list[int] | None], code: ErrorCode) -> None:
    assert set(error(cluster(state(1, [1, 2, 3])), targets).values()) == {code}


def test_partitions_without_a_state_and_deleted_topics_are_unknown() -> None:
    assert error(cluster(None), {0: [1]}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert error(cluster(), {0: [1]}, "other") == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    deleted = cluster(state(1, [1, 2, 3]))
    deleted.deletions["t"] = {}
    assert error(deleted, {0: [1]}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}


def test_a_frozen_topic_is_refused_with_the_reason() -> None:
    image = cluster(state(1, [1, 2, 3]))
    image.topics["t"].frozen = "a contradiction"
    assert error(image, {0: [1]}) == {0: ErrorCode.POLICY_VIOLATION}


def test_a_reassignment_is_refused_until_the_resize_ends() -> None:
    """A resize ends when every leader has acknowledged the resize. A partition may lose its leader afterwards."""
    image = cluster()
    for resizing in (image_of(asked(4, 6)), unfinished(4, 6, silent=[5])):
        image.topics["t"] = resizing
        assert error(image, {0: [2]}) == {0: ErrorCode.POLICY_VIOLATION}
        assert "t is being resized" in decide(image, "t", {0: [2]}).response[T0].message
    for ended in (image_of(resized(4, 6)), image_of(resized(4, 6, 4)), image_of(resized(4, 6), silent=[5])):
        image.topics["t"] = ended
        assert decide(image, "t", {0: [2]}).response == {}


def test_partitions_of_a_topic_move_in_one_write_and_a_refused_one_does_not_hinder_the_others() -> None:
    image = cluster(state(1, [1, 2, 3]), state(1, [1, 2, 3]), brokers=SIX)
    effects = decide(image, "t", {0: [4, 5], 1: [9], 2: [1]})
    assert [op.path for op in effects.writes] == [paths.topic("t"), paths.partition_state("t", 0)]
    assert {tp.partition for tp in effects.response} == {1, 2}


# ---------------------------------------------------------------- last steps


def test_a_move_ends_when_all_of_the_target_is_in_sync() -> None:
    replicas, adding, removing = [4, 5, 1, 2], [4, 5], [1, 2]
    assert decide_due(moving(state(1, [1, 2, 4]), replicas, adding, removing)) == ([], True)
    (effects,), is_all = decide_due(moving(state(1, [1, 2, 4, 5]), replicas, adding, removing))
    znode, found = written(effects)
    assert (znode.partitions, znode.adding_replicas, znode.removing_replicas, is_all) == ({0: [4, 5]}, {}, {}, True)
    assert (found.leader, found.isr, effects.stops) == (4, [4, 5], [(1, T0), (2, T0)])


def test_a_move_of_a_topic_that_is_being_deleted_does_not_end() -> None:
    image = moving(state(1, [1]), [1, 2], [], [2])
    assert len(decide_due(image)[0]) == 1
    image.deletions["t"] = {}
    assert decide_due(image) == ([], True)


def many(topics: int, partitions: int) -> ClusterImage:
    """Return an image of topics whose partitions are all about to lose replica 2."""
    image = cluster(brokers=SIX)
    for number in range(topics):
        one = cluster(*[state(1, [1])] * partitions, replicas=[[1, 2]] * partitions).topics["t"]
        one.znode = one.znode.replace(removing_replicas={p: [2] for p in range(partitions)})
        one.name = f"t{number:02}"
        image.topics[one.name] = one
    del image.topics["t"]
    return image


@pytest.mark.parametrize(
    ("topics", "partitions", "taken"),
    [
        (1, PARTITIONS_PER_WRITE, [PARTITIONS_PER_WRITE]),
        (1, PARTITIONS_PER_WRITE + 1, [PARTITIONS_PER_WRITE]),
        (2, PARTITIONS_PER_WRITE - 1, [PARTITIONS_PER_WRITE - 1, 1]),
        (TOPICS_AT_ONCE, 2, [2] * TOPICS_AT_ONCE),
        (TOPICS_AT_ONCE + 1, 1, [1] * TOPICS_AT_ONCE),
    ],
)
def test_a_limited_number_of_moves_ends_at_a_time(topics: int, partitions: int, taken: list[int]) -> None:
    due, is_all = decide_due(many(topics, partitions))
    assert [len(effects.writes) - 1 for effects in due] == taken
    assert is_all == (sum(taken) == topics * partitions)


# ---------------------------------------------------------------- carrying out


async def request(context: Any, targets: Mapping[int, list[int] | None]) -> dict[int, int]:
    partitions = [ReassignablePartition(partition_index=i, replicas=target) for i, target in targets.items()]
    body = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=partitions)])
    errors = dict[int, int]()
    for part in sliced(ApiKey.ALTER_PARTITION_REASSIGNMENTS, body, context.image):
        outcome = await carry_out_all(context, alter_partition_reassignments(context, part, 0))
        errors |= {p.partition_index: p.error_code for p in outcome.response.responses[0].partitions}
    return errors


def sent(context: Any) -> dict[int, set[str]]:
    """Return the requests of the batch about partitions of ``t``, by broker."""
    built = context.batch.build()
    return {
        id: {type(each).__name__ for each in requests if each.topic_states} - {"UpdateMetadataRequest"}
        for id, requests in built.items()
    }


@pytest.mark.trio
async def test_old_and_new_replicas_get_the_first_step_and_dropped_ones_are_stopped_by_the_last() -> None:
    context = context_of(cluster(state(1, [1, 2, 3]), brokers=(1, 2, 3, 4, 5)))
    with structlog.testing.capture_logs() as logs:
        assert await request(context, {0: [1, 2, 4]}) == {0: ErrorCode.NONE}
    assert logs == [
        {
            "event": "reassignment.step",
            "log_level": "info",
            "partition": "t-0",
            "replicas": [1, 2, 4, 3],
            "adding": [4],
            "removing": [3],
        }
    ]
    assert {id for id, kinds in sent(context).items() if kinds} == {1, 2, 3, 4}
    topic = context.image.topics["t"]
    assert (topic.replicas(0), topic.version, topic.partitions[0].epoch) == ([1, 2, 4, 3], 7, STATE_VERSION + 1)
    topic.partitions[0].state = topic.state(0).replace(isr=[1, 2, 3, 4])
    await carry_out_all(context, advance(context))
    assert (topic.replicas(0), context.events.puts) == ([1, 2, 4], [])
    kinds = sent(context)
    assert (kinds[3], kinds[4]) == ({"StopReplicaRequest"}, {"LeaderAndIsrRequest"})


@pytest.mark.trio
async def test_a_thousand_partitions_move_in_a_few_writes() -> None:
    context = context_of(cluster(*[state(1, [1, 2, 3])] * 1000, brokers=SIX))
    errors = await request(context, {index: [4, 2, 3] for index in range(1000)})
    assert errors == dict.fromkeys(range(1000), ErrorCode.NONE)
    assert len(context.store.multis) == 8


@pytest.mark.trio
async def test_moves_that_zookeeper_refuses_have_an_error_each_and_leave_the_image() -> None:
    image = cluster(state(1, [1, 2, 3]), state(1, [1, 2, 3]), brokers=SIX)
    context = context_of(image, refused=[paths.topic("t")])
    assert await request(context, {0: [4], 1: [9], 2: [1]}) == {
        0: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        1: ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        2: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert image == cluster(state(1, [1, 2, 3]), state(1, [1, 2, 3]), brokers=SIX)
    assert (sent(context), context.events.later) == ({}, 0)


@pytest.mark.parametrize("is_refused", [False, True])
@pytest.mark.trio
async def test_the_rest_of_the_moves_end_by_a_later_event_unless_a_write_was_refused(is_refused: bool) -> None:
    """After a refusal, such an event would try the same moves again at once, without end."""
    context = context_of(many(TOPICS_AT_ONCE + 1, 2), refused=[paths.topic("t01")] if is_refused else [])
    await carry_out_all(context, advance(context))
    assert context.events.puts == ([] if is_refused else [ReassignmentsDue()])
    assert (len(context.store.multis), context.events.later) == (TOPICS_AT_ONCE - is_refused, 2 * is_refused)


@pytest.mark.trio
async def test_a_move_does_not_log_again_why_a_queued_resize_waits() -> None:
    context = context_of(cluster(state(1, [1, 2, 3])))
    context.image.topics["t"].wait_logged = "its resize to 8 partitions waits"
    await request(context, {0: [2]})
    assert context.image.topics["t"].wait_logged
