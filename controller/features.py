"""Reads, watches and writes ``/features`` for the active controller (KIP-584); ``feature_level_rules`` judges.

A write of ``/features`` and the registration of a broker both set ``/brokers/registrations``, at a version that the
writer reads first. After reading the version, the controller reads the registered brokers, and a broker reads
``/features``. If a write of ``/features`` and a registration happen at once, one of the two fails and reads again. So
every live broker supports the finalized features at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import BrokersChanged, FeaturesChanged, ResizesDue
from anabranch.controller.feature_level_rules import for_new_cluster, with_risen_minimums
from anabranch.controller.image import ClusterImage
from anabranch.controller.reads.brokers import LockedBrokers
from anabranch.controller.reads.features import FoundFeatures
from anabranch.protocol.sentinels import NO_EPOCH
from anabranch.runtime.env import CreateOp, SetOp, Znode
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.features import Features, FeaturesStatus, IncompatibleFeaturesError, misfits
from anabranch.zk_schemas.znode import MalformedZnodeError

logger = structlog.get_logger(__name__)


def on_features_loaded(context: Context, found: Znode | None) -> Decisions[None]:
    """Take ``/features`` before the topics and brokers are read, because they are judged by it."""
    yield from ()  # nothing is written
    _take(context, found)


def _take(context: Context, found: Znode | None) -> None:
    """Take ``/features``. Raises ``IncompatibleFeaturesError`` when this controller does not support the levels."""
    image = context.image
    image.features, image.features_epoch, image.features_problem = Features(FeaturesStatus.DISABLED), NO_EPOCH, ""
    if found is None:
        return
    image.features_epoch = found.version
    try:
        image.features = Features.decode(paths.FEATURES, found.data)
    except MalformedZnodeError as error:
        image.features_problem = str(error)
        logger.error("features.malformed", error=str(error))
        return
    check_supported(context.config.features, image.features)


def check_supported(supported: Mapping[str, VersionRange], finalized: Features) -> None:
    """Raises ``IncompatibleFeaturesError``."""
    if problems := misfits(supported, finalized):
        raise IncompatibleFeaturesError("; ".join(problems))


def settle(context: Context, brokers: LockedBrokers) -> Decisions[None]:
    """Create a missing ``/features``, and raise minimum levels that no live broker supports.

    A cluster without topics finalizes all features, if every broker supports them. A cluster with topics comes from a
    release without feature versions. ``/features`` then has the status "disabled" until the first update (KIP-584,
    Migration).
    """
    if context.image.features_problem:
        return
    yield from write(context, decide_settled(context.image, context.config, brokers))


def decide_settled(image: ClusterImage, config: ControllerConfig, brokers: LockedBrokers) -> Effects:
    """The effects that create a missing ``/features``, or raise its minimum levels."""
    ranges = [broker.registration.features for broker in brokers.live.values()]
    if image.features_epoch >= 0:
        return becoming(image, with_risen_minimums(image.features, ranges), brokers)
    features = for_new_cluster(config.features)
    if image.topics or image.malformed or any(misfits(own, features) for own in ranges):
        features = Features(FeaturesStatus.DISABLED)
    return becoming(image, features, brokers)


def on_features_changed(context: Context, found: FoundFeatures) -> Decisions[None]:
    """Process a change of ``/features``, perhaps a manual edit."""
    _take(context, found.znode)
    yield from settle(context, found.brokers)
    context.events.put(BrokersChanged())  # refused brokers may support the levels now, and live ones may not
    context.events.put(ResizesDue())


def becoming(image: ClusterImage, features: Features, brokers: LockedBrokers) -> Effects:
    """The effects that finalize ``features``; none if they are finalized already."""
    lock, epoch, data = brokers.version, image.features_epoch, features.encode()
    if epoch >= 0 and features == image.features:
        return Effects()
    return Effects(
        writes=(
            CreateOp(paths.REGISTRATIONS, b"") if lock < 0 else SetOp(paths.REGISTRATIONS, b"", lock),
            CreateOp(paths.FEATURES, data) if epoch < 0 else SetOp(paths.FEATURES, data, epoch),
        ),
        features=features,
        events=(FeaturesChanged(),) if epoch < 0 else (),  # its handler sets the watch
    )


def write(context: Context, effects: Effects) -> Decisions[None]:
    """Write and log the effects.

    Raises ``ImageStaleError`` when a broker registered since the brokers were read, or ``/features`` changed.
    """
    yield effects
    if (features := effects.features) is not None:
        levels = {name: feature.max_version_level for name, feature in sorted(features.features.items())}
        epoch = context.image.features_epoch
        logger.info("features.written", epoch=epoch, status=features.status.name, levels=levels)
