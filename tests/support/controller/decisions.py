"""An image of one topic, from which a decision is made, and a context that applies the effects and records writes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any

from anabranch.controller.config import ControllerConfig
from anabranch.controller.effects import Decisions, Effects
from anabranch.controller.feature_level_rules import for_new_cluster
from anabranch.controller.image import ClusterImage, LiveBroker, PartitionImage, TopicImage
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.request_batch import RequestBatch
from anabranch.controller.states import PartitionStatus
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import CreateOp, SetOp, ZkError, ZkOp
from anabranch.zk_schemas import paths
from anabranch.zk_schemas.broker_registration import BrokerRegistration, Endpoint
from anabranch.zk_schemas.features import SUPPORTED
from anabranch.zk_schemas.partition_state import PartitionState
from anabranch.zk_schemas.topic import TopicZnode

CONTROLLER_EPOCH = 4
BROKER_EPOCH = 5
STATE_VERSION = 7
CONFIG = ControllerConfig(controller_id=1000, zookeeper_connect="z")
T0, T1, T2 = (TopicPartition("t", partition) for partition in range(3))


def live(broker: int, epoch: int = BROKER_EPOCH) -> LiveBroker:
    return LiveBroker(broker, epoch, BrokerRegistration([Endpoint("PLAINTEXT", "a", 9092)], features=dict(SUPPORTED)))


def state(leader: int, isr: Sequence[int], leader_epoch: int = 2) -> PartitionState:
    """A state that an earlier controller wrote."""
    return PartitionState(CONTROLLER_EPOCH - 1, leader, leader_epoch, list(isr))


def cluster(
    *states: PartitionState | None, replicas: Sequence[Sequence[int]] = (), brokers: Collection[int] = (1, 2, 3)
) -> ClusterImage:
    """An image of live brokers and the topic ``t``. A partition has a state, or None if the partition is new.

    ``replicas`` are the assigned replicas of each partition, by default brokers 1, 2 and 3.
    """
    image = ClusterImage(1000, CONTROLLER_EPOCH, brokers={id: live(id) for id in brokers})
    image.features, image.features_epoch = for_new_cluster(SUPPORTED), 3
    assigned = {p: list(replicas[p]) if replicas else [1, 2, 3] for p in range(len(states))}
    topic = image.topics["t"] = TopicImage("t", TopicZnode.new(uuid.UUID(int=1), assigned), 6, 1)
    for p, found in enumerate(states):
        led = PartitionStatus.ONLINE if found is not None and found.leader >= 0 else PartitionStatus.OFFLINE
        status = PartitionStatus.NEW if found is None else led
        topic.partitions[p] = PartitionImage(status, found, STATE_VERSION, 9)
    return image


class Store:
    """Collects the writes in ``multis``, and refuses each multi that has a path of ``refused``."""

    def __init__(self, refused: Collection[str] = ()) -> None:
        self.refused, self.multis = refused, list[list[ZkOp]]()
        self.confirmed = 0
        self.versions: dict[str, int] = {}
        """The znodes that can be read, with their zkVersions."""

    async def write(self, ops: Sequence[ZkOp]) -> list[int]:
        if any(op.path in self.refused for op in ops):
            raise ZkError(ops[0].path, "refused")
        self.multis.append(list(ops))
        return [op.version + 1 if isinstance(op, SetOp) else 0 if isinstance(op, CreateOp) else -1 for op in ops]

    def check_fits(self, ops: Sequence[ZkOp]) -> None:
        pass

    async def confirm_office(self) -> None:
        self.confirmed += 1

    async def get(self, path: str, _watch: object) -> SimpleNamespace | None:
        return SimpleNamespace(version=self.versions[path]) if path in self.versions else None

    async def children(self, _path: str) -> list[str]:
        return []

    async def exists(self, _path: str) -> SimpleNamespace:
        return SimpleNamespace(czxid=77)

    def states(self) -> Mapping[TopicPartition, PartitionState]:
        """The last written state of each partition of ``t``."""
        ops = {op.path: op for multi in self.multis for op in multi if isinstance(op, CreateOp | SetOp)}
        tps = [TopicPartition("t", p) for p in range(len(ops)) if paths.partition_state("t", p) in ops]
        return {tp: PartitionState.decode("", ops[paths.partition_state(*tp)].data) for tp in tps}


def decided(decisions: Decisions[Any], refuse: Callable[[Effects], Exception | None] = lambda _: None) -> list[Effects]:
    """Make all decisions and return their effects.

    ZooKeeper takes every write, except for effects for which ``refuse`` returns an error.
    """
    made: list[Effects] = []
    decide: Callable[[], Effects] = partial(next, decisions)
    while True:
        try:
            made.append(decide())
        except StopIteration:
            return made
        error = refuse(made[-1])
        decide = partial(decisions.send, set()) if error is None else partial(decisions.throw, error)


def context_of(image: ClusterImage, refused: Collection[str] = ()) -> Any:
    """A context with a ``Store``.

    ``events.puts`` has the events, ``events.watched`` those of watches. ``events.later`` counts the postponed reads.
    """
    events = SimpleNamespace(puts=[], watched=[], later=0)
    events.put, events.watch = events.puts.append, events.watched.append

    def read_again_later() -> None:
        events.later += 1

    events.read_again_later = read_again_later
    return SimpleNamespace(
        config=CONFIG,
        rng=random.Random(1),
        image=image,
        store=Store(refused),
        batch=RequestBatch(image, None),
        senders=SimpleNamespace(last_flush=4, acknowledged=lambda flush: flush <= 4),
        events=events,
        metrics=ControllerMetrics(),
        clock=SimpleNamespace(monotonic=lambda: 0.0, now_ms=lambda: 0),
    )
