"""The effects of a decision. A decision is a plain function: it awaits nothing and changes nothing."""

from __future__ import annotations

import enum
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias, TypeVar

from anabranch.controller.events import Mark
from anabranch.controller.outcome import ResponseWait
from anabranch.controller.state_writes import StateChange
from anabranch.controller.states import ReplicaStatus
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, DeleteOp, SetOp, ZkOp
from anabranch.zk_schemas.features import Features
from anabranch.zk_schemas.first_leader_epoch import FirstLeaderEpoch
from anabranch.zk_schemas.topic import TopicZnode

R = TypeVar("R")


class AskedReport(enum.Enum):
    """A report about the topic for which brokers are asked."""

    STOCK_PRODUCERS = enum.auto()
    APPENDED_BYTES = enum.auto()


class TopicDeletion(NamedTuple):
    """The beginning of a topic's deletion."""

    zxid: int
    """The czxid of the deletion request."""
    replicas: Mapping[tuple[int, int], ReplicaStatus]
    """The status of each replica: ``{(partition, broker): status}``."""


@dataclass(frozen=True, slots=True)
class Effects:
    """The effects of one decision. By default nothing happens.

    A decision writes in one of these ways:

    - ``writes``: one multi, all or nothing. If ``states`` are given too, ``writes`` includes their operations.
    - ``states`` alone, or ``groups``: several multis in order. The first refused multi ends them.
    - ``independent``: several multis. If one is refused, the others are still written.
    """

    topic: str = ""
    """The topic of the decision; empty if the decision is about a config."""
    znode: TopicZnode | None = None
    """The topic's new znode in the image; None if the image keeps the old znode."""
    version: int = -1
    """The zkVersion of ``znode``, if ``znode`` is stored already."""
    created: int = 0
    """Number of partitions of a new topic. A new topic gets into the image when its znode is read."""
    writes: Sequence[CreateOp | SetOp | DeleteOp] = ()
    """The operations of one multi: ``znode`` and then others, a config, or a new topic's config and znode."""
    states: Sequence[Sequence[StateChange]] = ()
    """Partition states to write, in groups. Each group is in one multi; several groups may share a multi."""
    groups: Sequence[Sequence[ZkOp]] = ()
    """Operations in groups. Each group is in one multi; several groups may share a multi."""
    independent: Sequence[StateChange] = ()
    """Partition states that do not depend on each other."""
    confirms_office: bool = False
    """Whether the controller epoch is checked even if no state of ``independent`` is written."""
    removed: Sequence[int] = ()
    """Partitions whose state znodes ``writes`` deletes. A partition that stays assigned then has status NEW."""
    deletion: TopicDeletion | None = None
    """The beginning of the topic's deletion; its partitions are offline from then on."""
    features: Features | None = None
    """The finalized features in ``/features``, which is the last of ``writes``."""
    first_leader_epoch: FirstLeaderEpoch | None = None
    """The content of ``/first_leader_epoch``, which is the last of ``writes``."""
    shutting_down: Sequence[int] = ()
    """Brokers that stop: they become leader of no partition and join no ISR."""
    notify: Sequence[str] = ()
    """Configs that brokers are to read again, like ``topics/t``."""
    asks: Sequence[AskedReport] = ()
    """Reports about the topic that brokers are asked for."""
    leader_and_isr: Sequence[TopicPartition] = ()
    """Partitions whose replicas get a LeaderAndIsr request."""
    stops: Sequence[tuple[int, TopicPartition]] = ()
    """Replicas that are deleted, each with its broker."""
    metadata: Sequence[TopicPartition] = ()
    """Partitions that every broker gets in an UpdateMetadata request."""
    events: Sequence[Mark] = ()
    """Events that are put into the queue."""
    watches: Sequence[tuple[TopicPartition, int]] = ()
    """State znodes to watch, each with the zkVersion at which it was read. ``WatchedStateChanged`` follows a change."""
    step: str = ""
    """The step of a resize that is logged and counted; empty for none."""
    stepped: Sequence[int] = ()
    """The partitions in the log line of ``step``."""
    response: Any = None
    """The decision's answer to its caller: the response to a request, a verdict about a topic, or the work left."""
    waits: Sequence[ResponseWait] = ()
    """Parts of ``response`` that must be complete, or time out, before ``response`` is sent."""


Decisions: TypeAlias = Generator[Effects, set[TopicPartition], R]
"""Decisions in order, each made after the effects of the previous one are carried out.

``yield`` returns the partitions of ``independent`` that ZooKeeper refused. It raises the errors of ``carry_out``.
"""
