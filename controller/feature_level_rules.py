"""Judges updates of finalized features (KIP-584, Proposed Changes). Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from anabranch.controller import view
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.plurals import listed
from anabranch.protocol.request_kinds import UpgradeType
from anabranch.zk_schemas.broker_registration import VersionRange
from anabranch.zk_schemas.features import (
    CONSUMER_OFFSETS_TOPIC_SCHEMA,
    GROUP_COORDINATOR,
    LINEAGE_LEVEL,
    MAX_LEVEL,
    ORDERED_RESIZE,
    REQUIRED,
    Features,
    FeaturesStatus,
    FinalizedFeature,
    described,
    supports,
)

Ranges = Mapping[str, VersionRange]

_LOST = {
    ORDERED_RESIZE: (
        LINEAGE_LEVEL,
        "topics {} were resized or could not be loaded, and a release that does not know lineages would not keep the"
        " order of keys when it writes or reads these topics.",
    ),
    GROUP_COORDINATOR: (
        2,
        "topics {} were resized or could not be loaded, and a group member that waits for another member to process"
        " moved keys would wait until the level is raised again.",
    ),
    CONSUMER_OFFSETS_TOPIC_SCHEMA: (
        2,
        "topics {} were resized or could not be loaded, and committed offsets would no longer name the incarnation of"
        " their partition.",
    ),
}
"""For each feature: the lowest level without a loss, and what resized topics lose below this level."""


@dataclass(frozen=True, slots=True)
class Update:
    """The requested level of a feature. A level below 1 deletes the feature."""

    feature: str
    level: int
    type: UpgradeType


@dataclass(frozen=True, slots=True)
class FeatureFacts:
    """The facts by which updates are judged: the supported levels of the controller and of live brokers, and losses.

    ``lost(feature, level)`` describes the loss if the feature goes down to this level; empty if nothing is lost.
    ``blocked(feature, level)`` describes an obstacle even to an unsafe downgrade; empty if there is no obstacle.
    """

    supported: Ranges
    brokers: Mapping[int, Ranges]
    lost: Callable[[str, int], str] = lambda feature, level: ""
    blocked: Callable[[str, int], str] = lambda feature, level: ""


def judge(
    finalized: Features, updates: Sequence[Update], cluster: FeatureFacts
) -> tuple[Features, dict[str, KafkaError | None]]:
    """The finalized features after the updates, and each feature's error. The error is None if the update was applied.

    Valid updates are applied even if others are refused. An update is refused if it takes away a level that a finalized
    feature requires (``REQUIRED``). The first update of a disabled cluster enables it, and drops the levels that were
    written while it was disabled.
    """
    stored, finalized = finalized, finalized.in_force()
    results: dict[str, KafkaError | None] = {}
    accepted: dict[str, Update] = {}
    named = Counter(update.feature for update in updates)
    for update in updates:
        try:
            if named[update.feature] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, f"{update.feature!r} is named more than once.")
            _check(finalized, update, cluster)
        except KafkaError as error:
            results[update.feature] = error
        else:
            results[update.feature] = None
            accepted[update.feature] = update
    while True:
        outcome = _applied(finalized, accepted.values(), cluster) if accepted else stored
        refused = _unmet(outcome, accepted)
        if not refused:
            return outcome, results
        results |= refused
        for name in refused:
            del accepted[name]


def with_risen_minimums(finalized: Features, brokers: Iterable[Ranges]) -> Features:
    """The features with each minimum level raised to the lowest minimum of the live brokers.

    No live broker supports levels below that minimum. A minimum level never passes the level in force, and never falls.
    Without brokers nothing is raised.
    """
    ranges = list(brokers)
    features = dict(finalized.features)
    for name, feature in finalized.in_force().features.items():
        known = [own[name].min_version for own in ranges if name in own]
        lowest = min(min(known, default=1), feature.max_version_level)
        if len(known) == len(ranges) and lowest > feature.min_version_level:
            features[name] = replace(feature, min_version_level=lowest)
    return replace(finalized, features=features)


def for_new_cluster(supported: Ranges) -> Features:
    """All features of the controller's release, each at its highest level."""
    return Features(
        FeaturesStatus.ENABLED,
        {name: FinalizedFeature(own.min_version, own.max_version) for name, own in sorted(supported.items())},
    )


def _check(finalized: Features, update: Update, cluster: FeatureFacts) -> None:
    """Check one update independently of the others. Raises ``KafkaError``."""
    name, level = update.feature, update.level
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "A feature needs a name.")
    found = finalized.features.get(name)
    if level < 1:
        if update.type is UpgradeType.UPGRADE:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Level {level} deletes the finalized feature {name!r}: allow the downgrade to do so.",
            )
        if found is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"The feature {name!r} is not finalized: nothing to delete.")
        return _check_downgrade(update, cluster)
    if name not in cluster.supported:
        known = ", ".join(sorted(cluster.supported))
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"The feature {name!r} is not supported; the controller supports {known}."
        )
    if level > MAX_LEVEL or not supports(cluster.supported, name, level):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            f"Level {level} of {name!r} is out of range: the controller supports {described(cluster.supported[name])}.",
        )
    if found is not None:
        _check_direction(found, update, cluster)
    elif update.type is not UpgradeType.UPGRADE:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The feature {name!r} is not finalized: nothing to downgrade.")
    _check_brokers(update, cluster)


def _check_direction(found: FinalizedFeature, update: Update, cluster: FeatureFacts) -> None:
    name, level, current = update.feature, update.level, found.max_version_level
    downgrade = update.type is not UpgradeType.UPGRADE
    if level == current:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"The feature {name!r} is finalized at level {level} already.")
    if level > current and downgrade:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Level {level} of {name!r} is no downgrade: level {current} is finalized."
        )
    if level < current:
        if not downgrade:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Level {level} of {name!r} is a downgrade from level {current}: allow the downgrade to do so.",
            )
        if level < found.min_version_level:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Level {level} of {name!r} is below the finalized minimum level {found.min_version_level}.",
            )
        _check_downgrade(update, cluster)


def _check_downgrade(update: Update, cluster: FeatureFacts) -> None:
    if obstacle := cluster.blocked(update.feature, update.level):
        raise KafkaError(ErrorCode.FEATURE_UPDATE_FAILED, obstacle)
    if update.type is UpgradeType.SAFE_DOWNGRADE and (loss := cluster.lost(update.feature, update.level)):
        raise KafkaError(
            ErrorCode.FEATURE_UPDATE_FAILED, f"The downgrade is not safe: {loss} An unsafe downgrade is still possible."
        )


def lost(image: ClusterImage, feature: str, level: int) -> str:
    """A description of the loss when the feature goes down to ``level``; empty if nothing is lost."""
    lowest, message = _LOST.get(feature, (0, ""))
    if level >= lowest:
        return ""
    resized = sorted([*image.malformed, *(name for name, topic in _kept(image) if topic.has_layouts())])
    return message.format(listed(resized)) if resized else ""


def blocked(image: ClusterImage, feature: str, level: int) -> str:
    """A description of an obstacle even to an unsafe downgrade; empty if there is none."""
    if feature not in _LOST or level >= _LOST[feature][0]:
        return ""
    resizing = [name for name, topic in _kept(image) if not view.is_over(topic)]
    if not resizing:
        return ""
    first = f"{resizing[0]}: {view.unfinished(image.topics[resizing[0]])}"
    return f"Topics {listed(resizing)} are being resized: wait until that is done ({first})."


def _kept(image: ClusterImage) -> list[tuple[str, TopicImage]]:
    """The topics that are not being deleted, by name."""
    return [(name, topic) for name, topic in sorted(image.topics.items()) if name not in image.deletions]


def _check_brokers(update: Update, cluster: FeatureFacts) -> None:
    name, level = update.feature, update.level
    if not cluster.brokers:
        raise KafkaError(
            ErrorCode.FEATURE_UPDATE_FAILED, f"Level {level} of {name!r} cannot be finalized: no broker is registered."
        )
    lacking = [
        f"broker {broker} supports {described(ranges.get(name))}"
        for broker, ranges in sorted(cluster.brokers.items())
        if not supports(ranges, name, level)
    ]
    if lacking:
        raise KafkaError(
            ErrorCode.FEATURE_UPDATE_FAILED,
            f"Not every broker supports level {level} of {name!r}: {'; '.join(lacking)}.",
        )


def _applied(finalized: Features, updates: Collection[Update], cluster: FeatureFacts) -> Features:
    features = dict(finalized.features)
    for update in updates:
        found = features.get(update.feature)
        if update.level < 1:
            features.pop(update.feature, None)
        elif found is not None:
            features[update.feature] = replace(found, max_version_level=update.level)
        else:
            low = min(ranges[update.feature].min_version for ranges in cluster.brokers.values())
            features[update.feature] = FinalizedFeature(low, update.level)
    return replace(finalized, features=features, status=FeaturesStatus.ENABLED)


def _unmet(outcome: Features, accepted: Mapping[str, Update]) -> dict[str, KafkaError]:
    """The accepted updates that leave a finalized feature without a level that it requires, with their errors."""
    refused: dict[str, KafkaError] = {}
    for (name, from_level), needs in REQUIRED.items():
        if outcome.level(name) < from_level:
            continue
        for needed, level in needs.items():
            if outcome.level(needed) >= level:
                continue
            for update in (needed, name):
                if update in accepted:
                    refused[update] = KafkaError(
                        ErrorCode.FEATURE_UPDATE_FAILED,
                        f"Level {from_level} of {name!r} needs {needed!r} at level {level} or above.",
                    )
                    break
    return refused
