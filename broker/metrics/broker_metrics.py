"""The numbers that a broker counts. The numbers that are read from its state are in ``observed/state_metrics``."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from anabranch.broker.metrics.request_metrics import RequestMetrics
from anabranch.broker.metrics.table import BROKER_METRICS
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode
from anabranch.protocol.generated.fetch import FetchResponse
from anabranch.protocol.generated.produce import ProduceResponse
from anabranch.runtime.metrics import OTHERS, Counter, Histogram, Metrics

HAND_OVER_BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0)
_TRAFFIC = {
    "messages_in": "kafka_server_brokertopicmetrics_messagesin",
    "bytes_in": "kafka_server_brokertopicmetrics_bytesin",
    "bytes_out": "kafka_server_brokertopicmetrics_bytesout",
    "bytes_rejected": "kafka_server_brokertopicmetrics_bytesrejected",
    "replication_bytes_in": "kafka_server_brokertopicmetrics_replicationbytesin",
    "replication_bytes_out": "kafka_server_brokertopicmetrics_replicationbytesout",
    "produce_requests": "kafka_server_brokertopicmetrics_totalproducerequests",
    "failed_produce_requests": "kafka_server_brokertopicmetrics_failedproducerequests",
    "fetch_requests": "kafka_server_brokertopicmetrics_totalfetchrequests",
    "failed_fetch_requests": "kafka_server_brokertopicmetrics_failedfetchrequests",
    "messages_out": "anabranch_messages_out",
}
"""The metric of each number of ``TopicTraffic``."""


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
        self.layout_refusals = Counter(BROKER_METRICS["anabranch_layout_refusals"])
        self.stock_refusals = Counter(BROKER_METRICS["anabranch_stock_produce_refusals"])
        self.appended_bytes = Counter(BROKER_METRICS["anabranch_appended_bytes"])
        self.retained_records_removed = Counter(BROKER_METRICS["anabranch_retained_records_removed"])
        self.withheld_fetches = Counter(BROKER_METRICS["anabranch_withheld_fetches"])
        self.withhold_let_go = Counter(BROKER_METRICS["anabranch_withhold_let_go"])
        super().__init__(
            self.layout_refusals,
            self.stock_refusals,
            self.appended_bytes,
            self.retained_records_removed,
            self.withheld_fetches,
            self.withhold_let_go,
        )
        self.hand_overs = Histogram(BROKER_METRICS["anabranch_hand_over_seconds"], HAND_OVER_BOUNDS_S)
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
        for field, name in _TRAFFIC.items():
            family = BROKER_METRICS.family(name)
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
