"""The numbers that a broker counts. The numbers that are read from its state are in ``observed/state_metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, Metric

from anabranch.broker.metrics.request_metrics import RequestMetrics
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.produce import ProduceResponse
from anabranch.runtime.metrics import OTHERS, Counter, Histogram, Metrics

HAND_OVER_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_TOPIC_METRICS = "kafka_server_brokertopicmetrics"
_KAFKA_TRAFFIC = {
    "messages_in": ("messagesin", "Records that producers appended"),
    "bytes_in": ("bytesin", "Bytes of record batches that producers appended"),
    "bytes_out": ("bytesout", "Bytes of record batches in answers to consumers"),
    "bytes_rejected": ("bytesrejected", "Bytes of record batches that were refused"),
    "replication_bytes_in": ("replicationbytesin", "Bytes of record batches that this broker fetched from leaders"),
    "replication_bytes_out": ("replicationbytesout", "Bytes of record batches in answers to followers"),
    "produce_requests": ("totalproducerequests", "Partitions in produce requests"),
    "failed_produce_requests": ("failedproducerequests", "Partitions in produce requests that got an error"),
    "fetch_requests": ("totalfetchrequests", "Partitions in answers to fetch requests of consumers"),
    "failed_fetch_requests": ("failedfetchrequests", "Partitions in fetch requests of consumers that got an error"),
}
_TRAFFIC = {
    **{field: (f"{_TOPIC_METRICS}_{name}", what) for field, (name, what) in _KAFKA_TRAFFIC.items()},
    "messages_out": ("anabranch_messages_out", "Offsets of record batches in answers to consumers"),
}


class TopicTraffic:
    """One topic's traffic through this broker."""

    __slots__ = tuple(_TRAFFIC)

    def __init__(self) -> None:
        self.messages_in = 0
        self.messages_out = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_rejected = 0
        self.replication_bytes_in = 0
        self.replication_bytes_out = 0
        self.produce_requests = 0
        self.failed_produce_requests = 0
        self.fetch_requests = 0
        self.failed_fetch_requests = 0


class BrokerMetrics(Metrics):
    """One broker's numbers. ``exists``: whether a topic exists. The names of all other topics share one entry."""

    def __init__(self, exists: Callable[[str], bool] = lambda _topic: True) -> None:
        self.layout_refusals = Counter(
            "anabranch_layout_refusals",
            "Batches refused with INVALID_PARTITION_METADATA (KIP-253)",
            "topic",
        )
        self.stock_refusals = Counter(
            "anabranch_stock_produce_refusals",
            "Batches refused from producers that name no layout",
            "topic",
        )
        self.appended_bytes = Counter(
            "anabranch_appended_bytes",
            "Bytes of record batches appended to partitions that this broker leads, at the request of producers",
            "topic",
        )
        self.retained_records_removed = Counter(
            "anabranch_retained_records_removed",
            "Records that retention removed although a group had yet to read them and another partition waits for them",
            "topic",
            "group",
        )
        self.withheld_fetches = Counter(
            "anabranch_withheld_fetches",
            "Fetched partitions whose next records were withheld from a consumer, for the order of keys",
            "topic",
        )
        self.withhold_let_go = Counter(
            "anabranch_withhold_let_go",
            "Waits for a group (empty: for a coordinator) that ended at their time limit: order may be lost",
            "topic",
            "group",
        )
        super().__init__(
            self.layout_refusals,
            self.stock_refusals,
            self.appended_bytes,
            self.retained_records_removed,
            self.withheld_fetches,
            self.withhold_let_go,
        )
        self.hand_overs = Histogram(
            "anabranch_hand_over_seconds",
            "Waits of records, at members of groups coordinated here, until another partition was read",
            HAND_OVER_BOUNDS_S,
        )
        self.histograms.append(self.hand_overs)
        self.requests = RequestMetrics()
        self._exists = exists
        self._traffic: dict[str, TopicTraffic] = {}
        self._others = TopicTraffic()
        self.sources += [self.requests, self._collect_traffic]

    def traffic(self, topic: str) -> TopicTraffic:
        """The counters of a topic's traffic."""
        found = self._traffic.get(topic)
        if found is None:
            if not self._exists(topic):
                return self._others
            found = self._traffic[topic] = TopicTraffic()
        return found

    def note_appended(self, topic: str, size_bytes: int, records: int) -> None:
        """Count a producer's batch that was appended."""
        self.appended_bytes.add(topic, by=size_bytes)
        traffic = self.traffic(topic)
        traffic.bytes_in += size_bytes
        traffic.messages_in += records

    def note_consumed(self, topic: str, offset_count: int) -> None:
        """Count the offsets of the batches in an answer to a consumer."""
        self.traffic(topic).messages_out += offset_count

    # ------------------------------------------------------------ responses

    def note_response(self, api_key: int, response: object) -> None:
        """Count the errors and the traffic of a response; those of fetched partitions are counted one by one."""
        if isinstance(response, ProduceResponse):
            for topic in response.responses:
                traffic = self.traffic(topic.name)
                traffic.produce_requests += len(topic.partition_responses)
                for partition in topic.partition_responses:
                    code = partition.error_code
                    if code and code != ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
                        traffic.failed_produce_requests += 1
                        self.requests.note_error(ApiKey.PRODUCE, code)
        elif isinstance(response, FetchResponse):
            if response.error_code:
                self.requests.note_error(ApiKey.FETCH, response.error_code)
        else:
            self.requests.note_errors(api_key, response)

    def note_fetched(self, topic: str, error_code: int, size_bytes: int, *, is_follower: bool) -> None:
        """Count the result of a partition in an answer to a fetch."""
        traffic = self.traffic(topic)
        if error_code:
            self.requests.note_error(ApiKey.FETCH, error_code)
            traffic.failed_fetch_requests += not is_follower
        if is_follower:
            traffic.replication_bytes_out += size_bytes
        else:
            traffic.bytes_out += size_bytes
            traffic.fetch_requests += 1

    # ------------------------------------------------------------ reading

    def _collect_traffic(self) -> Iterator[Metric | None]:
        for topic in [name for name in self._traffic if not self._exists(name)]:
            del self._traffic[topic]
        for field, (name, what) in _TRAFFIC.items():
            family = CounterMetricFamily(name, f"{what}, by topic", labels=("topic",))
            traffics = self._traffic.items()
            values: dict[tuple[str, ...], float] = {(topic,): getattr(one, field) for topic, one in traffics}
            folded = dict(self._folded(("topic",), values))
            of_others = folded.get((OTHERS,), 0) + getattr(self._others, field)
            if of_others:
                folded[(OTHERS,)] = of_others
            for labels, value in folded.items():
                family.add_metric(labels, value)
            yield family
            yield None
