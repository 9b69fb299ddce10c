"""Keeps the first leader epoch of new partitions above every leader epoch of deleted topics.

A client that reads a topic while it is deleted and created again then takes the new leaders for newer ones. With a
lower epoch, the client ignores the new metadata as old, or goes on at its old position in the new log (librdkafka does
both).
"""

from __future__ import annotations

import dataclasses

import structlog

from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import FirstLeaderEpochChanged
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.env import CreateOp, SetOp, Znode
from anabranch.zk_schemas.first_leader_epoch import MAX_FIRST_EPOCH, FirstLeaderEpoch
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


def on_first_leader_epoch_read(context: Context, found: Znode | None) -> Decisions[None]:
    """Take the znode, before the topics are read. A malformed znode counts as 0, and the next deletion replaces it."""
    yield from ()  # nothing is written
    image = context.image
    image.first_leader_epoch, image.first_leader_epoch_version = FirstLeaderEpoch(0), NO_EPOCH
    if found is None:
        return
    image.first_leader_epoch_version = found.version
    try:
        image.first_leader_epoch = FirstLeaderEpoch.decode(FirstLeaderEpoch.PATH, found.data)
    except MalformedZnodeError as error:
        logger.error("first_leader_epoch.malformed", error=str(error))


def raise_above(context: Context, topic: TopicImage) -> Decisions[None]:
    """Raise the number above every leader epoch that the topic had, before the topic's znodes are removed."""
    effects = decide_raised(context.image, topic)
    if effects is not None:
        yield effects


def decide_raised(image: ClusterImage, topic: TopicImage) -> Effects | None:
    """The effects that raise the number above the topic's leader epochs; None if it is above them already."""
    highest = max(
        (*(state.leader_epoch for state in topic.states()), *topic.znode.last_leader_epochs.values()), default=NO_EPOCH
    )
    if highest >= MAX_FIRST_EPOCH:
        logger.error("first_leader_epoch.exhausted", topic=topic.name, leader_epoch=highest, limit=MAX_FIRST_EPOCH)
    first, version = image.first_leader_epoch, image.first_leader_epoch_version
    raised = dataclasses.replace(first, epoch=min(highest + 1, MAX_FIRST_EPOCH))
    if raised.epoch <= first.epoch:
        return None
    path, data = FirstLeaderEpoch.PATH, raised.encode()
    return Effects(
        writes=(CreateOp(path, data) if version < 0 else SetOp(path, data, version),),
        first_leader_epoch=raised,
        events=(FirstLeaderEpochChanged(),) if version < 0 else (),  # its handler sets the watch
    )
