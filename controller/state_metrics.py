"""The controller's metrics that are read from its image at each scrape (ADR 39). All are zero when not in office."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from anabranch.controller import view
from anabranch.controller.active import ActiveController
from anabranch.controller.image import ClusterImage, TopicImage
from anabranch.controller.metric_table import CONTROLLER_METRICS
from anabranch.controller.metrics import ControllerMetrics
from anabranch.controller.states import PartitionStatus
from anabranch.runtime.metrics import OTHERS, ShownTopics

AT_ONCE = 256
"""The largest number of partitions to go through before other tasks may run."""
_PREFIX = "kafka_controller_kafkacontroller"


class ImageMetrics:
    """A source of ``Metrics``: the cluster as the controller in office knows it."""

    def __init__(
        self,
        active: Callable[[], ActiveController | None],
        metrics: ControllerMetrics,
        shown: ShownTopics,
        most_partitions: int,
        now: Callable[[], float],
    ) -> None:
        self._active = active
        self._metrics = metrics
        self._shown = shown
        self._most = most_partitions
        self._now = now

    def __call__(self) -> Iterator[Metric | None]:
        active = self._active()
        image = active.image if active is not None else ClusterImage(-1, -1)
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_activecontrollercount", active is not None)
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_activebrokercount", len(image.brokers))
        yield CONTROLLER_METRICS.value("kafka_brokers", len(image.brokers))
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_globaltopiccount", len(image.topics))
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_topicstodeletecount", len(image.deletions))
        yield CONTROLLER_METRICS.value(
            "kafka_controller_controllereventmanager_eventqueuesize",
            active.queue_size if active is not None else 0,
        )
        yield None
        yield from self._partitions(image)
        yield from self._resizes(image, active)

    def _partitions(self, image: ClusterImage) -> Iterator[Metric | None]:
        total = offline = imbalanced = 0
        for number, (tp, topic, partition) in enumerate(image.all_partitions()):
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
            total += 1
            offline += partition.status is PartitionStatus.OFFLINE and tp.topic not in image.deletions
            replicas, state = topic.replicas(tp.partition), partition.state
            imbalanced += state is not None and bool(replicas) and state.leader >= 0 and state.leader != replicas[0]
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_globalpartitioncount", total)
        yield CONTROLLER_METRICS.value(f"{_PREFIX}_offlinepartitionscount", offline)
        yield CONTROLLER_METRICS.value(
            f"{_PREFIX}_preferredreplicaimbalancecount",
            imbalanced,
        )
        yield None
        counts = CONTROLLER_METRICS.family("kafka_topic_partitions")
        of_others = 0
        for name in sorted(image.topics):
            if name in self._shown:
                counts.add_metric((name,), len(image.topics[name].partitions))
            else:
                of_others += len(image.topics[name].partitions)
        if of_others:
            counts.add_metric((OTHERS,), of_others)
        yield counts
        yield None

    # ------------------------------------------------------------ resizes

    def _resizes(self, image: ClusterImage, active: ActiveController | None) -> Iterator[Metric | None]:
        now = self._now()
        step = CONTROLLER_METRICS.family("anabranch_resize_step")
        age = CONTROLLER_METRICS.family("anabranch_resize_age_seconds")
        marked = CONTROLLER_METRICS.family("anabranch_resize_marked_partitions")
        resizing = [
            topic
            for name, topic in sorted(image.topics.items())
            if name not in image.deletions and view.is_resizing(topic)
        ]
        known = self._metrics.resizes
        for over in known.keys() - {topic.name for topic in resizing}:
            del known[over]
        for number, topic in enumerate(resizing):
            if number % AT_ONCE == AT_ONCE - 1:
                yield None
            begun_at = known.setdefault(topic.name, now)
            if topic.name in self._shown:
                step.add_metric((topic.name, _stage(topic)), 1)
                age.add_metric((topic.name,), now - begun_at)
                marked.add_metric((topic.name,), len(view.marked(topic)))
        yield from (step, age, marked)
        yield None
        left = CONTROLLER_METRICS.family("anabranch_resize_records_left")
        for topic in resizing:
            for index in view.marked(topic):
                ending = topic.partitions[index].ending
                if ending is not None and 0 <= ending.log_start_offset <= ending.end_offset and self._has_room(left):
                    left.add_metric((topic.name, str(index)), ending.end_offset - ending.log_start_offset)
        yield left
        yield None
        yield from self._waits(active, now)

    def _waits(self, active: ActiveController | None, now: float) -> Iterator[Metric]:
        since = CONTROLLER_METRICS.family("anabranch_resize_wait_seconds")
        unread = CONTROLLER_METRICS.family("anabranch_resize_unread_records")
        if active is not None:
            for tp, wait in sorted(active.waits.items()):
                if tp.topic not in self._shown or not self._has_room(since):
                    continue
                names = (tp.topic, str(tp.partition), wait.group)
                since.add_metric((*names, wait.why), now - active.waiting_since.get(tp, now))
                if wait.group and wait.offset >= 0:
                    unread.add_metric(names, max(0, wait.offset - max(0, wait.position)))
        yield from (since, unread)

    def _has_room(self, family: Metric) -> bool:
        return len(family.samples) < self._most


def _stage(topic: TopicImage) -> str:
    """The stage of a resize, in one word."""
    if not view.is_over(topic):
        return "moving"
    return "draining" if view.marked(topic) else "queued"
