"""Elections after changes of brokers and configs, and the first leaders of new partitions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence

import structlog

from anabranch.controller import leader_selection
from anabranch.controller.context import Context
from anabranch.controller.events import FirstLeadersDue
from anabranch.controller.image import Led, TopicImage
from anabranch.controller.state_writes import StateChange, write_states
from anabranch.controller.states import PartitionStatus
from anabranch.controller.store import MAX_OPERATIONS
from anabranch.controller.topic_config import unclean_election_allowed
from anabranch.protocol.types import TopicPartition
from anabranch.zk_schemas.partition_state import NO_LEADER

logger = structlog.get_logger(__name__)
FIRST_LEADERS_AT_ONCE = MAX_OPERATIONS // 2 - 1
"""Partitions that get a first state before other events are handled. Each takes two operations of a multi."""


async def elect_after_broker_change(context: Context) -> None:
    """Update leaders and ISRs for the live brokers, and elect first leaders of partitions that never had one."""
    await elect(context, list(context.image.led_partitions()))
    await lead_first(context, context.image.topics)


async def elect_offline(context: Context) -> None:
    """Elect leaders again for the partitions that have none: a replica of theirs may be electable now."""
    await elect(context, [led for led in context.image.led_partitions() if led[3].leader == NO_LEADER])


async def elect(context: Context, partitions: Sequence[Led]) -> None:
    """Update the leaders and ISRs of these partitions for the live brokers.

    A leader that is gone is replaced, and a replica that is gone leaves the ISR. An unclean leader is the last resort,
    where the topic allows it.
    """
    image, began = context.image, context.clock.monotonic()
    changes, hopeless = [], []
    for tp, topic, partition, state in partitions:
        replicas, live, electable = topic.replicas(tp.partition), image.serving(tp), image.electable(tp)
        if leader_selection.needs_unclean(state, replicas, live, electable):
            hopeless.append((tp, topic, partition, state))
            continue
        restarted = [id for id in state.isr if id in live and 0 <= partition.mzxid < live[id].epoch]
        if restarted:
            changed = leader_selection.after_unseen_restart(
                state, replicas, restarted, live, electable, image.controller_epoch
            )
        else:
            changed = leader_selection.after_broker_change(state, replicas, live, electable, image.controller_epoch)
        if changed is not None:
            changes.append(StateChange(tp, changed))
    default = context.config.unclean_leader_election_enable
    for tp, topic, _, state in hopeless:
        unclean = unclean_election_allowed(image, tp.topic, default)
        changed = leader_selection.after_broker_change(
            state,
            unclean_order(topic, tp.partition) if unclean else topic.replicas(tp.partition),
            image.serving(tp),
            image.electable(tp),
            image.controller_epoch,
            unclean=unclean,
        )
        if changed is None:
            continue
        if changed.leader != NO_LEADER:
            logger.warning("election.unclean", partition=str(tp), leader=changed.leader, isr=state.isr)
        changes.append(StateChange(tp, changed))
    await write_states(context, changes)
    if changes:
        context.metrics.election_ms.observe((context.clock.monotonic() - began) * 1000)


def unclean_order(topic: TopicImage, partition: int) -> list[int]:
    """The replicas, preferred ones first. Those that are being added have the fewest records, and are last."""
    adding = topic.znode.adding_replicas.get(partition, [])
    return sorted(topic.replicas(partition), key=lambda replica: replica in adding)


async def lead_first(context: Context, topics: Iterable[str]) -> None:
    """Write first states for new partitions of ``topics`` that have an electable replica.

    One call writes a limited number, and ``FirstLeadersDue`` continues with the rest: other events do not wait for all.
    """
    image = context.image
    image.awaiting_first_leaders.update(dict.fromkeys(topics))
    names = sorted(image.awaiting_first_leaders.keys() & image.topics.keys())
    found = first_elections(context, names)
    refused = await write_states(context, list(itertools.islice(found, FIRST_LEADERS_AT_ONCE)))
    following = None if refused else next(found, None)
    left = names[names.index(following.tp.topic) :] if following is not None else []
    image.awaiting_first_leaders = dict.fromkeys(left)
    if left:
        context.events.put(FirstLeadersDue())


def first_elections(context: Context, topics: Iterable[str]) -> Iterator[StateChange]:
    """First states for the new partitions of ``topics`` that have an electable replica."""
    image = context.image
    for name in sorted(topics):
        topic = image.topics[name]
        if name in image.deletions or topic.frozen or (topic.unreadable and topic.has_layouts()):
            continue  # it is unknown which partitions are new as long as a state is unreadable
        gained = topic.moves.losers_of
        for index, partition in sorted(topic.partitions.items()):
            if partition.status is not PartitionStatus.NEW or index >= topic.znode.undeleted_partition_count:
                continue
            if index in gained:
                continue  # a partition that a grow adds gets a leader once the partitions that lose keys have answered
            tp = TopicPartition(name, index)
            electable = image.electable(tp)
            state = leader_selection.first_state(topic.replicas(index), electable, image.controller_epoch)
            if state is not None:
                yield StateChange(tp, state, create=True)
