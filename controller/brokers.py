"""Handles brokers that register, disappear or register again, and their responses to LeaderAndIsr."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

import structlog

from anabranch.controller import deletion
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import BrokerAnswered, FeaturesDue, ReassignmentsDue, ResizesDue
from anabranch.controller.image import ClusterImage, LiveBroker
from anabranch.controller.partitions import elect, elect_after_broker_change
from anabranch.controller.reads.brokers import LockedBrokers
from anabranch.controller.request_batch import inter_broker_endpoint
from anabranch.controller.resize import steps
from anabranch.controller.state_writes import StateChange
from anabranch.controller.store import ImageStaleError
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.leader_and_isr import LeaderAndIsrRequest
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.features import misfits

logger = structlog.get_logger(__name__)

CLOCKS_DIFFER_MS = 60_000
"""A broker that registers is warned about if its clock is this far from the controller's."""


class Difference(NamedTuple):
    """The differences between the registrations and the image."""

    refused: dict[int, str]
    """Brokers that do not support a finalized feature level, with the reason.

    They count as gone: they lead nothing (KIP-584, Feature versioning and guarantees). A broker of a release without
    features registers in any case, and would break rules that the other brokers rely on.
    """
    gone: list[int]
    """Brokers that are not registered any more, or have registered again with another broker epoch."""
    joined: list[LiveBroker]
    changed: list[LiveBroker]
    """Brokers that only changed their registration (KIP-226). They stay, and every broker gets their new addresses."""


def difference(image: ClusterImage, registered: Mapping[int, LiveBroker]) -> Difference:
    """The differences, in order of broker; ``changed`` and ``refused`` in the order of ``registered``."""
    problems = {
        id: misfits(broker.registration.features, image.features, f"broker {id}") for id, broker in registered.items()
    }
    present = {id: broker for id, broker in registered.items() if not problems[id]}
    gone = [
        id for id, broker in sorted(image.brokers.items()) if id not in present or present[id].epoch != broker.epoch
    ]
    return Difference(
        {id: "; ".join(found) for id, found in problems.items() if found},
        gone,
        [broker for id, broker in sorted(present.items()) if id in gone or id not in image.brokers],
        [broker for id, broker in present.items() if id not in gone and image.brokers.get(id, broker) != broker],
    )


def clock_ahead_ms(broker: LiveBroker, now_ms: int) -> int:
    """The milliseconds by which a broker that has just registered is ahead of this clock; 0 if that is not known."""
    registered_ms = broker.registration.timestamp_ms
    return registered_ms - now_ms if registered_ms >= 0 else 0


def on_brokers_changed(context: Context, found: LockedBrokers) -> Decisions[None]:
    """Like ``on_brokers_loaded``. Warn of brokers that have just registered, if their clocks differ from this one."""
    image, now_ms = context.image, context.clock.now_ms()
    known = {*image.refused_brokers.items(), *((id, broker.epoch) for id, broker in image.brokers.items())}
    for id, broker in sorted(found.live.items()):
        ahead_ms = clock_ahead_ms(broker, now_ms)
        if abs(ahead_ms) > CLOCKS_DIFFER_MS and (id, broker.epoch) not in known:
            logger.warning("broker.clock_differs", broker=id, ahead_ms=ahead_ms)
    yield from on_brokers_loaded(context, found)


def on_brokers_loaded(context: Context, found: LockedBrokers) -> Decisions[None]:
    """Act on the differences between the registrations and the image. Elections are the only writes."""
    image, registered = context.image, found.live
    refused, gone, joined, changed = difference(image, registered)
    for id, why in refused.items():
        if image.refused_brokers.get(id) != registered[id].epoch:
            logger.error("broker.refused", broker=id, reason=why)
    image.refused_brokers = {id: registered[id].epoch for id in refused}
    if gone:
        for id in gone:
            logger.info("broker.gone", broker=id)
            image.brokers.pop(id)
            image.shutting_down.discard(id)
            image.failed.pop(id, None)
            context.senders.remove(id)
        deletion.on_brokers_gone(context, gone)
        yield from elect_after_broker_change(context)
    for broker in joined:
        endpoint = inter_broker_endpoint(broker, context.config.inter_broker_listener_name)
        logger.info("broker.joined", broker=broker.id, epoch=broker.epoch, address=str(endpoint))
        image.brokers[broker.id] = broker
        context.senders.add(broker, endpoint)
        context.batch.everything_to(broker.id)
        deletion.on_broker_joined(context, broker.id)
    for broker in changed:
        endpoint = inter_broker_endpoint(broker, context.config.inter_broker_listener_name)
        logger.info("broker.changed", broker=broker.id, address=str(endpoint))
        image.brokers[broker.id] = broker
        context.senders.move(broker.id, endpoint)
        context.batch.metadata()
    if joined:
        yield from elect_after_broker_change(context)
    if gone or joined:
        context.events.put(ReassignmentsDue())
        context.events.put(ResizesDue())
        context.batch.metadata(_partitions_on(context, {*gone, *(broker.id for broker in joined)}))
    context.events.put(FeaturesDue())


def _partitions_on(context: Context, brokers: set[int]) -> list[TopicPartition]:
    return [
        tp
        for tp, topic, _ in context.image.all_partitions()
        if any(replica in brokers for replica in topic.replicas(tp.partition))
    ]


def on_leader_and_isr_answered(context: Context, event: BrokerAnswered) -> Decisions[None]:
    """Process a response to LeaderAndIsr. Only replicas with the error NONE count as done.

    A replica whose disk failed counts as not live until its broker serves it again or registers again.
    """
    request = cast(LeaderAndIsrRequest, event.request)
    names = {topic.topic_id: topic.topic_name for topic in request.topic_states}
    refused: list[TopicPartition] = []
    if event.response.error_code:
        logger.error(
            "broker.request_refused",
            broker=event.broker.id,
            request="LeaderAndIsr",
            error=ErrorCode.of(event.response.error_code).name,
        )
        # After STALE_BROKER_EPOCH no request is repeated: the broker's new registration gets all requests.
        if event.response.error_code != ErrorCode.STALE_BROKER_EPOCH:
            refused += [
                TopicPartition(topic.topic_name, state.partition_index)
                for topic in request.topic_states
                for state in topic.partition_states
            ]
    failed, not_done = [], set(refused)
    newer: dict[TopicPartition, str] = {}
    for topic in event.response.topics:
        for error in topic.partition_errors:
            name = names.get(topic.topic_id)
            if error.error_code == ErrorCode.NONE or name is None:
                continue
            tp = TopicPartition(name, error.partition_index)
            not_done.add(tp)
            logger.error(
                "replica.not_taken_over",
                broker=event.broker.id,
                partition=str(tp),
                error=ErrorCode.of(error.error_code).name,
            )
            if error.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                failed.append(tp)
            elif error.error_code == ErrorCode.FENCED_LEADER_EPOCH:
                newer[tp] = error.error_message or f"broker {event.broker.id} has a newer log"
            # STALE_CONTROLLER_EPOCH means that the broker knows a later leader epoch or incarnation.
            elif error.error_code != ErrorCode.STALE_CONTROLLER_EPOCH:
                refused.append(tp)
    context.image.refused.update(dict.fromkeys(refused))
    if event.response.error_code == ErrorCode.NONE:
        _acknowledge(context, event.broker.id, request, not_done)
    yield from _on_replicas_failed(context, event.broker.id, failed)
    yield from _on_replicas_served_again(context, event, not_done)
    yield from _set_aside(context, request, newer)


def _set_aside(context: Context, request: LeaderAndIsrRequest, newer: Mapping[TopicPartition, str]) -> Decisions[None]:
    """Take the leaders of partitions whose znodes are older than a log, and store the reason.

    Raises ``ImageStaleError`` after that: the topics are read again, and frozen.
    """
    effects = decide_set_aside(context.image, request, newer)
    if effects.independent:
        yield effects
        tp = effects.independent[0].tp
        raise ImageStaleError(f"{paths.partition_state(*tp)} is older than a log: {newer[tp]}")


def decide_set_aside(image: ClusterImage, request: LeaderAndIsrRequest, newer: Mapping[TopicPartition, str]) -> Effects:
    """The states without a leader. The leader epoch stays: if it rose, it could pass that of the newer log unnoticed.

    An answer about another incarnation of a partition changes nothing.
    """
    asked = {
        TopicPartition(topic.topic_name, state.partition_index): state.incarnation
        for topic in request.topic_states
        for state in topic.partition_states
    }
    changes = []
    for tp, why in sorted(newer.items()):
        found = image.led(tp)
        if found is None or found[2].incarnation != asked[tp]:
            continue
        changed = found[3].replace(leader=NO_LEADER, newer_log=why, controller_epoch=image.controller_epoch)
        changes.append(StateChange(tp, changed))
    return Effects(independent=changes)


def _acknowledge(context: Context, broker: int, request: LeaderAndIsrRequest, not_done: set[TopicPartition]) -> None:
    """Record the partitions that this broker has acknowledged as leader. The broker then also has their layouts."""
    for topic in request.topic_states:
        for state in topic.partition_states:
            tp = TopicPartition(topic.topic_name, state.partition_index)
            partition = context.image.partition(tp)
            if state.leader != broker or tp in not_done or partition is None:
                continue
            if partition.incarnation == state.incarnation:
                partition.acknowledged_epoch = max(partition.acknowledged_epoch, state.leader_epoch)
    names = [topic.topic_name for topic in request.topic_states]
    if steps.concerns(context, names):
        context.events.put(ResizesDue())


def on_refusals_due(context: Context) -> None:
    """Send the current state of refused partitions to their replicas again."""
    image = context.image
    refused, image.refused = image.refused, {}
    for tp in refused:
        partition = image.partition(tp)
        if partition is not None and partition.state is not None and tp.topic not in image.deletions:
            context.batch.leader_and_isr(tp)


def _on_replicas_served_again(
    context: Context, event: BrokerAnswered, not_done: set[TopicPartition]
) -> Decisions[None]:
    """Let replicas lead and be in sync again once their disk has room or their log can be opened."""
    failed = context.image.failed.get(event.broker.id)
    if not failed or event.response.error_code:
        return
    request = cast(LeaderAndIsrRequest, event.request)
    named = {
        TopicPartition(topic.topic_name, state.partition_index)
        for topic in request.topic_states
        for state in topic.partition_states
    }
    served = sorted(failed & named - not_done)
    if served:
        failed.difference_update(served)
        logger.info("replica.served_again", broker=event.broker.id, partitions=[str(tp) for tp in served])
        context.batch.metadata(served)
        yield from elect(context, [led for led in context.image.led_partitions() if led[0] in served])


def _on_replicas_failed(context: Context, broker: int, failed: list[TopicPartition]) -> Decisions[None]:
    new = [tp for tp in failed if tp not in context.image.failed.get(broker, ())]
    if new:
        context.image.failed.setdefault(broker, set()).update(new)
        context.batch.metadata(new)
        yield from elect(context, [led for led in context.image.led_partitions() if led[0] in new])
