"""ControlledShutdown (7): move the leaderships of a broker that stops to other replicas.

The broker becomes leader of no partition and joins no ISR until it registers again. The response lists the partitions
that the broker still leads, because no other replica may lead them or because the write was refused.
"""

from __future__ import annotations

from anabranch.controller import leader_selection
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.image import ClusterImage
from anabranch.controller.outcome import Outcome
from anabranch.controller.state_writes import StateChange
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.controlled_shutdown import (
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    RemainingPartition,
)
from anabranch.protocol.types import TopicPartition


def controlled_shutdown(context: Context, request: ControlledShutdownRequest, version: int) -> Decisions[Outcome]:
    """Raises ``ControllerMovedError``, ``ImageStaleError``."""
    effects = decide(context.image, request)
    refused = yield effects
    response: ControlledShutdownResponse = effects.response
    for tp, _, _, state in context.image.led_partitions():
        if tp in refused and state.leader == request.broker_id:
            response.remaining_partitions.append(_remaining(tp))
    return Outcome(response)


def decide(image: ClusterImage, request: ControlledShutdownRequest) -> Effects:
    """The effects of a request. ``response`` lists the partitions that stay with the broker after the writes."""
    broker = image.brokers.get(request.broker_id)
    if broker is None:
        return Effects(response=ControlledShutdownResponse(error_code=ErrorCode.BROKER_NOT_AVAILABLE))
    if 0 <= request.broker_epoch < broker.epoch:
        return Effects(response=ControlledShutdownResponse(error_code=ErrorCode.STALE_BROKER_EPOCH))
    changes, remaining = [], []
    for tp, topic, _, state in image.led_partitions():
        replicas = topic.replicas(tp.partition)
        changed = leader_selection.before_shutdown(
            state, replicas, image.electable(tp), broker.id, image.controller_epoch
        )
        if changed is not None:
            changes.append(StateChange(tp, changed))
        if len(replicas) > 1 and state.leader == broker.id and changed is None:
            remaining.append(_remaining(tp))
    response = ControlledShutdownResponse(remaining_partitions=remaining)
    return Effects(independent=changes, shutting_down=(broker.id,), response=response)


def _remaining(tp: TopicPartition) -> RemainingPartition:
    return RemainingPartition(topic_name=tp.topic, partition_index=tp.partition)
