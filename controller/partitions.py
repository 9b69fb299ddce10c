"""Elections after changes of brokers and configs, and the first leaders of new partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import structlog

from anabranch.controller import leader_selection
from anabranch.controller.config import ControllerConfig
from anabranch.controller.context import Context
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.events import FirstLeadersDue
from anabranch.controller.image import ClusterImage, Led
from anabranch.controller.state_writes import StateChange
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.controller.topic_config import unclean_election_allowed
from anabranch.protocol.sentinels import NO_LEADER
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import PartitionState

logger = structlog.get_logger(__name__)
FIRST_LEADERS_AT_ONCE = MAX_OPERATIONS // 2 - 1
"""Partitions that get a first state before other events are handled. Each takes two operations of a multi."""


def elect_after_broker_change(context: Context) -> Decisions[None]:
    """Update leaders and ISRs for the live brokers, and elect first leaders of partitions that never had one."""
    yield from elect(context, list(context.image.led_partitions()))
    yield from lead_first(context, context.image.topics)


def elect_offline(context: Context) -> Decisions[None]:
    """Elect leaders for the partitions without a leader, because one of their replicas may be electable now."""
    yield from elect(context, [led for led in context.image.led_partitions() if led[3].leader == NO_LEADER])


def elect(context: Context, partitions: Sequence[Led]) -> Decisions[None]:
    """Update the leaders and ISRs of these partitions for the live brokers.

    A leader on a broker that is not live is replaced, and a replica on such a broker leaves the ISR. If no clean
    election is possible and the topic allows it, an unclean leader is elected.
    """
    began = context.clock.monotonic()
    effects = decide_elections(context.image, context.config, partitions)
    for change, isr in effects.response:
        logger.warning("election.unclean", partition=str(change.tp), leader=change.state.leader, isr=isr)
    yield effects
    if effects.independent:
        context.metrics.election_ms.observe((context.clock.monotonic() - began) * 1000)


def decide_elections(image: ClusterImage, config: ControllerConfig, partitions: Iterable[Led]) -> Effects:
    """The effects of the elections. ``response`` has each unclean election, with the ISR before the election."""
    changes: list[StateChange] = []
    hopeless: list[Led] = []
    for led in partitions:
        tp, topic, _, state = led
        if leader_selection.needs_unclean(state, topic.replicas(tp.partition), image.serving(tp), image.electable(tp)):
            hopeless.append(led)
        elif (changed := _clean(image, led)) is not None:
            changes.append(StateChange(tp, changed))
    unclean: list[tuple[StateChange, list[int]]] = []
    for tp, topic, _, state in hopeless:
        allowed = unclean_election_allowed(image, tp.topic, config.unclean_leader_election_enable)
        changed = leader_selection.after_broker_change(
            state,
            topic.replicas(tp.partition),
            image.serving(tp),
            image.electable(tp),
            image.controller_epoch,
            unclean=allowed,
            adding=topic.znode.adding_replicas.get(tp.partition, ()),
        )
        if changed is None:
            continue
        changes.append(StateChange(tp, changed))
        if changed.leader != NO_LEADER:
            unclean.append((changes[-1], state.isr))
    return Effects(independent=changes, response=unclean)


def _clean(image: ClusterImage, led: Led) -> PartitionState | None:
    """The state after a clean election; None if nothing changes."""
    tp, topic, partition, state = led
    replicas, live, electable = topic.replicas(tp.partition), image.serving(tp), image.electable(tp)
    restarted = [id for id in state.isr if id in live and 0 <= partition.mzxid < live[id].epoch]
    if restarted:
        return leader_selection.after_unseen_restart(
            state, replicas, restarted, live, electable, image.controller_epoch
        )
    return leader_selection.after_broker_change(state, replicas, live, electable, image.controller_epoch)


def lead_first(context: Context, topics: Iterable[str]) -> Decisions[None]:
    """Write first states for new partitions of ``topics`` that have an electable replica.

    One call writes a limited number, so that other events wait less. ``FirstLeadersDue`` continues with the rest.
    """
    image = context.image
    image.awaiting_first_leaders.update(dict.fromkeys(topics))
    effects = decide_first_leaders(image)
    refused = yield effects
    left: list[str] = [] if refused else effects.response
    image.awaiting_first_leaders = dict.fromkeys(left)
    if left:
        context.events.put(FirstLeadersDue())


def decide_first_leaders(image: ClusterImage) -> Effects:
    """The effects of a limited number of first elections. ``response`` has the topics that need further ones."""
    names = sorted(image.awaiting_first_leaders.keys() & image.topics.keys())
    found = list(itertools.islice(first_elections(image, names), FIRST_LEADERS_AT_ONCE + 1))
    following = found[FIRST_LEADERS_AT_ONCE:]
    left = names[names.index(following[0].tp.topic) :] if following else []
    return Effects(independent=found[:FIRST_LEADERS_AT_ONCE], response=left)


def first_elections(image: ClusterImage, topics: Iterable[str]) -> Iterator[StateChange]:
    """First states for the new partitions of ``topics`` that have an electable replica."""
    for name in sorted(topics):
        topic = image.topics[name]
        if name in image.deletions or topic.frozen or (topic.unreadable and topic.has_layouts()):
            continue  # while a state is unreadable, it is unknown which partitions are new
        gained = topic.moves.losers_of
        for index, partition in sorted(topic.partitions.items()):
            if partition.status is not PartitionStatus.NEW or index >= topic.znode.undeleted_partition_count:
                continue
            if index in gained:
                continue  # the resize elects the first leader, once the leaders of the losers have answered
            tp = TopicPartition(name, index)
            electable = image.electable(tp)
            state = leader_selection.first_state(
                topic.replicas(index), electable, image.controller_epoch, image.first_leader_epoch.epoch
            )
            if state is not None:
                yield StateChange(tp, state, create=True)
