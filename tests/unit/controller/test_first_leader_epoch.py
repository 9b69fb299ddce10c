"""The first leader epoch of new partitions is above every leader epoch of deleted topics."""

from __future__ import annotations

import pytest

from anabranch.controller.carry_out import carry_out, carry_out_all
from anabranch.controller.effects import Effects
from anabranch.controller.events import FirstLeaderEpochChanged
from anabranch.controller.first_leader_epoch import decide_raised, on_first_leader_epoch_read
from anabranch.controller.image import ClusterImage
from anabranch.controller.partitions import decide_first_leaders
from anabranch.controller.reads.topics import FoundTopics
from anabranch.controller.topics import on_topic_list_changed
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.env import CreateOp, SetOp, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.first_leader_epoch import MAX_FIRST_EPOCH, FirstLeaderEpoch
from tests.support.controller.decisions import cluster, context_of, decided, state

PATH = paths.FIRST_LEADER_EPOCH


def read(image: ClusterImage, found: Znode | None) -> None:
    assert decided(on_first_leader_epoch_read(context_of(image), found)) == []


def test_a_deletion_raises_it_above_every_epoch_of_the_topic() -> None:
    image = cluster(state(1, [1], leader_epoch=4), state(1, [1], leader_epoch=6), None)
    raised = FirstLeaderEpoch(7)
    assert decide_raised(image, image.topics["t"]) == Effects(
        writes=(CreateOp(PATH, raised.encode()),), first_leader_epoch=raised, events=(FirstLeaderEpochChanged(),)
    )


def test_partitions_that_were_removed_before_count_too() -> None:
    image = cluster(state(1, [1], leader_epoch=4))
    topic = image.topics["t"]
    topic.znode = topic.znode.replace(last_leader_epochs={1: 9})
    effects = decide_raised(image, topic)
    assert effects is not None and effects.first_leader_epoch == FirstLeaderEpoch(10)


def test_it_is_a_maximum_and_no_sum() -> None:
    image = cluster(state(1, [1], leader_epoch=4))
    read(image, Znode(FirstLeaderEpoch(5).encode(), 3, 1, 1, 0))
    assert decide_raised(image, image.topics["t"]) is None
    read(image, Znode(FirstLeaderEpoch(4, extra={"theirs": 1}).encode(), 3, 1, 1, 0))
    raised = FirstLeaderEpoch(5, extra={"theirs": 1})
    assert decide_raised(image, image.topics["t"]) == Effects(
        writes=(SetOp(PATH, raised.encode(), 3),), first_leader_epoch=raised
    )


def test_it_leaves_epochs_for_elections() -> None:
    image = cluster(state(1, [1], leader_epoch=2**31 - 2))
    effects = decide_raised(image, image.topics["t"])
    assert effects is not None and effects.first_leader_epoch == FirstLeaderEpoch(MAX_FIRST_EPOCH)


def test_a_topic_that_was_never_led_raises_nothing() -> None:
    image = cluster(None)
    assert decide_raised(image, image.topics["t"]) is None


def test_a_malformed_znode_is_replaced_by_the_next_deletion() -> None:
    image = cluster(state(1, [1], leader_epoch=4))
    read(image, Znode(b'{"first_leader_epoch":"many"}', 8, 1, 1, 0))
    effects = decide_raised(image, image.topics["t"])
    assert effects is not None and effects.writes == (SetOp(PATH, FirstLeaderEpoch(5).encode(), 8),)


@pytest.mark.trio
async def test_what_is_written_is_used_by_the_next_first_leaders() -> None:
    image = cluster(state(1, [1], leader_epoch=4), None)
    context = context_of(image)
    effects = decide_raised(image, image.topics["t"])
    assert effects is not None
    await carry_out(context, effects)
    assert (image.first_leader_epoch, image.first_leader_epoch_version) == (FirstLeaderEpoch(5), 0)
    image.awaiting_first_leaders = dict.fromkeys(image.topics)
    assert [change.state.leader_epoch for change in decide_first_leaders(image).independent] == [5]


def test_a_deleted_znode_counts_as_0() -> None:
    image = cluster()
    read(image, Znode(FirstLeaderEpoch(4).encode(), 3, 1, 1, 0))
    read(image, None)
    assert (image.first_leader_epoch, image.first_leader_epoch_version) == (FirstLeaderEpoch(0), NO_EPOCH)


@pytest.mark.trio
async def test_a_topic_that_is_removed_by_hand_raises_it_too() -> None:
    image = cluster(state(1, [1], leader_epoch=4))
    context = context_of(image)
    context.events.forget_watch = lambda _: None
    await carry_out_all(context, on_topic_list_changed(context, FoundTopics([], [])))
    assert (image.topics, image.first_leader_epoch) == ({}, FirstLeaderEpoch(5))
