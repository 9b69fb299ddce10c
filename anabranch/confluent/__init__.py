"""The calls of ``confluent_kafka``, for programs that change only their import.

    from anabranch.confluent import Consumer, Producer

The classes are a thin layer over ``anabranch.sync``. ``docs/from-other-clients.md`` has the differences.
"""

from __future__ import annotations

from typing import Any

from anabranch.confluent.consumer import Consumer
from anabranch.confluent.errors import KafkaError, KafkaException
from anabranch.confluent.messages import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    TopicPartition,
)
from anabranch.confluent.missing import missing_in_module
from anabranch.confluent.producer import Producer

__all__ = [
    "OFFSET_BEGINNING",
    "OFFSET_END",
    "OFFSET_INVALID",
    "OFFSET_STORED",
    "TIMESTAMP_CREATE_TIME",
    "TIMESTAMP_LOG_APPEND_TIME",
    "TIMESTAMP_NOT_AVAILABLE",
    "Consumer",
    "KafkaError",
    "KafkaException",
    "Message",
    "Producer",
    "TopicPartition",
]


def __getattr__(name: str) -> Any:
    return missing_in_module(__name__, name)
