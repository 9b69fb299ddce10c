"""The handler of each kind of event.

A decision is a plain function of the image, and the active controller carries the decision's effects out. An update
writes nothing: it changes the image and the batch at once. A procedure reads ZooKeeper, or makes several decisions,
each from the image after the previous decision.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import structlog

from anabranch.controller import (
    appended_bytes,
    autoscale,
    brokers,
    config_changes,
    deletion,
    features,
    leaders,
    log_dirs,
    partitions,
    reassignment,
    stock_producers,
    topics,
)
from anabranch.controller.admin import dispatch
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Effects
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
    FirstLeadersDue,
    FirstReplicasDue,
    HoldsFound,
    LeadersDue,
    LogDirsFailed,
    QuestionsDue,
    ReadAgainDue,
    ReassignmentsDue,
    RefusalsDue,
    RemovalDue,
    ResizesDue,
    TopicChanged,
    TopicListChanged,
    WatchedStateChanged,
)
from anabranch.controller.image import ClusterImage
from anabranch.controller.request_batch import BrokerRequest
from anabranch.controller.resize import ends, held_records, removal, steps
from anabranch.controller.store import ControllerMovedError, ImageStaleError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.generated.list_offsets import ListOffsetsRequest
from anabranch.protocol.generated.stop_replica import StopReplicaRequest
from anabranch.protocol.generated.update_metadata import UpdateMetadataRequest

logger = structlog.get_logger(__name__)
E = TypeVar("E", bound=Event)
Decision: TypeAlias = Callable[[ClusterImage, ControllerConfig, E], Effects]
Update: TypeAlias = Callable[[Context, E], None]
Procedure: TypeAlias = Callable[[Context, E], Awaitable[None]]


def _decision(event: type[E], decide: Decision[E]) -> tuple[type, Decision[Any]]:
    return event, decide


def _update(event: type[E], update: Update[E]) -> tuple[type, Update[Any]]:
    return event, update


def _procedure(event: type[E], proceed: Procedure[E]) -> tuple[type, Procedure[Any]]:
    return event, proceed


async def _on_brokers_changed(context: Context, _event: BrokersChanged) -> None:
    await brokers.on_brokers_changed(context)
    await features.settle(context)


async def _on_questions_due(context: Context, _event: QuestionsDue) -> None:
    ends.ask_again(context)
    await steps.advance(context)


async def _on_drains_due(context: Context, _event: DrainsDue) -> None:
    ends.look_again(context)
    await steps.advance(context)


def _on_read_again_due(_context: Context, _event: ReadAgainDue) -> None:
    raise ImageStaleError("a step was given up, and is tried again")


async def _on_broker_answered(context: Context, event: BrokerAnswered) -> None:
    """Process a response, unless the broker has registered again since. Raises ``ControllerMovedError``."""
    broker = context.image.brokers.get(event.broker.id)
    if getattr(event.response, "error_code", ErrorCode.NONE) == ErrorCode.STALE_CONTROLLER_EPOCH:
        raise ControllerMovedError(f"broker {event.broker.id} knows a later controller epoch")
    if broker is None or broker.epoch != event.broker.epoch:
        return
    if isinstance(event.request, LeaderAndIsrRequest):
        await brokers.on_leader_and_isr_answered(context, event)
    else:
        ANSWERS[type(event.request)](context, event)


def _on_stop_replica_answered(context: Context, event: BrokerAnswered) -> None:
    deletion.on_stop_replica_answered(context, event)
    removal.on_stop_replica_answered(context, event)


def _on_metadata_answered(context: Context, event: BrokerAnswered) -> None:
    if event.response.error_code:
        logger.error(
            "broker.request_refused",
            broker=event.broker.id,
            request="UpdateMetadata",
            error=ErrorCode.of(event.response.error_code).name,
        )
        return
    stock_producers.on_metadata_answered(context, event)
    appended_bytes.on_metadata_answered(context, event)


DECISIONS: Mapping[type, Decision[Any]] = dict(
    [
        _decision(
            LeadersDue,
            lambda image, config, _: leaders.decide_rebalance(image, config.leader_imbalance_per_broker_percentage),
        ),
        _decision(FirstReplicasDue, lambda image, _, event: leaders.decide_first_replicas(image, event.tps)),
    ]
)
UPDATES: Mapping[type, Update[Any]] = dict(
    [
        _update(RefusalsDue, lambda context, _: brokers.on_refusals_due(context)),
        _update(HoldsFound, lambda context, event: held_records.send(context, event.holds)),
        _update(ReadAgainDue, _on_read_again_due),
    ]
)
PROCEDURES: Mapping[type, Procedure[Any]] = dict(
    [
        _procedure(BrokersChanged, _on_brokers_changed),
        _procedure(TopicListChanged, lambda context, _: topics.on_topic_list_changed(context)),
        _procedure(TopicChanged, lambda context, event: topics.on_topic_changed(context, event.name)),
        _procedure(WatchedStateChanged, lambda context, event: topics.on_watched_state_changed(context, event.tp)),
        _procedure(FirstLeadersDue, lambda context, _: partitions.lead_first(context, ())),
        _procedure(RemovalDue, lambda context, event: deletion.remove_znodes(context, event.name)),
        _procedure(DeletionsChanged, lambda context, _: deletion.on_deletions_changed(context)),
        _procedure(ConfigsChanged, lambda context, _: config_changes.on_configs_changed(context)),
        _procedure(FeaturesChanged, lambda context, _: features.on_features_changed(context)),
        _procedure(LogDirsFailed, lambda context, _: log_dirs.on_log_dirs_failed(context)),
        _procedure(ReassignmentsDue, lambda context, _: reassignment.advance(context)),
        _procedure(ResizesDue, lambda context, _: steps.advance(context)),
        _procedure(QuestionsDue, _on_questions_due),
        _procedure(DrainsDue, _on_drains_due),
        _procedure(AutoscaleDue, lambda context, _: autoscale.look(context)),
        _procedure(BrokerAnswered, _on_broker_answered),
        _procedure(AdminCall, dispatch.on_call),
    ]
)
ANSWERS: Mapping[type[BrokerRequest], Update[BrokerAnswered]] = {
    StopReplicaRequest: _on_stop_replica_answered,
    ListOffsetsRequest: ends.on_offsets_answered,
    UpdateMetadataRequest: _on_metadata_answered,
}
"""The handler of each request's response, except LeaderAndIsr, whose response may be followed by elections."""
