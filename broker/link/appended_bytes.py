"""The bytes appended to topics that this broker reports to the controller."""

from __future__ import annotations

from collections.abc import Iterable

from anabranch.protocol.generated.update_metadata import AppendedBytesOfTopic, UpdateMetadataTopicState
from anabranch.runtime.metrics import Counter


def report(counter: Counter, topics: Iterable[UpdateMetadataTopicState]) -> list[AppendedBytesOfTopic]:
    """The bytes appended since this broker started, for each topic whose ``wants_appended_bytes`` is set."""
    return [
        AppendedBytesOfTopic(topic_name=topic.topic_name, bytes_since_start=counter.get(topic.topic_name))
        for topic in topics
        if topic.wants_appended_bytes
    ]
