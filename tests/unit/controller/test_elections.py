"""The effects of elections: after broker changes, for new partitions, and to make first replicas lead again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import structlog

from anabranch.controller import config_writes, partitions
from anabranch.controller.carry_out import carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.events import FirstLeadersDue, FirstReplicasDue
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.leaders import ELECTED_AT_ONCE, decide_first_replicas, decide_rebalance, imbalanced
from anabranch.controller.partitions import FIRST_LEADERS_AT_ONCE, decide_elections, decide_first_leaders, lead_first
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.config import ConfigZnode
from anabranch.zk_schemas.partition_state import PartitionState
from tests.support.controller.decisions import (
    BROKER_EPOCH,
    CONFIG,
    CONTROLLER_EPOCH,
    T0,
    T1,
    T2,
    cluster,
    context_of,
    state,
)
from tests.support.controller.topic_images import asked, image_of, resized

UNCLEAN = replace(CONFIG, unclean_leader_election_enable=True)


def elections(image: ClusterImage, config: object = CONFIG) -> Effects:
    return decide_elections(image, config, list(image.led_partitions()))  # type: ignore[arg-type]


def elected(effects: Effects) -> dict[TopicPartition, tuple[int, list[int]]]:
    """Return leader and ISR of each state. Checks that each state has the next leader epoch and this controller's."""
    for change in effects.independent:
        assert (change.state.leader_epoch, change.state.controller_epoch) == (3, CONTROLLER_EPOCH)
    return {change.tp: (change.state.leader, change.state.isr) for change in effects.independent}


# ------------------------------------------------------------ after broker changes


def test_a_leader_that_is_gone_is_replaced_and_a_replica_that_is_gone_leaves_the_isr() -> None:
    states = (state(1, [1, 2, 3]), state(2, [1, 2, 3]), state(2, [2, 3]), state(1, [1]))
    effects = elections(cluster(*states, brokers=(2, 3)))
    assert elected(effects) == {T0: (2, [2, 3]), T1: (2, [2, 3]), TopicPartition("t", 3): (NO_LEADER, [1])}
    assert effects == Effects(independent=effects.independent, response=[])


def test_a_replica_on_a_failed_disk_does_not_lead() -> None:
    image = cluster(state(1, [1, 2]), state(1, [1, 2]))
    image.failed[1] = {T0}
    assert elected(elections(image)) == {T0: (2, [2])}


def test_a_member_of_the_isr_that_restarted_unnoticed_does_not_continue_to_lead() -> None:
    image = cluster(state(1, [1, 2]), state(1, [1, 2]))
    image.topics["t"].partitions[0].mzxid = BROKER_EPOCH - 1
    image.topics["t"].partitions[1].mzxid = BROKER_EPOCH
    image.brokers[2] = replace(image.brokers[2], epoch=BROKER_EPOCH - 1)
    assert elected(elections(image)) == {T0: (2, [2])}


def test_an_offline_partition_elects_only_a_member_of_its_last_isr() -> None:
    found = state(1, [1, 2, 3])
    for brokers, leader, isr in (
        ((2, 3), 2, [2, 3]),
        ((3,), 3, [3]),
        ((), NO_LEADER, [3]),
        ((1,), NO_LEADER, [3]),
        ((1, 3), 3, [3]),
    ):
        for change in elections(cluster(found, brokers=brokers)).independent:
            found = change.state
        assert (found.leader, found.isr) == (leader, isr)


@pytest.mark.parametrize(("config", "elected_leaders"), [("false", {}), ("true", {T0: (2, [2])})])
def test_a_topic_may_forbid_the_unclean_elections_that_the_controller_allows(
    config: str, elected_leaders: dict[TopicPartition, tuple[int, list[int]]]
) -> None:
    image = cluster(state(NO_LEADER, [1]), brokers=(2, 3))
    znode = ConfigZnode({"unclean.leader.election.enable": config})
    config_writes.take(image, paths.topic_config("t"), znode.encode(), 3)
    assert elected(elections(image, UNCLEAN)) == elected(elections(image)) == elected_leaders


def test_an_election_during_a_drain_changes_neither_layout_nor_lineage() -> None:
    image = cluster(brokers=(2,))
    topic = image.topics["t"] = image_of(resized(4, 6, 4))
    changes = elections(image).independent
    assert [change.tp.partition for change in changes] == list(range(6))
    for change in changes:
        before = topic.state(change.tp.partition)
        assert before is not None
        assert change.state == before.replace(
            leader=2, isr=[2], leader_epoch=before.leader_epoch + 1, controller_epoch=CONTROLLER_EPOCH
        )


def test_an_unclean_leader_is_elected_only_if_allowed_and_after_the_clean_ones() -> None:
    states = (state(1, [1]), state(1, [1, 2]), state(NO_LEADER, [1]))
    image = cluster(*states, brokers=(2, 3))
    assert elected(elections(image)) == {T0: (NO_LEADER, [1]), T1: (2, [2])}
    effects = elections(image, UNCLEAN)
    assert list(elected(effects).items()) == [(T1, (2, [2])), (T0, (2, [2])), (T2, (2, [2]))]
    _, first, second = effects.independent
    assert effects.response == [(first, [1]), (second, [1])]


@pytest.mark.trio
async def test_unclean_elections_are_logged_and_elections_are_timed() -> None:
    context = context_of(cluster(state(1, [1]), state(1, [1, 2]), brokers=(2, 3)))
    context.config = UNCLEAN
    with structlog.testing.capture_logs() as logs:
        await carry_out_all(context, partitions.elect(context, list(context.image.led_partitions())))
        await carry_out_all(context, partitions.elect(context, list(context.image.led_partitions())))
    (line,) = logs
    assert line == {
        "event": "election.unclean",
        "log_level": "warning",
        "partition": "t-0",
        "leader": 2,
        "isr": [1],
    }
    assert [context.image.topics["t"].state(p).leader for p in (0, 1)] == [2, 2]
    assert sum(context.metrics.election_ms.counts) == 1, "the second call changed nothing"


@pytest.mark.trio
async def test_a_multi_that_zookeeper_refuses_does_not_stop_the_others() -> None:
    states = [state(1, [1, 2])] * 300
    context = context_of(cluster(*states, brokers=(2, 3)), refused=[paths.partition_state("t", 0)])
    await carry_out_all(context, partitions.elect(context, list(context.image.led_partitions())))
    leaders = [found.leader for found in context.image.topics["t"].states()]
    assert (leaders[0], leaders[-1], len(context.store.multis), context.events.later) == (1, 2, 1, 1)


@pytest.mark.trio
async def test_a_thousand_partitions_lose_a_broker_in_a_few_writes() -> None:
    replicas = [[1 + index % 3, 1 + (index + 1) % 3, 1 + (index + 2) % 3] for index in range(1000)]
    context = context_of(cluster(*[state(ids[0], ids) for ids in replicas], replicas=replicas, brokers=(2, 3)))
    await carry_out_all(context, partitions.elect(context, list(context.image.led_partitions())))
    assert 1 not in [found.leader for found in context.image.topics["t"].states()]
    assert len(context.store.multis) == 4
    assert [sum(isinstance(r, LeaderAndIsrRequest) for r in sent) for sent in context.batch.build().values()] == [1, 1]


# ------------------------------------------------------------ first leaders


def awaiting(*topics: TopicImage) -> ClusterImage:
    """Return an image of topics that get their first leaders next."""
    image = cluster()
    image.topics = {topic.name: topic for topic in topics}
    image.awaiting_first_leaders = dict.fromkeys(image.topics)
    return image


def new(count: int, name: str = "t", replicas: Sequence[int] = (1, 2)) -> TopicImage:
    topic = cluster(*[None] * count, replicas=[replicas] * count).topics["t"]
    topic.name = name
    return topic


def test_a_new_partition_is_led_by_the_first_replica_that_is_available() -> None:
    image = awaiting(new(1), new(1, "u", [7]))
    image.shutting_down.add(1)
    first = PartitionState(CONTROLLER_EPOCH, 2, 0, [2])
    assert decide_first_leaders(image) == Effects(independent=[StateChange(T0, first, create=True)], response=[])


def deleted(image: ClusterImage) -> None:
    image.deletions["t"] = {}


def frozen(image: ClusterImage) -> None:
    image.topics["t"].frozen = "a contradiction"


def not_awaiting(image: ClusterImage) -> None:
    image.awaiting_first_leaders.clear()


def vanished(image: ClusterImage) -> None:
    image.topics.clear()


@pytest.mark.parametrize("why", [deleted, frozen, not_awaiting, vanished])
def test_no_first_leader_is_elected_for_a_topic_that_is_deleted_frozen_gone_or_not_awaiting_one(
    why: Callable[[ClusterImage], None],
) -> None:
    image = awaiting(new(1))
    assert decide_first_leaders(image).independent
    why(image)
    assert decide_first_leaders(image) == Effects(independent=[], response=[])


def test_partitions_that_a_split_adds_get_a_leader_later() -> None:
    assert decide_first_leaders(awaiting(image_of(asked(4, 6)))).independent == []


@pytest.mark.parametrize(
    ("counts", "left"),
    [
        ([FIRST_LEADERS_AT_ONCE], []),
        ([FIRST_LEADERS_AT_ONCE + 1], ["t0"]),
        ([FIRST_LEADERS_AT_ONCE, 1, 1], ["t1", "t2"]),
    ],
)
@pytest.mark.trio
async def test_a_limited_number_of_first_leaders_is_written_and_an_event_follows_for_the_rest(
    counts: list[int], left: list[str]
) -> None:
    context = context_of(awaiting(*(new(count, f"t{index}") for index, count in enumerate(counts))))
    await carry_out_all(context, lead_first(context, ()))
    created = [op.path for multi in context.store.multis for op in multi if isinstance(op, CreateOp)]
    assert sum(path.endswith("/state") for path in created) == FIRST_LEADERS_AT_ONCE
    assert list(context.image.awaiting_first_leaders) == left
    assert context.events.puts == ([FirstLeadersDue()] if left else [])


@pytest.mark.trio
async def test_no_event_follows_after_a_refused_write() -> None:
    """The event would try the same partitions again at once, without end."""
    context = context_of(awaiting(new(FIRST_LEADERS_AT_ONCE + 1)), refused=[paths.partition_state("t", 0)])
    await carry_out_all(context, lead_first(context, ()))
    assert (context.image.awaiting_first_leaders, context.events.puts) == ({}, [])


# ------------------------------------------------------------ first replicas


def test_first_replicas_lead_again_for_a_broker_that_leads_too_few() -> None:
    image = cluster(*[state(1, [1, 2, 3])] * 8, *[state(2, [1, 2, 3])] * 2)
    assert imbalanced(image, 10) == [TopicPartition("t", 8), TopicPartition("t", 9)]
    assert imbalanced(image, 20) == [], "20 % may be led by others"
    assert elected(decide_rebalance(image, 10)) == {TopicPartition("t", p): (1, [1, 2, 3]) for p in (8, 9)}
    assert decide_rebalance(image, 20) == Effects(independent=[])
    states = [state(1, [1, 2, 3]), *[state(1, [1, 2, 3])] * 9, state(2, [1, 2, 3])]
    two = cluster(*states, replicas=[[2, 1, 3], *[[1, 2, 3]] * 10])
    assert imbalanced(two, 10) == [T0], "only the partitions of the broker that leads too few"


def test_a_partition_keeps_its_leader_until_its_reassignment_ends() -> None:
    """As in Kafka, the first replica of the target is not elected before the end."""
    image = cluster(state(2, [1, 2, 3]))
    assert imbalanced(image, 10) == [T0]
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(adding_replicas={0: [1]})
    assert imbalanced(image, 10) == []
    assert decide_first_replicas(image, [T0]) == Effects(independent=[])


def test_a_first_replica_leads_again_only_if_it_still_can() -> None:
    image = cluster(state(2, [2, 1]), state(2, [2]), state(1, [1]))
    effects = decide_first_replicas(image, [T0, T1, T2, TopicPartition("t", 7)])
    assert elected(effects) == {T0: (1, [2, 1])}
    assert effects == Effects(independent=effects.independent)


def test_a_limited_number_of_first_replicas_lead_and_an_event_follows_for_the_others() -> None:
    image = cluster(*[state(2, [2, 1])] * (ELECTED_AT_ONCE + 2))
    tps = [TopicPartition("t", p) for p in range(ELECTED_AT_ONCE + 2)]
    effects = decide_first_replicas(image, tps)
    assert [change.tp for change in effects.independent] == tps[:ELECTED_AT_ONCE]
    assert effects.events == (FirstReplicasDue(tuple(tps[ELECTED_AT_ONCE:])),)
    assert decide_first_replicas(image, tps[:ELECTED_AT_ONCE]).events == ()
