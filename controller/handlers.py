"""The handler of each kind of event: its reads from ZooKeeper, and then its decisions.

Decisions are plain functions of the image and of the facts that were read. A handler yields the effects of one decision
after another. Each decision uses the image after the previous one. The active controller carries the effects out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import structlog

from anabranch.controller import (
    appended_bytes,
    autoscale_rounds,
    brokers,
    config_changes,
    deletion,
    features,
    first_leader_epoch,
    leaders,
    log_dirs,
    partitions,
    reassignment,
    stock_producer_reports,
    topics,
)
from anabranch.controller.admin import dispatch
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import (
    AdminCall,
    AutoscaleDue,
    BrokerAnswered,
    BrokersChanged,
    ConfigsChanged,
    DeletionsChanged,
    DrainsDue,
    Event,
    FeaturesChanged,
    FeaturesDue,
    FirstLeaderEpochChanged,
    FirstLeadersDue,
    FirstReplicasDue,
    LeadersDue,
    LogDirsFailed,
    PartitionProcessed,
    QuestionsDue,
    ReadAgainDue,
    ReassignmentsDue,
    RefusalsDue,
    RemovalDue,
    ReplicasBehind,
    ResizesDue,
    RetainOrdersFound,
    TopicChanged,
    TopicListChanged,
    WatchedStateChanged,
)
from anabranch.controller.image import ClusterImage
from anabranch.controller.reads.brokers import read_locked
from anabranch.controller.reads.config_znodes import read_all_configs, read_changed_configs
from anabranch.controller.reads.deletion_requests import read_deleted, read_deletions
from anabranch.controller.reads.features import read_features, read_features_znode
from anabranch.controller.reads.first_leader_epoch import read_first_leader_epoch
from anabranch.controller.reads.log_dirs import read_log_dir_events
from anabranch.controller.reads.requests import read_facts, read_nothing
from anabranch.controller.reads.topics import read_topic_change, read_topic_list, read_watched_state
from anabranch.controller.request_batch import BrokerRequest
from anabranch.controller.resize import deleting_replicas, ends, steps, unread_expiry
from anabranch.controller.store import ControllerMovedError, ImageStaleError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest

logger = structlog.get_logger(__name__)
E = TypeVar("E", bound=Event)
F = TypeVar("F")


class Handler(NamedTuple):
    """The handler of one kind of event. ``decide`` gets the facts that ``read`` returned."""

    read: Callable[[Context, Any], Awaitable[Any]]
    decide: Callable[[Context, Any, Any], Decisions[None]]


Row: TypeAlias = tuple[type, Handler]


def _reading(
    event: type[E],
    read: Callable[[Context, E], Awaitable[F]],
    decide: Callable[[Context, E, F], Decisions[None]],
) -> Row:
    return event, Handler(read, decide)


def _reading_all(
    event: type[E], read: Callable[[Context], Awaitable[F]], decide: Callable[[Context, F], Decisions[None]]
) -> Row:
    """The row of an event that has no fields. ``read`` and ``decide`` therefore do not get the event."""
    return event, Handler(lambda context, _: read(context), lambda context, _, found: decide(context, found))


def _from_image(event: type[E], decide: Callable[[Context, E], Decisions[None]]) -> Row:
    """Decisions that need no facts besides the image."""
    return event, Handler(read_nothing, lambda context, due, _: decide(context, due))


def _single(event: type[E], decide: Callable[[ClusterImage, ControllerConfig, E], Effects]) -> Row:
    """One decision that needs no facts besides the image."""

    def decide_once(context: Context, due: E, _: None) -> Decisions[None]:
        yield decide(context.image, context.config, due)

    return event, Handler(read_nothing, decide_once)


def _update(event: type[E], update: Callable[[Context, E], None]) -> Row:
    """A change of the image and the batch that needs no write."""

    def decide_nothing(context: Context, due: E, _: None) -> Decisions[None]:
        yield from ()  # nothing is written
        update(context, due)

    return event, Handler(read_nothing, decide_nothing)


def _on_questions_due(context: Context, _event: QuestionsDue) -> Decisions[None]:
    ends.ask_again(context)
    yield from steps.advance(context)


def _on_drains_due(context: Context, _event: DrainsDue) -> Decisions[None]:
    ends.look_again(context)
    yield from steps.advance(context)


def _on_read_again_due(_context: Context, _event: ReadAgainDue) -> None:
    raise ImageStaleError("a step was given up, and is tried again")


def _on_broker_answered(context: Context, event: BrokerAnswered) -> Decisions[None]:
    """Process a response, unless the broker has registered again since. Raises ``ControllerMovedError``."""
    broker = context.image.brokers.get(event.broker.id)
    if getattr(event.response, "error_code", ErrorCode.NONE) == ErrorCode.STALE_CONTROLLER_EPOCH:
        raise ControllerMovedError(
            f"broker {event.broker.id} knows a controller epoch above {context.image.controller_epoch}"
        )
    if broker is None or broker.epoch != event.broker.epoch:
        return
    if isinstance(event.request, LeaderAndIsrRequest):
        yield from brokers.on_leader_and_isr_answered(context, event)
    else:
        ANSWERS[type(event.request)](context, event)


def _on_stop_replica_answered(context: Context, event: BrokerAnswered) -> None:
    deletion.on_stop_replica_answered(context, event)
    deleting_replicas.on_stop_replica_answered(context, event)


def _on_metadata_answered(context: Context, event: BrokerAnswered) -> None:
    if event.response.error_code:
        logger.error(
            "broker.request_refused",
            broker=event.broker.id,
            request="UpdateMetadata",
            error=ErrorCode.of(event.response.error_code).name,
        )
        return
    stock_producer_reports.on_metadata_answered(context, event)
    appended_bytes.on_metadata_answered(context, event)


HANDLERS: Mapping[type, Handler] = dict(
    [
        _single(
            LeadersDue,
            lambda image, config, _: leaders.decide_rebalance(image, config.leader_imbalance_per_broker_percentage),
        ),
        _single(FirstReplicasDue, lambda image, _, event: leaders.decide_first_replicas(image, event.tps)),
        _update(RefusalsDue, lambda context, _: brokers.on_refusals_due(context)),
        _update(RetainOrdersFound, lambda context, event: unread_expiry.send(context, event.orders)),
        _update(PartitionProcessed, ends.on_partition_processed),
        _update(ReplicasBehind, ends.on_replicas_behind),
        _update(ReadAgainDue, _on_read_again_due),
        _from_image(FirstLeadersDue, lambda context, _: partitions.lead_first(context, ())),
        _from_image(ReassignmentsDue, lambda context, _: reassignment.advance(context)),
        _from_image(ResizesDue, lambda context, _: steps.advance(context)),
        _from_image(QuestionsDue, _on_questions_due),
        _from_image(DrainsDue, _on_drains_due),
        _from_image(AutoscaleDue, lambda context, _: autoscale_rounds.look(context)),
        _from_image(BrokerAnswered, _on_broker_answered),
        _reading_all(BrokersChanged, read_locked, brokers.on_brokers_changed),
        _reading_all(TopicListChanged, read_topic_list, topics.on_topic_list_changed),
        _reading_all(DeletionsChanged, read_deletions, deletion.on_deletions_changed),
        _reading_all(ConfigsChanged, read_changed_configs, config_changes.on_configs_changed),
        _reading_all(FeaturesChanged, read_features, features.on_features_changed),
        _reading_all(FirstLeaderEpochChanged, read_first_leader_epoch, first_leader_epoch.on_first_leader_epoch_read),
        _reading_all(FeaturesDue, read_locked, features.settle),
        _reading_all(LogDirsFailed, read_log_dir_events, log_dirs.on_log_dirs_failed),
        _reading(TopicChanged, read_topic_change, topics.on_topic_changed),
        _reading(WatchedStateChanged, read_watched_state, topics.on_watched_state_changed),
        _reading(RemovalDue, read_deleted, deletion.remove_znodes),
        _reading(AdminCall, read_facts, dispatch.on_call),
    ]
)
LOADING: Sequence[Row] = [
    _reading_all(FeaturesChanged, read_features_znode, features.on_features_loaded),
    _reading_all(ConfigsChanged, read_all_configs, config_changes.on_configs_loaded),
    *((event, HANDLERS[event]) for event in (FirstLeaderEpochChanged, TopicListChanged, DeletionsChanged)),
    _reading_all(BrokersChanged, read_locked, brokers.on_brokers_loaded),
    *((event, HANDLERS[event]) for event in (LogDirsFailed, FeaturesDue)),
]
"""The handlers that read the whole cluster, in order. Each is named by the event that reports later changes."""
ANSWERS: Mapping[type[BrokerRequest], Callable[[Context, BrokerAnswered], None]] = {
    StopReplicaRequest: _on_stop_replica_answered,
    ListOffsetsRequest: ends.on_offsets_answered,
    UpdateMetadataRequest: _on_metadata_answered,
}
"""The handler of each request's response, except LeaderAndIsr, whose response may be followed by elections."""
