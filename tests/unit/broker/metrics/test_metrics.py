"""The broker's metrics."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.broker.metrics.layout_refusals import LOG_EVERY_S, LayoutRefusals
from anabranch.protocol.api_keys import ApiKey
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.heartbeat import HeartbeatResponse
from anabranch.protocol.generated.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from anabranch.protocol.generated.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from anabranch.protocol.types import TopicPartition
from anabranch.runtime.metrics import OTHERS, Metrics, ShownTopics
from tests.support.log.log_fixture import ManualClock

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
MISMATCH = KafkaError(ErrorCode.INVALID_PARTITION_METADATA, "another layout")
WITHOUT_LAYOUT = KafkaError(ErrorCode.POLICY_VIOLATION, "names none")
Values = dict[tuple[str, tuple[str, ...]], float]


def sampled(metrics: Metrics) -> Values:
    """Return values by name and label values, as Prometheus reads them."""
    found: Values = {}
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sample.labels[name] for name in sorted(sample.labels)))
            assert key not in found, f"{key} occurs twice"
            found[key] = sample.value
    return found


def of_topics(values: Values, name: str) -> dict[str, float]:
    return {labels[0]: value for (found, labels), value in values.items() if found == name}


def test_refusals_are_counted_by_topic() -> None:
    metrics = BrokerMetrics()
    refusals = LayoutRefusals(ManualClock(), metrics)
    for key, error in [(T0, MISMATCH), (T0, MISMATCH), (U0, MISMATCH), (U0, WITHOUT_LAYOUT)]:
        refusals.note(key, error)
    assert metrics.layout_refusals.values == {("t",): 2, ("u",): 1}
    assert metrics.stock_refusals.values == {("u",): 1}


def test_each_kind_of_refusal_is_logged_once_per_topic_and_interval() -> None:
    clock = ManualClock()
    refusals = LayoutRefusals(clock, BrokerMetrics())
    with capture_logs() as lines:
        for key, error in [(T0, MISMATCH), (T0, MISMATCH), (U0, MISMATCH), (T0, WITHOUT_LAYOUT), (T0, WITHOUT_LAYOUT)]:
            refusals.note(key, error)
        clock.seconds = LOG_EVERY_S
        refusals.note(T0, MISMATCH)
    assert [(line["partition"], line["log_level"]) for line in lines] == [
        ("t-0", "info"),
        ("u-0", "info"),
        ("t-0", "warning"),
        ("t-0", "info"),
    ]


def test_topics_above_the_limit_are_summed_and_unknown_topics_are_never_labels() -> None:
    existing = {"a", "b", "c", "d"}
    metrics = BrokerMetrics(lambda topic: topic in existing)
    metrics.shown_topics = ShownTopics(2, lambda: existing)
    for topic, records in (("d", 1), ("a", 2), ("b", 4), ("c", 8), ("made-up", 16)):
        metrics.traffic(topic).messages_in += records
    metrics.layout_refusals.add("c")
    values = sampled(metrics)
    assert of_topics(values, "kafka_server_brokertopicmetrics_messagesin_total") == {"a": 2, "b": 4, OTHERS: 25}
    assert of_topics(values, "anabranch_layout_refusals_total") == {OTHERS: 1}
    existing.remove("a")
    values = sampled(metrics)
    assert of_topics(values, "kafka_server_brokertopicmetrics_messagesin_total") == {"b": 4, "c": 8, OTHERS: 17}


def test_the_number_of_series_of_one_metric_is_bounded() -> None:
    metrics = BrokerMetrics()
    metrics.most_series = 2
    for number in range(5):
        metrics.withhold_let_go.add("t", f"group-{number}", by=2**number)
    metrics.shown_topics = ShownTopics(9, lambda: ["t"])
    found = {key[1]: value for key, value in sampled(metrics).items() if key[0] == "anabranch_withhold_let_go_total"}
    assert found == {("group-0", "t"): 1, ("group-1", "t"): 2, (OTHERS, OTHERS): 28}


def test_parts_of_requests_that_took_no_time_are_in_the_first_bucket() -> None:
    metrics = BrokerMetrics()
    metrics.requests.answered(ApiKey.PRODUCE, 9, False, 1.0, 1.0, 1.002, 1.002, 1.002)
    metrics.requests.answered(ApiKey.PRODUCE, 8, False, 1.0, 1.5, 1.5, 3.5, 3.6)
    metrics.requests.answered(ApiKey.FETCH, 12, True, 1.0, 1.0, 1.0, 1.0, 1.0)
    metrics.requests.answered(ApiKey.FETCH, 12, False, 1.0, 1.0, 1.0, 1.0, 1.0)
    values = sampled(metrics)
    name = "kafka_network_requestmetrics"
    requests = {key[1]: value for key, value in values.items() if key[0] == f"{name}_requests_total"}
    assert requests == {
        ("Produce", "8"): 1,
        ("Produce", "9"): 1,
        ("Fetch", "12"): 2,
        ("FetchConsumer", "12"): 1,
        ("FetchFollower", "12"): 1,
    }
    remote = {
        key[1][0]: v for key, v in values.items() if key[0] == f"{name}_remotetimems_bucket" and key[1][1] == "Produce"
    }
    assert (remote["0.1"], remote["1000.0"], remote["5000.0"], remote["+Inf"]) == (1, 1, 2, 2)
    assert values[f"{name}_remotetimems_sum", ("Produce",)] == pytest.approx(2000)
    assert values[f"{name}_requestqueuetimems_sum", ("Produce",)] == pytest.approx(500)
    assert values[f"{name}_localtimems_sum", ("Produce",)] == pytest.approx(2)
    assert values[f"{name}_responsesendtimems_sum", ("Produce",)] == pytest.approx(100)
    assert values[f"{name}_totaltimems_sum", ("Produce",)] == pytest.approx(2602)


def test_errors_are_counted_by_api_and_code() -> None:
    metrics = BrokerMetrics()
    produced = [
        PartitionProduceResponse(index=0),
        PartitionProduceResponse(index=1, error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER),
        PartitionProduceResponse(index=2, error_code=ErrorCode.DUPLICATE_SEQUENCE_NUMBER),
    ]
    topics = [TopicProduceResponse(name="t", partition_responses=produced)]
    metrics.note_response(ApiKey.PRODUCE, ProduceResponse(responses=topics))
    committed = [OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.ILLEGAL_GENERATION)]
    topics_of_commit = [OffsetCommitResponseTopic(name="t", partitions=committed * 2)]
    metrics.note_response(ApiKey.OFFSET_COMMIT, OffsetCommitResponse(topics=topics_of_commit))
    metrics.note_response(ApiKey.HEARTBEAT, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    values = sampled(metrics)
    errors = {key[1]: value for key, value in values.items() if key[0] == "kafka_network_requestmetrics_errors_total"}
    assert errors == {
        ("NOT_LEADER_OR_FOLLOWER", "Produce"): 1,
        ("ILLEGAL_GENERATION", "OffsetCommit"): 2,
        ("REBALANCE_IN_PROGRESS", "Heartbeat"): 1,
    }
    assert values["kafka_server_brokertopicmetrics_totalproducerequests_total", ("t",)] == 3
    assert values["kafka_server_brokertopicmetrics_failedproducerequests_total", ("t",)] == 1


def test_errors_of_the_first_thousand_results_are_counted() -> None:
    metrics = BrokerMetrics()
    committed = [OffsetCommitResponsePartition(partition_index=0, error_code=ErrorCode.ILLEGAL_GENERATION)]
    topics = [OffsetCommitResponseTopic(name=name, partitions=committed * 1_500) for name in "abc"]
    metrics.note_response(ApiKey.OFFSET_COMMIT, OffsetCommitResponse(topics=topics))
    assert metrics.requests.errors == {(ApiKey.OFFSET_COMMIT, ErrorCode.ILLEGAL_GENERATION): 1_000}


def test_fetched_bytes_are_counted_separately_for_consumers_and_followers() -> None:
    metrics = BrokerMetrics()
    for is_follower in (False, True, True):
        for size_bytes in (5, 0):
            metrics.note_fetched("t", ErrorCode.NONE, size_bytes, is_follower=is_follower)
    traffic = metrics.traffic("t")
    assert (traffic.bytes_out, traffic.replication_bytes_out, traffic.fetch_requests) == (5, 10, 2)
