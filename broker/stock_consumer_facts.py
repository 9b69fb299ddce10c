"""Leaders withhold records from stock consumers: topic key ``ordered.delivery.stock.consumers=withhold``.

One task of each broker collects the facts for the partitions that the broker leads in such topics. Lineages come from
ZooKeeper, ends of leader epochs and log starts from leaders, groups and their positions from all coordinators.
``ordered_resize.withheld_from_stock_consumers`` decides. The task stores the decision at each partition, and fetches
read it there. While a fact is missing, a partition serves only records that no group can wait for.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import structlog
import trio

from anabranch.broker.config import BrokerConfig
from anabranch.broker.dynamic_config import DynamicConfig
from anabranch.broker.link.lineage_reader import NOTHING_READ, LineageQuestion, LineageReader
from anabranch.broker.link.progress_reader import progress_reader
from anabranch.broker.metadata_cache import MetadataCache
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.replication.partition import Partition
from anabranch.broker.replication.replica_manager import ReplicaManager
from anabranch.ordered_resize.facts import Lineage
from anabranch.ordered_resize.reader_answers import readers_in
from anabranch.ordered_resize.withheld_from_stock_consumers import CoordinatorAnswer, WithheldTopic, WithholdLimits
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.topic_readers import TopicReadersRequest, TopicReadersRequestTopic
from anabranch.protocol.offset_requests import ANY_LEADER_EPOCH
from anabranch.protocol.sentinels import EARLIEST_TIMESTAMP
from anabranch.protocol.topic_names import OFFSETS_TOPIC
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.env import Env

logger = structlog.get_logger(__name__)

WAITING_PAUSE_S = 0.1
"""The pause between two rounds while records are withheld: a wait ends at most this long after the awaited commit."""
ROUNDS_PER_LEASE = 4
"""The least number of rounds within a lease. Answers are renewed before they expire, so no open partition closes."""
ROUND_SHARE = 0.1
"""The largest share of the time that is spent on listing the led partitions, while every request changes leaders."""
STARTS_PAUSE_S = 5.0
"""The pause between two requests for log starts. Retention changes log starts slowly."""


class StockConsumerFacts:
    """The task that decides what is withheld. ``wake`` it when this broker begins to lead, or a config changes."""

    def __init__(
        self,
        env: Env,
        config: BrokerConfig,
        dynamic: DynamicConfig,
        metadata: MetadataCache,
        replicas: ReplicaManager,
        lineages: LineageReader,
        metrics: BrokerMetrics,
    ) -> None:
        self._clock = env.clock
        self._dynamic = dynamic
        self._metadata = metadata
        self._replicas = replicas
        self._lineages = lineages
        self._metrics = metrics
        self._lease_s: float = config.values.stock_consumer_lease_ms / 1000
        self._reader = progress_reader(env, metadata, config, "withheld", self._lease_s / ROUNDS_PER_LEASE)
        self._wake = trio.Event()
        self._starts_asked_at: dict[str, float] = {}
        self.topics: dict[str, WithheldTopic] = {}
        """Topics with withheld records, by name; this broker leads a partition of each."""

    def wake(self) -> None:
        """Begin the next round now."""
        self._wake.set()

    async def run(self) -> None:
        """Run rounds until cancelled."""
        async with trio.open_nursery() as nursery:
            self._reader.open(nursery)
            while True:
                self._wake = trio.Event()
                began = self._clock.monotonic()
                led = self._led()
                spent_s = self._clock.monotonic() - began
                for name in self.topics.keys() - led.keys():
                    del self.topics[name]
                pause_s = await self._look(led) if led else math.inf
                with trio.move_on_after(pause_s):
                    await self._wake.wait()
                await trio.sleep(spent_s / ROUND_SHARE)

    def _led(self) -> dict[str, dict[int, Partition]]:
        found: dict[str, dict[int, Partition]] = {}
        for partition in self._replicas.all():
            if partition.is_leader and partition.withholds:
                found.setdefault(partition.key.topic, {})[partition.key.partition] = partition
        return found

    @property
    def withheld_partitions(self) -> int:
        """The number of partitions led here that withhold records from consumers that keep no order of keys."""
        now = self._clock.monotonic()
        return sum(
            partition.stock_cap.at(now) < partition.leader_epoch
            for partitions in self._led().values()
            for partition in partitions.values()
        )

    @property
    def longest_s(self) -> float:
        """The seconds that the longest present wait for a group has lasted; 0 if there is no wait."""
        now = self._clock.monotonic()
        waits = [now - topic.since(wait) for topic in self.topics.values() for wait in topic.waits]
        return max(waits, default=0.0)

    # ------------------------------------------------------------ a round

    async def _look(self, led: Mapping[str, Mapping[int, Partition]]) -> float:
        """One round: collect facts and decide. Returns the seconds until the next round."""
        asked: dict[str, list[int]] = {}
        for name, partitions in led.items():
            await self._learn_lineages(name, partitions)
        async with trio.open_nursery() as asking:
            for name, partitions in led.items():
                if name in self.topics:
                    self._ask_leaders(asking, name, self.topics[name].requirements(partitions).epochs)
        for name, partitions in led.items():
            topic = self.topics.get(name)
            if topic is not None and not topic.is_open_to_any_group(partitions):
                asked[name] = sorted(topic.requirements(partitions).epochs)
        if asked:
            await self._ask_coordinators(asked)
        waits = [self._decide(name, partitions) for name, partitions in led.items()]
        return WAITING_PAUSE_S if any(waits) else self._lease_s / ROUNDS_PER_LEASE

    def _decide(self, name: str, partitions: Mapping[int, Partition]) -> bool:
        """Decide what is withheld in a topic; returns whether anything is."""
        topic = self.topics.get(name)
        if topic is None:
            return True
        now = self._clock.monotonic()
        max_withhold_s = self._dynamic.topic_value(name, "ordered.delivery.stock.consumers.max.withhold.ms") / 1000
        coordinators = self._metadata.partition_count(OFFSETS_TOPIC) or 0
        decision = topic.decide(partitions, coordinators, now, WithholdLimits(self._lease_s, max_withhold_s))
        for index, partition in partitions.items():
            before = partition.stock_cap.at(now)
            partition.stock_cap = decision.caps[index]
            if partition.stock_cap.at(now) > before:
                partition.notify()
        for wait in decision.let_go:
            self._metrics.withhold_let_go.add(name, wait.group)
            logger.warning(
                "withhold.let_go",
                topic=name,
                group=wait.group,
                partition=wait.on,
                leader_epoch=wait.epoch,
                after_s=max_withhold_s,
            )
        for index in decision.coordinators_let_go:
            self._metrics.withhold_let_go.add(name, "")
            logger.warning(
                "withhold.let_go", topic=name, coordinator=f"{OFFSETS_TOPIC}-{index}", after_s=max_withhold_s
            )
        return any(p.is_leader and p.stock_cap.at(now) < p.leader_epoch for p in partitions.values())

    # ------------------------------------------------------------ lineages

    async def _learn_lineages(self, name: str, led: Collection[int]) -> None:
        """Read the lineages of the led partitions, and of all partitions named there, directly or indirectly."""
        unseen, seen = set(led), set[int]()
        while unseen:
            questions = [LineageQuestion(TopicPartition(name, p)) for p in sorted(unseen)]
            unread = [question for question in questions if self._lineages.answer(question) is None]
            read = await self._lineages.read(unread) if unread else NOTHING_READ
            topic = self._topic(name, self._lineages.topic_incarnation(name, read))
            if topic is None:
                return
            for question in questions:
                answer = self._lineages.answer(question, read)
                if answer is not None and answer.error_code == ErrorCode.NONE:
                    topic.on_lineage(question.tp.partition, Lineage.of_answer(answer), answer.over)
            seen |= unseen
            unseen = topic.requirements(led).epochs.keys() - seen

    def _topic(self, name: str, incarnation: int) -> WithheldTopic | None:
        """The facts of the topic; None while its incarnation is unknown. A new incarnation begins without facts."""
        known = self.topics.get(name)
        if incarnation < 0 or (known is not None and known.incarnation == incarnation):
            return known
        self.topics[name] = WithheldTopic(incarnation)
        self._starts_asked_at.pop(name, None)
        return self.topics[name]

    # ------------------------------------------------------------ leaders

    def _ask_leaders(self, asking: trio.Nursery, name: str, named: Mapping[int, Collection[int]]) -> None:
        """Ask leaders for the ends of epochs, and from time to time for log starts."""
        now = self._clock.monotonic()
        topic, infos = self.topics[name], {q: self._metadata.partition(TopicPartition(name, q)) for q in named}
        epochs = {q: info.leader_epoch for q, info in infos.items() if info is not None}
        ends = topic.ends_to_ask(named, epochs)
        starts: set[int] = set()
        if now >= self._starts_asked_at.get(name, -math.inf) + STARTS_PAUSE_S:
            self._starts_asked_at[name] = now
            starts = set(named)
        by_leader: dict[int, list[int]] = {}
        for q in sorted(starts | ends.keys()):
            info = infos[q]
            if info is not None and info.leader in self._metadata.brokers:
                by_leader.setdefault(info.leader, []).append(q)
        for leader, partitions in by_leader.items():
            of_leader = {q: (epochs[q], ends[q]) for q in partitions if q in ends}
            of_starts = [q for q in partitions if q in starts]
            asking.start_soon(self._ask_leader, leader, name, topic, of_leader, of_starts)

    async def _ask_leader(
        self,
        leader: int,
        name: str,
        topic: WithheldTopic,
        ends: Mapping[int, tuple[int, set[int]]],
        starts: Sequence[int],
    ) -> None:
        """Ask one leader. ``ends`` has for each partition its leader epoch and the epochs whose ends are requested."""
        try:
            asked = [(q, leads, epoch) for q, (leads, epochs) in ends.items() for epoch in sorted(epochs)]
            for (q, epoch), end in (await self._reader.epoch_ends(leader, name, asked)).items():
                topic.on_ends(q, ends[q][0], {epoch: end})
            if starts:
                any_epoch = {name: [(q, ANY_LEADER_EPOCH) for q in starts]}
                found = await self._reader.offsets(leader, any_epoch, EARLIEST_TIMESTAMP)
                for tp, offset in found.items():
                    topic.facts.on_log_start(tp.partition, offset)
        except (OSError, KafkaError) as error:
            logger.info("withhold.leader_not_asked", topic=name, broker=leader, error=str(error))

    # ------------------------------------------------------------ coordinators

    def _coordinators(self) -> set[int]:
        info = self._metadata.topics.get(OFFSETS_TOPIC)
        leaders = set() if info is None else {partition.leader for partition in info.partitions.values()}
        return leaders & self._metadata.brokers.keys()

    async def _ask_coordinators(self, asked: Mapping[str, Sequence[int]]) -> None:
        topics = [TopicReadersRequestTopic(name=name, partition_indexes=list(named)) for name, named in asked.items()]
        request = TopicReadersRequest(topics=topics)
        answers, errors = await self._reader.coordinated_by_all(self._coordinators(), [request])
        for broker_id, error in errors.items():
            logger.info("withhold.coordinator_not_asked", broker=broker_id, error=str(error))
        for broker_id, answer in answers.items():
            for name, groups in answer.readers.items():
                if name in self.topics:
                    readers = tuple(readers_in(groups))
                    self.topics[name].answers[broker_id] = CoordinatorAnswer(answer.as_of, readers)
