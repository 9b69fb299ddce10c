"""A broker's own requests for topics: the error of each is in its log and in the response to the client."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from anabranch.broker.topic_creation import TopicCreator
from anabranch.protocol.errors import ErrorCode, KafkaError
from anabranch.protocol.generated.create_topics import CreatableTopicResult, CreateTopicsResponse

VALUES = {"num.partitions": 1, "default.replication.factor": 1, "request.timeout.ms": 1000}


def refuses() -> CreateTopicsResponse:
    raise KafkaError(ErrorCode.REQUEST_TIMED_OUT, "no controller answered")


def answers() -> CreateTopicsResponse:
    code, message = ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker is too few"
    return CreateTopicsResponse(topics=[CreatableTopicResult(name="t", error_code=code, error_message=message)])


@pytest.mark.trio
@pytest.mark.parametrize(
    ("respond", "code", "error"),
    [
        (refuses, ErrorCode.LEADER_NOT_AVAILABLE, "no controller answered"),
        (answers, ErrorCode.INVALID_REPLICATION_FACTOR, "1 broker is too few"),
    ],
)
async def test_the_reason_why_a_topic_was_not_created_is_logged(
    respond: Any, code: ErrorCode, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def request(*_: Any) -> CreateTopicsResponse:
        return respond()

    async def wait_for_metadata(_: Any, __: float) -> None:
        """No leader ever comes."""

    async with trio.open_nursery() as nursery:
        node: Any = SimpleNamespace(
            nursery=nursery,
            config=SimpleNamespace(values=VALUES),
            controller=SimpleNamespace(request=request),
            wait_for_metadata=wait_for_metadata,
        )
        assert await TopicCreator(node).create(["t"]) == {"t": code}
    assert any("event=topic.not_created topic=t" in line and error in line for line in caplog.messages)
