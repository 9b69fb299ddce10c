"""A partition whose znode is older than a log loses its leader, and no decision gives it another."""

from __future__ import annotations

import pytest

from anabranch.controller.admin.elect_leaders import _elect
from anabranch.controller.brokers import decide_set_aside
from anabranch.controller.image import ClusterImage
from anabranch.controller.leaders import decide_first_replicas
from anabranch.controller.partitions import decide_elections
from anabranch.controller.reassignment import decide
from anabranch.ordered_resize.consistency import contradictions
from anabranch.ordered_resize.snapshot import Snapshot
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.leader_and_isr import (
    LeaderAndIsrPartitionState,
    LeaderAndIsrRequest,
    LeaderAndIsrTopicState,
)
from anabranch.protocol.request_kinds import ElectionType
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.zk_schemas.partition_state import PartitionState
from tests.support.controller.decisions import CONFIG, CONTROLLER_EPOCH, T0, T1, cluster, state

WHY = "broker 2 has a newer log, of leader epoch 5, and ZooKeeper has 2; ZooKeeper's data are older than the log"
INCARNATION = 9


def request(incarnation: int = INCARNATION) -> LeaderAndIsrRequest:
    states = [LeaderAndIsrPartitionState(partition_index=p, incarnation=incarnation) for p in range(2)]
    return LeaderAndIsrRequest(topic_states=[LeaderAndIsrTopicState(topic_name="t", partition_states=states)])


def set_aside() -> PartitionState:
    return state(NO_LEADER, [1, 2, 3]).replace(newer_log=WHY)


def test_the_state_loses_its_leader_and_keeps_its_leader_epoch() -> None:
    (change,) = decide_set_aside(cluster(state(1, [1, 2, 3]), state(1, [1])), request(), {T0: WHY}).independent
    assert change.tp == T0 and not change.create
    assert change.state == set_aside().replace(controller_epoch=CONTROLLER_EPOCH)


@pytest.mark.parametrize("image", [cluster(set_aside()), cluster(None), cluster(state(NO_LEADER, []))])
def test_a_state_is_set_aside_once_and_only_after_it_had_a_leader(image: ClusterImage) -> None:
    assert decide_set_aside(image, request(), {T0: WHY}).independent == []


def test_an_answer_about_another_incarnation_changes_nothing() -> None:
    assert decide_set_aside(cluster(state(1, [1])), request(INCARNATION - 1), {T0: WHY}).independent == []


@pytest.mark.parametrize("brokers", [(1, 2, 3), (2, 3), (1,)])
def test_no_election_and_no_reassignment_changes_the_state(brokers: tuple[int, ...]) -> None:
    image = cluster(set_aside(), state(1, [1, 2, 3]), brokers=brokers)
    changed = decide_elections(image, CONFIG, list(image.led_partitions())).independent
    assert T0 not in [change.tp for change in changed]
    assert decide_first_replicas(image, [T0]).independent == []
    refused = decide(image, "t", {0: [1], 1: None}).response
    assert refused[T0].code == ErrorCode.POLICY_VIOLATION and WHY in refused[T0].message
    assert decide(image, "t", {0: None}).response[T0].code == ErrorCode.POLICY_VIOLATION


@pytest.mark.parametrize("kind", list(ElectionType))
def test_a_requested_election_names_the_log(kind: ElectionType) -> None:
    with pytest.raises(KafkaError, match="newer log") as raised:
        _elect(cluster(set_aside(), state(1, [1])), T0, kind)
    assert raised.value.code == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE


def test_the_topic_is_frozen_with_the_reason() -> None:
    topic = cluster(state(1, [1]), set_aside()).topics["t"]
    states = {p: found.state for p, found in topic.partitions.items() if found.state is not None}
    assert contradictions(Snapshot(topic.znode, states)) == [f"partition {T1.partition}: {WHY}"]


def test_the_field_is_kept_in_the_znode() -> None:
    assert PartitionState.decode("p", set_aside().encode()) == set_aside()
    assert b"newer_log" not in state(1, [1]).encode()
