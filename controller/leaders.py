"""Leaders chosen on purpose: by ElectLeaders, and by ``auto.leader.rebalance.enable``."""

from __future__ import annotations

import enum
import logging

from controller import elections
from controller.context import Context
from controller.partitions import Led, StateChange, unclean_order, write_states
from protocol.errors import ErrorCode, KafkaError

_log = logging.getLogger(__name__)


class ElectionType(enum.IntEnum):
    """ElectLeaders' ``election_type``."""

    PREFERRED = 0
    UNCLEAN = 1


def chosen(context: Context, led: Led, election_type: ElectionType) -> StateChange:
    """The election of one partition. Raises ``KafkaError`` ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
    ELIGIBLE_LEADERS_NOT_AVAILABLE.
    """
    image = context.image
    tp, topic, _, state = led
    replicas, live, electable = topic.replicas(tp.partition), image.serving(tp), image.electable(tp)
    if election_type is ElectionType.PREFERRED:
        if state.leader == replicas[0] and state.leader in live:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The preferred replica leads.")
        changed = elections.preferred(state, replicas, electable, image.controller_epoch)
        unavailable = ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    else:
        if state.leader in live:
            raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED, "The partition has a leader.")
        order = replicas if set(state.isr) & electable.keys() else unclean_order(topic, tp.partition)
        changed = elections.after_broker_change(state, order, live, electable, image.controller_epoch, unclean=True)
        unavailable = ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    if changed is None or changed.leader not in electable:
        raise KafkaError(unavailable, f"None of the replicas {replicas} with the ISR {state.isr} may lead now.")
    return StateChange(tp, changed)


async def rebalance(context: Context) -> None:
    """First replicas lead again, for each broker of whose partitions too many are led by others.

    A partition that is being reassigned is left alone, as in Kafka.
    """
    image = context.image
    by_preferred: dict[int, list[Led]] = {}
    for led in image.led_partitions():
        by_preferred.setdefault(led[1].replicas(led[0].partition)[0], []).append(led)
    changes = []
    for broker, partitions in sorted(by_preferred.items()):
        elsewhere = [led for led in partitions if led[3].leader != broker]
        if len(elsewhere) * 100 <= len(partitions) * context.config.leader_imbalance_per_broker_percentage:
            continue
        for tp, topic, _, state in elsewhere:
            if topic.reassigning(tp.partition):
                continue
            electable = image.electable(tp)
            changed = elections.preferred(state, topic.replicas(tp.partition), electable, image.controller_epoch)
            if changed is not None:
                changes.append(StateChange(tp, changed))
    if changes:
        _log.info("%s partitions are led by their first replica again", len(changes))
    await write_states(context, changes)
