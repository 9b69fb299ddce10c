"""A broker reports to the controller how many bytes were appended."""

from __future__ import annotations

from anabranch.broker.link import appended_bytes
from anabranch.broker.metrics.broker_metrics import BrokerMetrics
from anabranch.protocol.generated.update_metadata import AppendedBytesOfTopic, UpdateMetadataTopicState


def test_only_topics_that_the_controller_asks_about_are_reported() -> None:
    metrics = BrokerMetrics()
    metrics.appended_bytes.add("t", by=70)
    metrics.appended_bytes.add("t", by=30)
    metrics.appended_bytes.add("u", by=5)
    asked = [
        UpdateMetadataTopicState(topic_name="t", wants_appended_bytes=True),
        UpdateMetadataTopicState(topic_name="u"),
        UpdateMetadataTopicState(topic_name="idle", wants_appended_bytes=True),
    ]
    assert appended_bytes.report(metrics.appended_bytes, asked) == [
        AppendedBytesOfTopic(topic_name="t", bytes_since_start=100),
        AppendedBytesOfTopic(topic_name="idle", bytes_since_start=0),
    ]
